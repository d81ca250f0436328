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
#include "kernels/backend.h"

namespace sluice::inferd {

// Number of neurons in the work's range that are resident and active in any row, for a work with computed
// lead values.
uint32_t ActiveByLead(Backend* backend, const ExpertWork& work);
// Number of neurons in a work's range.
uint32_t NeuronsOf(const ExpertWork& work);

class VirtualQueue final : public Queue {
 public:
  // All arguments outlive the queue. `expert_bytes`: size of an expert in bf16.
  VirtualQueue(Backend* backend, VirtualClock* clock, const VirtualCosts& costs, uint64_t expert_bytes)
      : backend_(backend),
        behind_(&backend->queue()),
        clock_(clock),
        costs_(costs),
        expert_bytes_(expert_bytes) {}

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override {
    return behind_->Upload(source, bytes, destination);
  }
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override {
    return behind_->Download(source, bytes, destination);
  }
  absl::Status Enqueue(const Operation& operation) override;
  bool RunsAtCall() const override { return behind_->RunsAtCall(); }
  absl::Status BeginGraph() override { return behind_->BeginGraph(); }
  absl::Status EndGraph() override { return behind_->EndGraph(); }
  Event Record() override { return behind_->Record(); }
  bool IsDone(Event event) override { return behind_->IsDone(event); }
  absl::Status Wait(Event event) override { return behind_->Wait(event); }
  absl::StatusOr<double> Seconds(Event from, Event to) override { return behind_->Seconds(from, to); }

 private:
  // Runs an operation on the wrapped backend and charges its time on the modelled device.
  template <class Args>
  absl::Status Run(const Args& args) {
    return behind_->Enqueue(&args);
  }
  absl::Status Run(const AttentionArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const GatedDeltaArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const MambaArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const ShortConvArgs& args) { return RunFor(costs_.attention_ms * 1e-3, &args); }
  absl::Status Run(const TopLogitsArgs& args) { return RunFor(costs_.head_ms * 1e-3, &args); }
  absl::Status Run(const ExpertLeadsArgs& args);
  absl::Status Run(const MoeExpertsArgs& args);
  absl::Status RunFor(double seconds, const Operation& operation) {
    Charge(seconds);
    return behind_->Enqueue(operation);
  }
  void Charge(double seconds) { clock_->Advance(static_cast<int64_t>(seconds * 1e9 + 0.5)); }
  uint64_t Active(const MoeExpertsArgs& args, const ExpertWork& work) const;
  double SecondsOf(const ExpertWork& work, double kept) const;

  Backend* const backend_;
  Queue* const behind_;
  VirtualClock* const clock_;
  const VirtualCosts costs_;
  const uint64_t expert_bytes_;
  std::vector<uint64_t> active_before_;  // by work of the running call
};

class VirtualDevice final : public Backend {
 public:
  // `clock` outlives the device.
  VirtualDevice(std::unique_ptr<Backend> behind, VirtualClock* clock, const VirtualCosts& costs,
                uint64_t expert_bytes)
      : behind_(std::move(behind)), costs_(costs), queue_(behind_.get(), clock, costs, expert_bytes) {}

  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override {
    return behind_->Allocate(bytes, kind);
  }
  absl::StatusOr<SharedBuffer> AllocateShared(uint64_t bytes) override {
    return behind_->AllocateShared(bytes);
  }
  absl::StatusOr<BufferId> Import(absl::Span<const std::byte> memory) override {
    return behind_->Import(memory);
  }
  absl::Status Free(BufferId buffer) override { return behind_->Free(buffer); }
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override { return behind_->HostRead(ref, bytes); }
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override { return behind_->HostWrite(ref, bytes); }
  Queue& queue() override { return queue_; }
  void BeginStep() override { behind_->BeginStep(); }
  void EndStep() override { behind_->EndStep(); }
  absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) override {
    return behind_->SetSparseSwitches(entries);
  }
  BackendCounters Counters() const override { return behind_->Counters(); }
  std::string Describe() const override;

 private:
  const std::unique_ptr<Backend> behind_;
  const VirtualCosts costs_;
  VirtualQueue queue_;
};

}  // namespace sluice::inferd
