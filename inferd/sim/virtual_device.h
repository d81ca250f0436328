// A backend that computes on the wrapped backend and advances a virtual clock by a modelled device's time
// (--clock virtual): experts cost by the bytes they read, attention per layer, other operations nothing;
// experts that the cache gave to the CPU cost the device nothing.
//
// Thread safety: as Backend's; Counters() and Describe() may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "inferd/sim/virtual_clock.h"
#include "kernels/forwarding_backend.h"

namespace sluice::inferd {

// Number of neurons in the work's range that are resident and active in any row, for a work with computed
// lead values.
uint32_t ActiveByLead(Backend* backend, const ExpertWork& work);
// Number of neurons in a work's range.
uint32_t NeuronsOf(const ExpertWork& work);

class VirtualQueue final : public ForwardingQueue {
 public:
  // All arguments outlive the queue. `expert_bytes`: size of an expert in bf16.
  VirtualQueue(Backend* backend, VirtualClock* clock, const VirtualCosts& costs, uint64_t expert_bytes)
      : ForwardingQueue(&backend->queue()),
        backend_(backend),
        clock_(clock),
        costs_(costs),
        expert_bytes_(expert_bytes) {}

  absl::Status Enqueue(const Operation& operation) override;

 private:
  // Runs an operation on the wrapped backend and charges its time on the modelled device.
  template <class Args>
  absl::Status Run(const Args& args) {
    return inner_queue().Enqueue(&args);
  }
  absl::Status Run(const AttentionArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const CompressedAttentionArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const GatedDeltaArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const MambaArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const ShortConvArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const SelectiveScanArgs& args) { return RunFor(0, &args); }
  absl::Status Run(const TopLogitsArgs& args) { return RunFor(costs_.head_ms * 1e-3, &args); }
  absl::Status Run(const ExpertLeadsArgs& args);
  absl::Status Run(const MoeExpertsArgs& args);
  absl::Status RunFor(double seconds, const Operation& operation) {
    Charge(seconds);
    return inner_queue().Enqueue(operation);
  }
  void Charge(double seconds) { clock_->Advance(static_cast<int64_t>(seconds * 1e9 + 0.5)); }
  uint64_t Active(const MoeExpertsArgs& args, const ExpertWork& work) const;
  double SecondsOf(const ExpertWork& work, double kept) const;

  Backend* const backend_;
  VirtualClock* const clock_;
  const VirtualCosts costs_;
  const uint64_t expert_bytes_;
  std::vector<uint64_t> active_before_;  // by work of the running call
};

class VirtualDevice final : public ForwardingBackend {
 public:
  // `clock` outlives the device.
  VirtualDevice(std::unique_ptr<Backend> inner, VirtualClock* clock, const VirtualCosts& costs,
                uint64_t expert_bytes)
      : ForwardingBackend(std::move(inner)),
        costs_(costs),
        queue_(&inner_backend(), clock, costs, expert_bytes) {}

  Queue& queue() override { return queue_; }
  std::string Describe() const override;

 private:
  const VirtualCosts costs_;
  VirtualQueue queue_;
};

}  // namespace sluice::inferd
