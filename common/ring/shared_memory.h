// Sealed memory files and their mappings, the base of every shared region.
//
// The creator maps read-write first and seals afterwards. kReadOnly seals give the peers a file that they can
// only read (FUTURE_WRITE: no writable mapping, no write, no reopening through /proc), kReadWrite a file that
// they can also write; neither can be shrunk or grown, so a mapping never faults.
//
// Thread safety: thread-compatible values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/ring/unique_fd.h"

namespace sluice {

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

}  // namespace sluice
