// The instruction set's kernels for an option, and the CPUs to use.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/host/simd/kernel_table.h"

namespace sluice::host {

// FAILED_PRECONDITION naming what the CPU or system lacks. The table lives forever.
absl::StatusOr<const KernelTable*> ChooseKernels(HostIsa isa);

// `threads`, or with 0 the CPUs in the affinity mask. INVALID_ARGUMENT above 1024.
absl::StatusOr<uint32_t> ChooseThreads(uint32_t threads);

// How this CPU's memory is asked for. Nothing here changes a result.
struct MemoryTuning {
  uint32_t fetch_distance = 0;  // bytes that rows are fetched ahead of their reader (row_fetch.h)
  bool two_streams = false;     // rows of a matrix are read in turn from both halves of a tile
};
MemoryTuning TuningOfThisCpu();

}  // namespace sluice::host
