// Shared memory files, their mappings, and descriptors of the processes that share them.
//
// Thread safety: stated at each part.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/unique_fd.h"

namespace sluice {

// Sealed memory files and their mappings, the base of every shared region.
//
// The creator maps read-write first and seals afterwards. kReadOnly seals give the peers a file that they can
// only read (FUTURE_WRITE: no writable mapping, no write, no reopening through /proc), kReadWrite a file that
// they can also write; neither can be shrunk or grown, so a mapping never faults.
//
// Thread safety: thread-compatible values.

// Owns a mapping; movable. `data()` is page-aligned.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  bool valid() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

struct SharedMemory {
  UniqueFd fd;
  Mapping map;
};

enum class PeerAccess { kReadOnly, kReadWrite };

// Creates a zeroed memory file of `bytes` (rounded up to pages), maps it read-write here and seals it for its
// peers. `name` is shown in /proc and in errors. RESOURCE_EXHAUSTED names the size.
absl::StatusOr<SharedMemory> CreateSharedMemory(const std::string& name, uint64_t bytes, PeerAccess access);

// Maps a peer's memory file of at least `bytes`. INVALID_ARGUMENT if the file is smaller or may still be
// shrunk (its reader could be killed by SIGBUS). `populate` maps every page at once.
absl::StatusOr<Mapping> MapSharedMemory(int fd, uint64_t bytes, bool writable, bool populate);

// Descriptors of processes (pidfds): readable once the process has exited, even if its number is reused.
//
// Thread safety: free functions, safe from any thread.

// A descriptor of this process, to be passed to others.
absl::StatusOr<UniqueFd> ProcessFdOfSelf();

// A descriptor of the process that connected `socket`, an accepted unix socket; invalid if the kernel cannot
// tell. Useless at the connecting end: there it names the process that opened the listening socket, which may
// be a service manager.
UniqueFd ProcessFdOfClient(int socket);

// The number of the descriptor's process as this one sees it; 0: it is in another PID namespace, has exited,
// or there is no such descriptor.
pid_t ProcessOf(int process_fd);

}  // namespace sluice
