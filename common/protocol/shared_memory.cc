#include "common/protocol/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

// Debian 12's <fcntl.h> has the seals only with _GNU_SOURCE, which g++ always defines.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sluice {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = 2ull * 1024 * 1024;

// Maps all of a memory file. Files of a huge page or more start on a huge page boundary: only then can the
// kernel map their pages as huge ones (else MADV_COLLAPSE is EINVAL).
absl::StatusOr<Mapping> MapFile(int fd, uint64_t bytes, int protection, int flags) {
  void* hint = nullptr;
  void* reserved = MAP_FAILED;
  if (bytes >= kHugePage) {
    // Reserves one huge page more than needed, which contains an aligned range; the rest before and behind it
    // is unmapped at once.
    reserved =
        mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (reserved != MAP_FAILED) {
    const uint64_t start = reinterpret_cast<uintptr_t>(reserved);
    const uint64_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
    hint = reinterpret_cast<void*>(aligned);
    const uint64_t end = (aligned + bytes + kPage - 1) / kPage * kPage;
    if (aligned != start) {
      munmap(reserved, aligned - start);
    }
    if (start + bytes + kHugePage != end) {
      munmap(reinterpret_cast<void*>(end), start + bytes + kHugePage - end);
    }
    flags |= MAP_FIXED;
  }
  void* address = mmap(hint, bytes, protection, MAP_SHARED | flags, fd, 0);
  if (address == MAP_FAILED) {
    const int error_number = errno;
    if (hint != nullptr) {
      munmap(hint, bytes);
    }
    return ErrnoToStatus(error_number, absl::StrCat("mapping a memory file of ", bytes, " bytes"));
  }
  return Mapping(static_cast<std::byte*>(address), bytes);
}

}  // namespace

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
  ASSIGN_OR_RETURN(Mapping map, MapFile(fd.get(), bytes, PROT_READ | PROT_WRITE, 0));
  madvise(map.data(), bytes, MADV_DONTDUMP);  // a core file must not hold the model; best effort
  // FUTURE_WRITE keeps our own mapping, which exists already, writable and rejects any writable mapping by a
  // peer. SEAL, so that nobody can add seals.
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
  // A file that its owner could shrink would kill this process with SIGBUS at the next access.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("peer's memory file is not sealed against shrinking");
  }
  return MapFile(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, populate ? MAP_POPULATE : 0);
}

}  // namespace sluice

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5 and later
#endif

namespace sluice {

absl::StatusOr<UniqueFd> ProcessFdOfSelf() {
  UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "a descriptor of this process (pidfd_open)");
  }
  return fd;
}

UniqueFd ProcessFdOfClient(int socket) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    return UniqueFd(fd);
  }
  // Before Linux 6.5 the process is found by its number. It may have ended and its number been reused by now,
  // but a client that connected a moment ago is nearly always still alive.
  ucred peer{};
  length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid > 0) {
    return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  return UniqueFd();
}

pid_t ProcessOf(int process_fd) {
  std::ifstream in(absl::StrCat("/proc/self/fdinfo/", process_fd));
  std::string key;
  while (in >> key) {
    pid_t pid = 0;
    // -1 stands for a process that has ended and been reaped, 0 for one of another pid namespace.
    if (key == "Pid:" && in >> pid) {
      return std::max<pid_t>(pid, 0);
    }
  }
  return 0;
}

}  // namespace sluice
