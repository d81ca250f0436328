// Hashes: XXH3-64 chunk checksums of pack payloads and XXH3-128 digests of files and manifests.
//
// They find accidents (bit rot, truncation, misdirected or swapped blocks), not forgeries: XXH3 is not a
// cryptographic hash.
//
// Thread safety: free functions, safe to call from any thread. A Hasher128 is used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace sluice {

// Maximum bytes that one payload checksum covers; chunks are counted from their extent's start, and the last
// one may be shorter. Frozen: stored packs depend on it. 256 KiB is the read size at which the SSD path is
// fastest, so a read of one chunk can be checked alone.
inline constexpr uint64_t kChecksumChunkBytes = 256 * 1024;

// Number of checksums of an extent of `length` bytes.
inline constexpr uint64_t ChecksumChunkCount(uint64_t length) {
  return length / kChecksumChunkBytes + (length % kChecksumChunkBytes != 0 ? 1 : 0);
}

// XXH3-64 of one chunk, seeded by the file (PackFile's number) and the chunk's absolute offset in it, so that
// right bytes at the wrong offset fail too. Frozen.
uint64_t ChunkChecksum(uint8_t file, uint64_t file_offset, absl::Span<const std::byte> chunk);

// A 128-bit digest, printed as 32 lower-case hex digits, most significant first.
struct Digest128 {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest128&) const = default;
  std::string ToHex() const;
  // False if `hex` is not exactly 32 lower-case hex digits.
  static bool FromHex(std::string_view hex, Digest128* digest);
};

Digest128 DigestOf(absl::Span<const std::byte> bytes);
Digest128 DigestOf(std::string_view bytes);

// XXH3-128 over a stream of bytes: the same as DigestOf of their concatenation.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(Hasher128&&) noexcept;
  Hasher128& operator=(Hasher128&&) noexcept;

  void Update(absl::Span<const std::byte> bytes);
  void Update(std::string_view bytes);
  // Adds the length (u64, little-endian) and then the bytes, so that two strings differ from their
  // concatenation.
  void UpdateSized(std::string_view bytes);
  void UpdateU64(uint64_t value);
  Digest128 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
