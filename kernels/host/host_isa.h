// The instruction set's kernels for an option, and the CPUs to use.
//
// Thread safety: free functions.
#ifndef SLUICE_KERNELS_HOST_HOST_ISA_H_
#define SLUICE_KERNELS_HOST_HOST_ISA_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/host/kernel_table.h"

namespace sluice::host {

// FAILED_PRECONDITION naming what the CPU or system lacks. The table lives forever.
absl::StatusOr<const KernelTable*> ChooseKernels(HostIsa isa);

// `threads`, or with 0 the CPUs in the affinity mask. INVALID_ARGUMENT above 1024.
absl::StatusOr<uint32_t> ChooseThreads(uint32_t threads);

// Bytes that streaming kernels prefetch ahead on this CPU; 0: none.
uint32_t DefaultPrefetch();

// Bytes that rows are fetched ahead of their reader on this CPU (row_fetch.h).
uint32_t FetchDistance();

}  // namespace sluice::host

#endif  // SLUICE_KERNELS_HOST_HOST_ISA_H_
