#include "pack/writer/staging.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "common/base/checksum.h"
#include "common/base/status.h"
#include "pack/pack.h"
#include "pack/pack_tables.h"

namespace sluice {
namespace {

constexpr char kMagic[9] = "SLUICEJL";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 32;
constexpr uint64_t kRecordHeaderBytes = 16;
// Maximum size: the journal of a terabyte pack is below 40 MB.
constexpr uint64_t kMaxJournalBytes = 4ull << 30;
// Records are checked with the function of payload checksums, seeded as a file of their own: a record at
// another offset, or a chunk of a pack, fails the check.
constexpr uint8_t kJournalFileNumber = 255;

void Put(std::string* out, const void* data, size_t bytes) {
  out->append(static_cast<const char*>(data), bytes);
}

std::string Header(const Digest128& fingerprint) {
  std::string header(kMagic, 8);
  const uint32_t words[2] = {kVersion, 0};
  Put(&header, words, sizeof(words));
  const uint64_t digest[2] = {fingerprint.high, fingerprint.low};
  Put(&header, digest, sizeof(digest));
  return header;
}

std::string Serialize(const JournalRecord& record, uint64_t offset) {
  std::string out;
  const uint32_t head[4] = {record.unit, static_cast<uint32_t>(record.checksums.size()),
                            static_cast<uint32_t>(record.digests.size()), 0};
  Put(&out, head, sizeof(head));
  Put(&out, record.checksums.data(), record.checksums.size() * 8);
  for (const Digest128& digest : record.digests) {
    const uint64_t words[2] = {digest.high, digest.low};
    Put(&out, words, sizeof(words));
  }
  const uint64_t check =
      ChunkChecksum(kJournalFileNumber, offset,
                    absl::MakeConstSpan(reinterpret_cast<const std::byte*>(out.data()), out.size()));
  Put(&out, &check, sizeof(check));
  return out;
}

uint64_t LoadU64(absl::Span<const std::byte> bytes, uint64_t at) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Reads the record at `at` and moves `at` behind it. False if it is torn or damaged, as at the end of an
// interrupted run's journal: the records before it stay valid.
bool ParseRecord(absl::Span<const std::byte> bytes, uint64_t* at, JournalRecord* record) {
  const uint64_t left = bytes.size() - *at;
  if (left < kRecordHeaderBytes + 8) return false;
  uint32_t head[4];
  std::memcpy(head, bytes.data() + *at, sizeof(head));
  const uint64_t body = kRecordHeaderBytes + uint64_t{8} * head[1] + uint64_t{16} * head[2];
  if (body > left - 8) return false;
  if (ChunkChecksum(kJournalFileNumber, *at, bytes.subspan(*at, body)) != LoadU64(bytes, *at + body))
    return false;
  record->unit = head[0];
  uint64_t location = *at + kRecordHeaderBytes;
  for (uint32_t i = 0; i < head[1]; ++i, location += 8) record->checksums.push_back(LoadU64(bytes, location));
  for (uint32_t i = 0; i < head[2]; ++i, location += 16) {
    record->digests.push_back({LoadU64(bytes, location), LoadU64(bytes, location + 8)});
  }
  *at += body + 8;
  return true;
}

}  // namespace

std::vector<JournalRecord> ParseJournal(absl::Span<const std::byte> bytes, const Digest128& fingerprint,
                                        uint64_t* valid_bytes) {
  std::vector<JournalRecord> records;
  *valid_bytes = 0;
  const std::string header = Header(fingerprint);
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), header.data(), kHeaderBytes) != 0)
    return records;
  uint64_t at = kHeaderBytes;
  for (JournalRecord record; ParseRecord(bytes, &at, &record); record = {})
    records.push_back(std::move(record));
  *valid_bytes = at;
  return records;
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& folder,
                                                       const Digest128& fingerprint) {
  const std::string path = absl::StrCat(folder, "/", kJournalName);
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(path));
  // The journal's lock protects the folder: two conversions in it would overwrite each other's files.
  if (flock(file.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::UnavailableError(absl::StrCat(folder, ": another conversion is writing here"));
    }
    return ErrnoToStatus(errno, absl::StrCat("lock ", path));
  }
  ASSIGN_OR_RETURN(const std::string content, ReadFile(path, kMaxJournalBytes));
  uint64_t valid = 0;
  std::vector<JournalRecord> found =
      ParseJournal(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(content.data()), content.size()),
                   fingerprint, &valid);
  // A torn record is cut off, else the next one would be appended behind it and never be found. A journal of
  // other input (another fingerprint) has no valid record and begins anew.
  RETURN_IF_ERROR(file.Truncate(valid));
  if (valid == 0) {
    const std::string header = Header(fingerprint);
    RETURN_IF_ERROR(file.WriteAt(
        0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(header.data()), header.size())));
    valid = header.size();
  }
  return std::unique_ptr<Journal>(new Journal(std::move(file), std::move(found), valid));
}

absl::Status Journal::Append(const JournalRecord& record) {
  MutexLock lock(&mutex_);
  const std::string bytes = Serialize(record, end_);
  RETURN_IF_ERROR(file_.WriteAt(
      end_, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size())));
  end_ += bytes.size();
  return absl::OkStatus();
}

namespace {

// Four chunks a write: large enough to hide the cost of system calls, small enough for the cache.
constexpr uint64_t kBufferBytes = 4 * kChecksumChunkBytes;

}  // namespace

ExtentWriter::ExtentWriter(const File& file, const ExtentEntry& entry) : file_(file), entry_(entry) {
  buffer_.reserve(std::min(kBufferBytes, entry.length));
  checksums_.reserve(ChecksumChunkCount(entry.length));
}

absl::Status ExtentWriter::Append(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const absl::Span<const std::byte> part =
        bytes.first(std::min<uint64_t>(bytes.size(), kBufferBytes - buffer_.size()));
    buffer_.insert(buffer_.end(), part.begin(), part.end());
    position_ += part.size();
    bytes.remove_prefix(part.size());
    if (buffer_.size() == kBufferBytes) RETURN_IF_ERROR(Flush());
  }
  return absl::OkStatus();
}

absl::Status ExtentWriter::PadTo(uint64_t position) {
  static constexpr std::byte kZeros[4096] = {};
  while (position_ < position) {
    RETURN_IF_ERROR(
        Append(absl::MakeConstSpan(kZeros).first(std::min<uint64_t>(sizeof(kZeros), position - position_))));
  }
  return absl::OkStatus();
}

absl::Status ExtentWriter::Finish() {
  RETURN_IF_ERROR(PadTo(entry_.length));
  return Flush();
}

absl::Status ExtentWriter::Flush() {
  // Buffers are whole chunks except the last, so that each checksum is computed while its bytes are in the
  // cache.
  const uint64_t file_offset = entry_.offset + position_ - buffer_.size();
  const absl::Span<const std::byte> bytes = absl::MakeConstSpan(buffer_);
  for (uint64_t at = 0; at < bytes.size(); at += kChecksumChunkBytes) {
    checksums_.push_back(
        ChunkChecksum(entry_.file, file_offset + at, bytes.subspan(at, kChecksumChunkBytes)));
  }
  RETURN_IF_ERROR(file_.WriteAt(file_offset, bytes));
  buffer_.clear();
  return absl::OkStatus();
}

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
  const uint64_t payload = std::accumulate(payload_bytes.begin(), payload_bytes.end(), uint64_t{0});
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
    if (payload_bytes[f] == 0 && static_cast<PackFile>(f) == PackFile::kRows) continue;
    staging->used_[f] = true;
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
    if (!used_[f]) continue;
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
  for (int f = 0; f < kPackFileCount; ++f) {
    if (used_[f]) RETURN_IF_ERROR(files_[f].Sync());
  }
  uint64_t bytes = 0;
  RETURN_IF_ERROR(WriteTables(manifest, table, tokenizer_files, &bytes));
  RETURN_IF_ERROR(Rename(manifest->provenance.source_digest));
  return bytes;
}

}  // namespace sluice
