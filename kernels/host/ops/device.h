// The CPU backend: its parts, and the device interface over them. Operations run when they are
// enqueued.
//
// Thread safety: as Backend; the owner thread is worker 0.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/calls/calls.h"
#include "kernels/host/attention/attention.h"
#include "kernels/host/experts/experts.h"
#include "kernels/host/isa/host_isa.h"
#include "kernels/host/rows/rounded_rows.h"
#include "kernels/host/rows/row_lists.h"
#include "kernels/host/simd/kernel_table.h"
#include "kernels/host/work/scratch.h"
#include "kernels/host/work/tiles.h"
#include "kernels/host/work/workspace.h"

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
