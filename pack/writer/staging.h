// The life of a pack folder on disk: a `.partial` folder beside the target, filled, sealed with its tables,
// and renamed in one step.
//
// Thread safety: a Staging is used by one thread; its files may be written by several.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/file_io.h"
#include "pack/pack_format.h"
#include "pack/writer/journal.h"

namespace sluice {

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
};

}  // namespace sluice
