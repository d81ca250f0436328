#include "common/ring/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

// Debian 12's <fcntl.h> has the seals only with _GNU_SOURCE, which g++ always defines.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sluice {
namespace {
constexpr uint64_t kPage = 4096;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

absl::StatusOr<SharedMemory> CreateSharedMemory(const std::string& name, uint64_t bytes, PeerAccess access) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("memory file ", name));
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("memory file ", name, " of ", bytes, " bytes"));
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    return ErrnoToStatus(errno, absl::StrCat("mapping memory file ", name, " of ", bytes, " bytes"));
  }
  Mapping map(static_cast<std::byte*>(address), bytes);
  madvise(address, bytes, MADV_DONTDUMP);  // a core file must not hold the model; best effort
  const int seals =
      F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (access == PeerAccess::kReadOnly ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("sealing memory file ", name));
  }
  return SharedMemory{std::move(fd), std::move(map)};
}

absl::StatusOr<Mapping> MapSharedMemory(int fd, uint64_t bytes, bool writable, bool populate) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return ErrnoToStatus(errno, "peer's memory file");
  }
  if (bytes == 0 || info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("peer's memory file has ", info.st_size, " bytes, ", bytes, " needed"));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("peer's memory file is not sealed against shrinking");
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = mmap(nullptr, bytes, protection, MAP_SHARED | (populate ? MAP_POPULATE : 0), fd, 0);
  if (address == MAP_FAILED) {
    return ErrnoToStatus(errno, absl::StrCat("mapping a peer's memory file of ", bytes, " bytes"));
  }
  return Mapping(static_cast<std::byte*>(address), bytes);
}

}  // namespace sluice
