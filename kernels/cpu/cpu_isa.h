// Chooses the kernels for an instruction set option, and the number of threads.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"

namespace sluice::cpu {

// Returns a table that lives forever. FAILED_PRECONDITION naming the missing CPU or system features.
absl::StatusOr<const KernelTable*> ChooseKernels(CpuIsa isa);

// Returns `threads`, or for 0 the number of CPUs in the affinity mask. INVALID_ARGUMENT above 1024.
absl::StatusOr<uint32_t> ChooseThreads(uint32_t threads);

// Prefetch tuning for this CPU's memory. It changes no result.
struct MemoryTuning {
  uint32_t fetch_distance = 0;  // bytes between the fetch of rows and their reader (row_fetch.h)
  bool two_streams = false;     // rows of a matrix are read in turn from both halves of a tile
};
MemoryTuning TuningOfThisCpu();

}  // namespace sluice::cpu
