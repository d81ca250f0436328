// The journal of an unfinished pack: the finished units (dense extents, experts), with their checksums and
// the digests of their source tensors. It makes an interrupted conversion resumable.
//
// A file: header {8 bytes magic, u32 version, u32 zero, 16 bytes fingerprint}, then records {u32 unit, u32
// checksum count, u32 digest count, u32 zero, checksums u64[], digests u64[2][] (high, low), XXH3-64 of the
// record so far}. Appended only; a torn or damaged record ends it.
//
// Thread safety: ParseJournal is pure. Append may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checksum.h"
#include "common/file_io.h"
#include "common/mutex.h"

namespace sluice {

inline constexpr char kJournalName[] = "journal";

struct JournalRecord {
  uint32_t unit = 0;
  std::vector<uint64_t> checksums;
  std::vector<Digest128> digests;
};

// The whole records, in order, if the header has `fingerprint`; none otherwise. `valid_bytes` is the offset
// of the next record (0: start anew).
std::vector<JournalRecord> ParseJournal(absl::Span<const std::byte> bytes, const Digest128& fingerprint,
                                        uint64_t* valid_bytes);

class Journal {
 public:
  // Opens or creates `folder`/journal and locks it against other processes and threads. Records of another
  // fingerprint are dropped. Unavailable if another process or thread holds it.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& folder,
                                                       const Digest128& fingerprint);

  const std::vector<JournalRecord>& found() const { return found_; }
  absl::Status Append(const JournalRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Journal(File file, std::vector<JournalRecord> found, uint64_t end)
      : file_(std::move(file)), found_(std::move(found)), end_(end) {}

  const File file_;  // closing it unlocks
  const std::vector<JournalRecord> found_;
  Mutex mutex_;
  uint64_t end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
