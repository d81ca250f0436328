// The file of a prefix cache, which lets it outlive the process: pages of the KV cache and recurrent states,
// each with its tokens.
//
// Its content decides tokens, so every record has a digest bound to its position in this file, and a file is
// valid only for the identity (model, options, device, program) that wrote it. It also holds the secret of
// the prefix index (kv_cache.h) and conversations as token ids, so only its owner may access it (0600).
//
//   head    "SLPREFIX", u32 version, u32 0, then identity, secret (16 bytes each), u64 bytes of a page, u64
//           bytes of a state, u64 pages, u64 states, and the digest of all that
//   record  digest in front (16), u32 position, u32 tokens, i32 tokens[kPageTokens], the content; then the
//           digest of these, of the secret and of the record's number
// Pages come first, least recently used first, then states. Numbers are little-endian, digests XXH3-128.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "kernels/ops.h"

namespace sluice::inferd {

struct PrefixFileHead {
  Digest128 identity;
  Digest128 secret;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t pages = 0;
  uint64_t states = 0;
};

// The position of a page or state in a sequence.
struct PrefixRecord {
  Digest128 before;       // digest of the whole pages before it
  uint32_t position = 0;  // a state's position; 0 for pages
  uint32_t known = 0;     // tokens after those pages
  std::array<int32_t, kPageTokens> tokens{};
};

// Digest of a cache's identity and of the running program: another build may compute other bits.
absl::StatusOr<Digest128> PrefixFileIdentity(const std::string& cache);

// Bytes of a record with `content_bytes` of content.
uint64_t PrefixRecordBytes(uint64_t content_bytes);

// Writes a temporary file beside `path` and renames it at the end, so that a process that dies leaves the old
// file.
class PrefixFileWriter {
 public:
  static absl::StatusOr<PrefixFileWriter> Create(const std::string& path, const PrefixFileHead& head);

  absl::Status Add(const PrefixRecord& record, absl::Span<const std::byte> content);
  // REQUIRES: as many records were written as the head counts.
  absl::Status Finish();
  // Removes the temporary file instead.
  void Discard();

 private:
  PrefixFileWriter(std::string path, File file, const Digest128& secret)
      : path_(std::move(path)), file_(std::move(file)), secret_(secret) {}

  std::string path_;
  File file_;
  Digest128 secret_;
  uint64_t offset_ = 0;
  uint64_t number_ = 0;
  std::vector<std::byte> buffer_;
};

class PrefixFileReader {
 public:
  // NOT_FOUND: no file. FAILED_PRECONDITION: another identity. DATA_LOSS: the head is damaged or the file
  // truncated. PERMISSION_DENIED: others may read or write it, or another user owns it.
  static absl::StatusOr<PrefixFileReader> Open(const std::string& path, const PrefixFileHead& wanted);

  const PrefixFileHead& head() const { return head_; }
  // Reads the next record; DATA_LOSS if it is corrupt, after which the following record may still be read.
  absl::Status Next(PrefixRecord* record, std::vector<std::byte>* content);

 private:
  PrefixFileReader(File file, const PrefixFileHead& head) : file_(std::move(file)), head_(head) {}

  File file_;
  PrefixFileHead head_;
  uint64_t offset_ = 0;
  uint64_t number_ = 0;
};

}  // namespace sluice::inferd
