#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/host/ops/device.h"

namespace sluice {

class CpuBackend : public ImmediateBackend {
 public:
  // `cpus`: the CPUs to pin the threads to, or empty. RESOURCE_EXHAUSTED naming the memory that is missing.
  static absl::StatusOr<std::unique_ptr<CpuBackend>> Create(const BackendLimits& limits, uint32_t threads,
                                                            const cpu::KernelTable& kernels,
                                                            const cpu::MemoryTuning& tuning,
                                                            std::vector<uint32_t> cpus = {});

  absl::Status Enqueue(const Operation& operation) override { return Compute(operation, *device_); }
  void BeginStep() override { device_->tiles.BeginStep(); }
  void EndStep() override { device_->tiles.EndStep(); }
  absl::Status SetSparseSwitches(absl::Span<const SparseSwitchEntry> entries) override {
    return device_->experts.dense_switch().Set(entries);
  }
  BackendCounters Counters() const override;
  std::string Describe() const override;

 private:
  CpuBackend(const BackendLimits& limits, std::unique_ptr<cpu::Device> device, bool pinned)
      : ImmediateBackend(limits), device_(std::move(device)), pinned_(pinned) {}

  const std::unique_ptr<cpu::Device> device_;
  const bool pinned_;
};

}  // namespace sluice
