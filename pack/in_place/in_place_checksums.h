// Checksums of a pack in place. Nobody has read its bytes when its index is made, so the checksum of a chunk
// is taken when it is first read, kept in the index, and verified from then on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "pack/pack.h"
#include "pack/writer/pack_writer.h"

namespace sluice {

// The file "checksums.bin" of an index: 8 bytes for each chunk in the extent table's order, 0 while its
// checksum is not known. It is written through shared memory, so that a killed process loses none; what a
// power loss takes away is taken anew.
//
// Thread safety: every method may be called from any thread, and by several processes at once.
class LearnedChecksums {
 public:
  // Opens or makes the file of `pack`; one of another size is made anew. Errors of the file system naming it.
  static absl::StatusOr<std::unique_ptr<LearnedChecksums>> Open(const Pack& pack);
  ~LearnedChecksums();
  LearnedChecksums(const LearnedChecksums&) = delete;
  LearnedChecksums& operator=(const LearnedChecksums&) = delete;

  // As VerifyChunks (pack/pack.h), but learns the checksums that are not known. DataLoss naming file and
  // chunk.
  absl::Status Check(const Pack& pack, uint32_t extent, uint64_t offset, absl::Span<const std::byte> bytes);

 private:
  LearnedChecksums(std::atomic<uint64_t>* sums, uint64_t bytes) : sums_(sums), bytes_(bytes) {}

  // Mapped from the file.
  std::atomic<uint64_t>* const sums_;
  const uint64_t bytes_;
};

// Reads everything that a pack in place serves from its model's file, and checks or learns every checksum. As
// VerifyPack for other packs; DataLoss, FailedPrecondition for a changed file, Cancelled.
absl::Status VerifyInPlace(const std::string& dir, const PackingProgressFn& progress,
                           const std::atomic<bool>* cancel);

}  // namespace sluice
