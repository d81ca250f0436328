// The CPU backend: its parts, and the device interface over them. Operations run when they are
// enqueued.
//
// Thread safety: as Backend; the owner thread is worker 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/calls.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/index_select.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_lists.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/workspace.h"
#include "kernels/immediate_backend.h"

namespace sluice::cpu {

// The host device: its parts, and for every operation of ops.h a function that computes its call. A new
// operation is a function in a file of this folder; helpers of one file stay in it.

struct Device {
  // `cpus`: as in ThreadPool. Errors: as Scratch.
  static absl::StatusOr<std::unique_ptr<Device>> Create(const BackendLimits& limits, uint32_t threads,
                                                        const KernelTable& kernels,
                                                        const MemoryTuning& tuning,
                                                        std::vector<uint32_t> cpus);

  const KernelTable& kernels;
  const MemoryTuning tuning;
  Scratch scratch;      // all memory of the parts
  Tiles tiles;          // the workers
  Workspace space;      // memory shared by operations
  RoundedRows rounded;  // activations for quantized weights
  RowLists lists;       // products with rows of weights
  IndexSelect index_select;
  Attention attention;
  Experts experts;

 private:
  Device(const BackendLimits& limits, uint32_t threads, const KernelTable& kernels,
         const MemoryTuning& tuning, std::vector<uint32_t> cpus);
  absl::Status Reserve(const BackendLimits& limits);
};

#define SLUICE_CPU_RUN(Name) void Run(Device& device, const Name##Call& call);
SLUICE_OPERATIONS(SLUICE_CPU_RUN)
#undef SLUICE_CPU_RUN

}  // namespace sluice::cpu

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
