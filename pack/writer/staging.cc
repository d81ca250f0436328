#include "pack/writer/staging.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/status.h"
#include "pack/extent_table.h"
#include "pack/manifest.h"
#include "pack/pack.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// Space required beside the payload, for tables, manifest and the file system's own data: a share and a
// minimum, both generous.
constexpr uint64_t kOverheadShare = 1000;
constexpr uint64_t kOverheadFloor = 1ull << 20;
constexpr int kMaxLinks = 40;  // as the kernel

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// True if another file system is mounted at `folder`: nothing can be renamed onto a mount point, and the
// partial folder beside it would be on another file system.
bool IsMountPoint(const std::string& folder) {
  struct stat here, parent;
  return stat(folder.c_str(), &here) == 0 && stat(ParentOf(folder).c_str(), &parent) == 0 &&
         here.st_dev != parent.st_dev;
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoToStatus(errno, absl::StrCat("create folder ", path));
  }
  return absl::OkStatus();
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoToStatus(error.value(), absl::StrCat("remove ", path));
  return absl::OkStatus();
}

Digest128 PayloadDigest(const ExtentTable& table, uint8_t file) {
  Hasher128 hasher;
  for (const ExtentEntry& entry : table.entries) {
    if (entry.file != file) continue;
    const uint64_t* first = table.checksums.data() + entry.first_checksum;
    hasher.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(first),
                                      ChecksumChunkCount(entry.length) * sizeof(uint64_t)));
  }
  return hasher.Finish();
}

}  // namespace

std::string TargetFolder(const std::string& out_dir) {
  std::string path = WithoutSlash(out_dir);
  std::error_code error;
  // "." and ".." cannot be the target of a rename and have no sibling folder.
  if (const fs::path last = fs::path(path).filename(); last == "." || last == "..") {
    const fs::path folder = fs::canonical(path, error);
    path = error ? path : folder.string();
  }
  // A link is followed, so that --force replaces the pack that it leads to and keeps the link.
  for (int link = 0; link < kMaxLinks && fs::is_symlink(path, error); ++link) {
    // An absolute target replaces the folder that the link is in.
    path = WithoutSlash(fs::path(path).parent_path() / fs::read_symlink(path, error));
  }
  return path;
}

std::string PartialFolder(const std::string& out_dir) { return TargetFolder(out_dir) + ".partial"; }

absl::Status CheckTarget(const std::string& out_dir, bool force) {
  struct stat info;
  if (stat(out_dir.c_str(), &info) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return ErrnoToStatus(errno, absl::StrCat("stat ", out_dir));
  }
  std::error_code error;
  if (S_ISDIR(info.st_mode) && IsMountPoint(TargetFolder(out_dir))) {
    return absl::FailedPreconditionError(
        absl::StrCat(out_dir, ": a file system is mounted there; a pack can be written to a folder in it"));
  }
  if (S_ISDIR(info.st_mode) && fs::is_empty(out_dir, error) && !error) return absl::OkStatus();
  if (!S_ISDIR(info.st_mode) || !FileExists(absl::StrCat(out_dir, "/", kManifestName))) {
    return absl::FailedPreconditionError(absl::StrCat(out_dir, ": exists and is no pack; it is left alone"));
  }
  if (!force)
    return absl::AlreadyExistsError(absl::StrCat(out_dir, ": a pack is there already (--force replaces it)"));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FreeBytes(const std::string& path) {
  std::string existing = WithoutSlash(path);
  // The target need not exist yet: its nearest existing parent determines the file system.
  while (!FileExists(existing) && existing != "." && existing != "/") existing = ParentOf(existing);
  struct statvfs info;
  if (statvfs(existing.c_str(), &info) != 0) return ErrnoToStatus(errno, absl::StrCat("statvfs ", existing));
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

uint64_t AllocatedBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const char* name : kPackFileNames) {
    struct stat info;
    if (stat(absl::StrCat(folder, "/", name).c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<Staging>> Staging::Open(
    const std::string& out_dir, bool force, const Digest128& fingerprint,
    const std::array<uint64_t, kPackFileCount>& payload_bytes) {
  RETURN_IF_ERROR(CheckTarget(out_dir, force));
  auto staging = std::unique_ptr<Staging>(new Staging());
  staging->out_dir_ = TargetFolder(out_dir);
  staging->partial_ = PartialFolder(out_dir);
  staging->force_ = force;
  const uint64_t payload = payload_bytes[0] + payload_bytes[1];
  const uint64_t needed = payload + payload / kOverheadShare + kOverheadFloor;
  // Space that an interrupted run has allocated counts as free for this one.
  const uint64_t there = AllocatedBytes(staging->partial_);
  ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(staging->partial_));
  if (needed > free + there) {
    return absl::ResourceExhaustedError(absl::StrCat(staging->partial_, ": ", needed, " bytes are needed, ",
                                                     free, " are free and ", there, " are there already"));
  }
  RETURN_IF_ERROR(MakeFolder(staging->partial_));
  ASSIGN_OR_RETURN(staging->journal_, Journal::Open(staging->partial_, fingerprint));
  for (int f = 0; f < kPackFileCount; ++f) {
    ASSIGN_OR_RETURN(staging->files_[f],
                     File::OpenForWrite(absl::StrCat(staging->partial_, "/", kPackFileNames[f])));
    RETURN_IF_ERROR(staging->files_[f].Reserve(payload_bytes[f]));
  }
  return staging;
}

absl::Status Staging::WriteTables(Manifest* manifest, const ExtentTable& table,
                                  const std::map<std::string, std::string>& tokenizer_files,
                                  uint64_t* bytes) {
  const std::string tokenizer = absl::StrCat(partial_, "/", kTokenizerFolder);
  RETURN_IF_ERROR(RemoveTree(tokenizer));
  manifest->tokenizer_files.clear();
  if (!tokenizer_files.empty()) {
    RETURN_IF_ERROR(MakeFolder(tokenizer));
    for (const auto& [name, content] : tokenizer_files) {
      manifest->tokenizer_files[name] = {content.size(), DigestOf(std::string_view(content))};
      RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(tokenizer, "/", name), content));
      *bytes += content.size();
    }
    RETURN_IF_ERROR(SyncFolder(tokenizer));
  }
  const std::string table_bytes = SerializeExtentTable(table);
  manifest->extent_table = {table_bytes.size(), DigestOf(std::string_view(table_bytes))};
  for (int f = 0; f < kPackFileCount; ++f) {
    ASSIGN_OR_RETURN(const uint64_t size, files_[f].Size());
    manifest->payload[f] = {size, PayloadDigest(table, static_cast<uint8_t>(f))};
    *bytes += size;
  }
  RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(partial_, "/", kExtentTableName), table_bytes));
  const std::string text = SerializeManifest(manifest);
  *bytes += table_bytes.size() + text.size();
  return WriteFileDurably(absl::StrCat(partial_, "/", kManifestName), text);
}

// The exchange keeps a whole pack under the target's name at every moment.
absl::Status Staging::Replace(const std::string& source_digest) {
  const auto old = Pack::Open(out_dir_);
  // A profile describes the source's weights, so it is carried over only to another pack of the same source.
  const bool same_source = old.ok() && (*old)->manifest().provenance.source_digest == source_digest;
  if (renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, out_dir_.c_str(), RENAME_EXCHANGE) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("exchange ", partial_, " and ", out_dir_));
  }
  const std::string profile = absl::StrCat(partial_, "/", kProfileFolder);
  if (FileExists(profile)) {
    old_profile_ = same_source ? OldProfile::kKept : OldProfile::kRemoved;
    const std::string kept = absl::StrCat(out_dir_, "/", kProfileFolder);
    if (same_source && rename(profile.c_str(), kept.c_str()) != 0) {
      return ErrnoToStatus(errno, absl::StrCat("rename ", profile, " to ", kept));
    }
  }
  RETURN_IF_ERROR(SyncFolder(ParentOf(out_dir_)));
  return RemoveTree(partial_);
}

// Removes the journal first: a folder without one is a whole pack under any name, and is never resumed.
absl::Status Staging::Rename(const std::string& source_digest) {
  const std::string journal = absl::StrCat(partial_, "/", kJournalName);
  if (unlink(journal.c_str()) != 0) return ErrnoToStatus(errno, absl::StrCat("remove ", journal));
  RETURN_IF_ERROR(SyncFolder(partial_));
  RETURN_IF_ERROR(CheckTarget(out_dir_, force_));
  // A profile is there only if a run ended between exchange and removal: then it belongs to an older pack.
  RETURN_IF_ERROR(RemoveTree(absl::StrCat(partial_, "/", kProfileFolder)));
  const bool replaces = FileExists(absl::StrCat(out_dir_, "/", kManifestName));
  if (replaces) return Replace(source_digest);
  if (rename(partial_.c_str(), out_dir_.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("rename ", partial_, " to ", out_dir_));
  }
  return SyncFolder(ParentOf(out_dir_));
}

// Syncs everything before the rename makes it visible; the rename is durable once the parent folder is
// synced.
absl::StatusOr<uint64_t> Staging::Commit(Manifest* manifest, const ExtentTable& table,
                                         const std::map<std::string, std::string>& tokenizer_files) {
  for (const File& file : files_) RETURN_IF_ERROR(file.Sync());
  uint64_t bytes = 0;
  RETURN_IF_ERROR(WriteTables(manifest, table, tokenizer_files, &bytes));
  RETURN_IF_ERROR(Rename(manifest->provenance.source_digest));
  return bytes;
}

}  // namespace sluice
