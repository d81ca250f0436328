// A file of what a prefix cache holds, so that it outlives the process: pages of the KV cache and recurrent
// states, each with the text that it stands for.
//
// What is in it decides tokens, so every record has a digest, bound to its place in this file, and a file
// counts only for the identity (model, options, device, program) that wrote it. It also holds the secret by
// which texts are found (prefix_index.h), and what people said, as numbers: it is its owner's alone (0600).
//
//   head    "SLPREFIX", u32 version, u32 0, then identity, secret (16 bytes each), u64 bytes of a page, u64
//           bytes of a state, u64 pages, u64 states, and the digest of all that
//   record  digest in front (16), u32 position, u32 tokens, i32 tokens[kPageTokens], the content; then the
//           digest of these, of the secret and of the record's number
// Pages stand first, least used first, then states. Numbers are little-endian, digests XXH3-128.
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
#include "common/checksum.h"
#include "common/file_io.h"
#include "kernels/ops.h"

namespace sluice {

struct PrefixFileHead {
  Digest128 identity;
  Digest128 secret;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t pages = 0;
  uint64_t states = 0;
};

// A page's or a state's place among texts.
struct PrefixRecord {
  Digest128 before;       // of the whole pages in front
  uint32_t position = 0;  // of a state; 0 for pages
  uint32_t known = 0;     // tokens behind those
  std::array<int32_t, kPageTokens> tokens{};
};

// Of a cache's identity and of the running program: another build may compute other bits.
absl::StatusOr<Digest128> PrefixFileIdentity(const std::string& cache);

// Bytes that a record of so much content takes.
uint64_t PrefixRecordBytes(uint64_t content_bytes);

// Writes beside `path` and puts it in its place at the end, so that a process that dies leaves the old file.
class PrefixFileWriter {
 public:
  static absl::StatusOr<PrefixFileWriter> Create(const std::string& path, const PrefixFileHead& head);

  absl::Status Add(const PrefixRecord& record, absl::Span<const std::byte> content);
  // REQUIRES: as many records as the head says.
  absl::Status Finish();
  // Removes what was written, instead.
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
  // NOT_FOUND: there is none. FAILED_PRECONDITION: it is of another identity. DATA_LOSS: its head is damaged
  // or it is cut short. PERMISSION_DENIED: others may read or write it, or it is not this user's.
  static absl::StatusOr<PrefixFileReader> Open(const std::string& path, const PrefixFileHead& wanted);

  const PrefixFileHead& head() const { return head_; }
  // The next record; DATA_LOSS if it is not what was written, and the one behind it may be read.
  absl::Status Next(PrefixRecord* record, std::vector<std::byte>* content);

 private:
  PrefixFileReader(File file, const PrefixFileHead& head) : file_(std::move(file)), head_(head) {}

  File file_;
  PrefixFileHead head_;
  uint64_t offset_ = 0;
  uint64_t number_ = 0;
};

}  // namespace sluice
