// Device memory of `sim`: a memory file that weightd writes into, with its pages in place and huge where
// there are any.
//
// Thread safety: a free function.
#ifndef SLUICE_INFERD_RESIDENCY_SLAB_MEMORY_H_
#define SLUICE_INFERD_RESIDENCY_SLAB_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/ring/shared_memory.h"

namespace sluice {

// Errors of the system, naming the bytes.
absl::StatusOr<SharedMemory> AllocateSlabMemory(uint64_t bytes);

}  // namespace sluice

#endif  // SLUICE_INFERD_RESIDENCY_SLAB_MEMORY_H_
