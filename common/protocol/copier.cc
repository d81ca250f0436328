#include "common/protocol/copier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

std::optional<MemoryIdentity> IdentityOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return std::nullopt;
  }
  return MemoryIdentity{info.st_dev, info.st_ino};
}

absl::StatusOr<std::shared_ptr<HostSlab>> HostSlab::Map(int fd, uint64_t bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return ErrnoToStatus(errno, "slab");
  }
  if (bytes == 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("slab: its file has ", info.st_size, " bytes, ", bytes, " were stated"));
  }
  if (static_cast<uint64_t>(info.st_blocks) * 512 < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("slab: only ", info.st_blocks * 512, " of its ", bytes,
                                                   " bytes have memory; touch them before offering it"));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError("slab: not a memory file that may be written");
  }
  absl::StatusOr<Mapping> map = MapSharedMemory(fd, bytes, /*writable=*/true, /*populate=*/true);
  if (!map.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("slab: ", map.status().message()));
  }
  return std::shared_ptr<HostSlab>(new HostSlab(*std::move(map), {info.st_dev, info.st_ino}));
}

absl::StatusOr<std::shared_ptr<Slab>> HostCopier::Open(UniqueFd fd, const SlabHandle& handle) {
  if (handle.device != DeviceUuid{}) {
    return absl::InvalidArgumentError("slab: a memory file of the host that is said to lie on a device");
  }
  return HostSlab::Map(fd.get(), handle.bytes);
}

absl::Status HostCopier::Begin(uint64_t /*tag*/, const TransferPlan& plan, const PlanChunk& chunk,
                               Slab* slab) {
  CopyPlanChunk(plan, chunk, static_cast<HostSlab*>(slab)->data());
  return absl::OkStatus();
}

}  // namespace sluice
