// Random O_DIRECT reads without any other work: the baseline of weightd's reader.
//
// Thread safety: free functions; each uses threads and a ring of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

struct Piece {
  uint64_t offset = 0;  // multiple of 4096
  uint64_t length = 0;  // multiple of 4096, at most 1 MiB
};

// Page-aligned memory whose pages are populated, huge ones where the kernel provides them.
class ReadBuffers {
 public:
  ReadBuffers(size_t count, size_t bytes);
  ~ReadBuffers();
  ReadBuffers(const ReadBuffers&) = delete;
  ReadBuffers& operator=(const ReadBuffers&) = delete;
  std::byte* at(size_t i) const { return data_ + i * bytes_; }
  size_t count() const { return count_; }

 private:
  std::byte* data_ = nullptr;
  size_t count_ = 0;
  size_t bytes_ = 0;
};

// Shape of a bare read loop: `depth` reads in one ring, or `depth` threads with one pread each.
struct BareLoop {
  bool ring = true;
  uint32_t depth = 16;
  std::string name() const;
};

// Reads all pieces once, into all buffers in turn, and returns the bytes per second. A virtual disk copies,
// and looks faster than it is if a few buffers stay in the cache.
absl::StatusOr<double> ReadBare(const BareLoop& loop, int direct_fd, std::span<const Piece> pieces,
                                const ReadBuffers& buffers);

// Returns the fastest of the candidate loops over `pieces`.
absl::StatusOr<BareLoop> BestBareLoop(int direct_fd, std::span<const Piece> pieces,
                                      const ReadBuffers& buffers);

// Returns the candidate loop of this name; INVALID_ARGUMENT if there is none.
absl::StatusOr<BareLoop> BareLoopNamed(const std::string& name);

// Writes `bytes` of incompressible noise.
absl::Status WriteNoise(const std::string& path, uint64_t bytes);

}  // namespace sluice
