// The unfinished pack on disk: its journal, the writer of one extent, and the folder that is renamed at the
// end.
//
// Thread safety: stated at each class.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/base/file_io.h"
#include "common/base/mutex.h"
#include "pack/pack_format.h"

namespace sluice {

// The journal of an unfinished pack: the finished units (dense extents, experts), with their checksums and
// the digests of their source tensors. It makes an interrupted conversion resumable.
//
// A file: header {8 bytes magic, u32 version, u32 zero, 16 bytes fingerprint}, then records {u32 unit, u32
// checksum count, u32 digest count, u32 zero, checksums u64[], digests u64[2][] (high, low), XXH3-64 of the
// record so far}. Appended only; a torn or damaged record ends it.
//
// Thread safety: ParseJournal is pure. Append may be called from any thread.

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

// Writes one extent front to back: buffers whole chunks, checksums them, writes them at their offset.
//
// Thread safety: an ExtentWriter is used by one thread; writers of different extents of a file may run at
// once.
class ExtentWriter {
 public:
  // `file` outlives this.
  ExtentWriter(const File& file, const ExtentEntry& entry);

  // REQUIRES: the appended bytes do not exceed the extent's length in total.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // Appends zeros up to `position` of the extent; nothing if that is reached already.
  absl::Status PadTo(uint64_t position);
  // Pads to the extent's length and writes the rest of the buffer.
  absl::Status Finish();

  // One checksum for each chunk, complete after Finish().
  const std::vector<uint64_t>& checksums() const { return checksums_; }

 private:
  absl::Status Flush();

  const File& file_;
  const ExtentEntry entry_;
  uint64_t position_ = 0;  // of the next byte, in the extent
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> checksums_;
};

// The life of a pack folder on disk: a `.partial` folder beside the target, filled, sealed with its tables,
// and renamed in one step.
//
// Thread safety: a Staging is used by one thread; its files may be written by several.

// The folder that a run for `out_dir` finally writes: its symbolic links resolved, without a trailing slash.
// It need not exist.
std::string TargetFolder(const std::string& out_dir);
// The folder in which the run works, beside the target.
std::string PartialFolder(const std::string& out_dir);

// Checks that a pack may be written to `out_dir`: it does not exist, is an empty folder, or is a pack and
// `force` is set. AlreadyExists, or FailedPrecondition for a folder that is not a pack or cannot be the
// target of a rename (a mount point), naming it.
absl::Status CheckTarget(const std::string& out_dir, bool force);

// Free bytes for the user on the file system that holds `path` or its nearest parent that exists.
absl::StatusOr<uint64_t> FreeBytes(const std::string& path);

// Bytes on disk that the files of a folder take (0 if it does not exist).
uint64_t AllocatedBytes(const std::string& folder);

// Fate of the profile of a replaced pack: kept beside weights of the same source (each of its files names its
// source: matching ones are valid, others are refused by name), removed otherwise.
enum class OldProfile : uint8_t { kNone, kKept, kRemoved };

class Staging {
 public:
  // Creates or reopens the partial folder, locks its journal, checks that `payload_bytes` fit on disk
  // (ResourceExhausted with the numbers), and sets the payload files' size.
  static absl::StatusOr<std::unique_ptr<Staging>> Open(
      const std::string& out_dir, bool force, const Digest128& fingerprint,
      const std::array<uint64_t, kPackFileCount>& payload_bytes);

  Journal& journal() { return *journal_; }
  const File& file(PackFile file) const { return files_[static_cast<size_t>(file)]; }
  const File& file(uint8_t file) const { return files_[file]; }

  // Syncs the payload, writes tokenizer files, extents.bin and manifest.json (the digests in `manifest` are
  // set here), removes the journal, and renames the folder to its target; an old pack there is replaced and
  // removed, except a profile of the same source. Returns the bytes of all files.
  absl::StatusOr<uint64_t> Commit(Manifest* manifest, const ExtentTable& table,
                                  const std::map<std::string, std::string>& tokenizer_files);

  // Fate of the replaced pack's profile, valid after Commit() was OK.
  OldProfile old_profile() const { return old_profile_; }

 private:
  Staging() = default;
  absl::Status WriteTables(Manifest* manifest, const ExtentTable& table,
                           const std::map<std::string, std::string>& tokenizer_files, uint64_t* bytes);
  absl::Status Rename(const std::string& source_digest);
  absl::Status Replace(const std::string& source_digest);

  std::string out_dir_;
  std::string partial_;
  bool force_ = false;
  OldProfile old_profile_ = OldProfile::kNone;
  std::unique_ptr<Journal> journal_;
  std::array<File, kPackFileCount> files_;
  std::array<bool, kPackFileCount> used_ = {};  // a pack without tables of rows has no file of them
};

}  // namespace sluice
