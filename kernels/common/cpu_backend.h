// What reference and host share: the buffer table, the checks that turn ops.h arguments into resolved calls
// (calls.h), and the trivial queue of a device that has computed when the call returns.
//
// Thread safety: as Backend (thread-compatible, one owner thread).
#ifndef SLUICE_KERNELS_COMMON_CPU_BACKEND_H_
#define SLUICE_KERNELS_COMMON_CPU_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "kernels/backend.h"
#include "kernels/common/calls.h"
#include "kernels/common/host_memory.h"

namespace sluice {

class CpuBackend : public Backend, public Queue {
 public:
  absl::StatusOr<BufferId> Allocate(uint64_t bytes, BufferKind kind) override;
  absl::StatusOr<BufferId> Import(const ImportSpec& spec) override;
  absl::Status Free(BufferId buffer) override;
  const std::byte* HostRead(BufferRef ref, uint64_t bytes) override;
  std::byte* HostWrite(BufferRef ref, uint64_t bytes) override;
  Queue& queue() override { return *this; }
  void BeginStep() override {}
  void EndStep() override {}
  BackendCounters Counters() const override;

  absl::Status Upload(const void* source, uint64_t bytes, BufferRef destination) override;
  absl::Status Download(BufferRef source, uint64_t bytes, void* destination) override;
  absl::Status Embed(const EmbedArgs& args) override;
  absl::Status Norm(const NormArgs& args) override;
  absl::Status MatMul(const MatMulArgs& args) override;
  absl::Status HeadMatMul(const HeadMatMulArgs& args) override;
  absl::Status SigmoidGate(const SigmoidGateArgs& args) override;
  absl::Status ScaleRows(const ScaleRowsArgs& args) override;
  absl::Status RopeKvWrite(const RopeKvArgs& args) override;
  absl::Status LatentKvWrite(const LatentKvArgs& args) override;
  absl::Status Attention(const AttentionArgs& args) override;
  absl::Status GatedDelta(const GatedDeltaArgs& args) override;
  absl::Status Router(const RouterArgs& args) override;
  absl::Status ExpertLeads(const ExpertLeadsArgs& args) override;
  absl::Status MoeExperts(const MoeExpertsArgs& args) override;
  absl::Status Combine(const CombineArgs& args) override;
  absl::Status TopLogits(const TopLogitsArgs& args) override;
  Event Record() override { return {++recorded_}; }
  bool IsDone(Event) override { return true; }
  absl::Status Wait(Event) override { return absl::OkStatus(); }

 protected:
  explicit CpuBackend(const BackendLimits& limits);

  const BackendLimits& limits() const { return limits_; }

  virtual void Run(const EmbedCall& call) = 0;
  virtual void Run(const NormCall& call) = 0;
  virtual void Run(const MatMulCall& call) = 0;
  virtual void Run(const RopeKvCall& call) = 0;
  virtual void Run(const LatentKvCall& call) = 0;
  virtual void Run(const AttentionCall& call) = 0;
  virtual void Run(const HeadMatMulCall& call) = 0;
  virtual void Run(const GatedDeltaCall& call) = 0;
  virtual void Run(const SigmoidGateCall& call) = 0;
  virtual void Run(const ScaleRowsCall& call) = 0;
  virtual void Run(const RouterCall& call) = 0;
  virtual void Run(const LeadCall& call) = 0;
  virtual void Run(const MoeCall& call) = 0;
  virtual void Run(const CombineCall& call) = 0;
  virtual void Run(const TopLogitsCall& call) = 0;

 private:
  // Runs a call and counts its time; written by the owner thread alone.
  template <class Call>
  void Compute(const Call& call) {
    const int64_t start = clock_.NowNanos();
    Run(call);
    const int64_t more = clock_.NowNanos() - start;
    kernel_nanos_.store(kernel_nanos_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }

  const MonotonicClock clock_;
  std::atomic<int64_t> kernel_nanos_{0};
  const BackendLimits limits_;
  HostMemory memory_;
  std::vector<ExpertCall> experts_;  // scratch of MoeExperts
  std::vector<LeadCallPart> leads_;  // scratch of ExpertLeads
  std::vector<uint8_t> slot_taken_;  // scratch: which slots of y a MoeExperts call has seen
  uint64_t recorded_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_KERNELS_COMMON_CPU_BACKEND_H_
