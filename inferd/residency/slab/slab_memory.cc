#include "inferd/residency/slab/slab_memory.h"

#include <sys/mman.h>

#include <cerrno>

#include "common/status.h"

namespace sluice {
namespace {

// Since Linux 5.14 and 6.1; best effort on older ones.
constexpr int kPopulateWrite = 23;
constexpr int kCollapse = 25;

}  // namespace

absl::StatusOr<SharedMemory> AllocateSlabMemory(uint64_t bytes) {
  ASSIGN_OR_RETURN(SharedMemory memory, CreateSharedMemory("sluice-slab", bytes, PeerAccess::kReadWrite));
  if (madvise(memory.map.data(), memory.map.bytes(), kPopulateWrite) != 0 && errno != EINVAL) {
    return ErrnoToStatus(errno, absl::StrCat("device memory of ", bytes, " bytes"));
  }
  madvise(memory.map.data(), memory.map.bytes(), kCollapse);  // huge pages if there are any
  return memory;
}

}  // namespace sluice
