#include "inferd/forward/prefix_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

constexpr char kMagic[8] = {'S', 'L', 'P', 'R', 'E', 'F', 'I', 'X'};
constexpr uint32_t kVersion = 1;
constexpr size_t kDigestBytes = 16;

struct RawHead {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t identity[2];
  uint64_t secret[2];
  uint64_t page_bytes;
  uint64_t state_bytes;
  uint64_t pages;
  uint64_t states;
  uint64_t digest[2];
};
static_assert(sizeof(RawHead) == 96, "no padding");

struct RawRecord {
  uint64_t before[2];
  uint32_t position;
  uint32_t known;
  int32_t tokens[kPageTokens];
};
static_assert(sizeof(RawRecord) == 24 + kPageTokens * sizeof(int32_t), "no padding");

absl::Span<const std::byte> BytesOf(const RawHead& head, size_t size) {
  return {reinterpret_cast<const std::byte*>(&head), size};
}

Digest128 DigestOfHead(const RawHead& head) { return DigestOf(BytesOf(head, offsetof(RawHead, digest))); }

// Binds the digest to file and position, so that a record from another file or position does not match.
Digest128 DigestOfRecord(absl::Span<const std::byte> bytes, const Digest128& secret, uint64_t number) {
  Hasher128 hasher;
  hasher.UpdateU64(secret.high);
  hasher.UpdateU64(secret.low);
  hasher.UpdateU64(number);
  hasher.Update(bytes);
  return hasher.Finish();
}

// Other users must not read the file, which shows conversations, nor write it, which would decide tokens.
absl::Status CheckOwner(const File& file) {
  struct stat facts {};
  if (fstat(file.fd(), &facts) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("look at ", file.path()));
  }
  if (facts.st_uid != geteuid() || (facts.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        file.path(), ": it must be this user's alone (mode 0600) to be trusted with texts of clients"));
  }
  return absl::OkStatus();
}

uint64_t FileBytes(const PrefixFileHead& head) {
  return sizeof(RawHead) + head.pages * PrefixRecordBytes(head.page_bytes) +
         head.states * PrefixRecordBytes(head.state_bytes);
}

}  // namespace

absl::StatusOr<Digest128> PrefixFileIdentity(const std::string& cache) {
  ASSIGN_OR_RETURN(const File program, File::OpenForRead("/proc/self/exe"));
  ASSIGN_OR_RETURN(const uint64_t size, program.Size());
  Hasher128 hasher;
  hasher.UpdateSized(cache);
  std::vector<std::byte> buffer(1 << 20);
  for (uint64_t at = 0; at < size; at += buffer.size()) {
    const absl::Span<std::byte> part =
        absl::MakeSpan(buffer).first(std::min<uint64_t>(buffer.size(), size - at));
    RETURN_IF_ERROR(program.ReadAt(at, part));
    hasher.Update(part);
  }
  return hasher.Finish();
}

uint64_t PrefixRecordBytes(uint64_t content_bytes) {
  return sizeof(RawRecord) + content_bytes + kDigestBytes;
}

absl::StatusOr<PrefixFileWriter> PrefixFileWriter::Create(const std::string& path,
                                                          const PrefixFileHead& head) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());  // left by a process that died
  const int fd = open(fresh.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) {
    return ErrnoToStatus(errno, absl::StrCat("create ", fresh));
  }
  close(fd);
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(fresh));
  RETURN_IF_ERROR(file.Reserve(FileBytes(head)));
  RawHead raw{};
  std::memcpy(raw.magic, kMagic, sizeof(kMagic));
  raw.version = kVersion;
  raw.identity[0] = head.identity.high;
  raw.identity[1] = head.identity.low;
  raw.secret[0] = head.secret.high;
  raw.secret[1] = head.secret.low;
  raw.page_bytes = head.page_bytes;
  raw.state_bytes = head.state_bytes;
  raw.pages = head.pages;
  raw.states = head.states;
  const Digest128 digest = DigestOfHead(raw);
  raw.digest[0] = digest.high;
  raw.digest[1] = digest.low;
  RETURN_IF_ERROR(file.WriteAt(0, BytesOf(raw, sizeof(raw))));
  PrefixFileWriter writer(path, std::move(file), head.secret);
  writer.offset_ = sizeof(raw);
  return writer;
}

absl::Status PrefixFileWriter::Add(const PrefixRecord& record, absl::Span<const std::byte> content) {
  RawRecord raw{};
  raw.before[0] = record.before.high;
  raw.before[1] = record.before.low;
  raw.position = record.position;
  raw.known = record.known;
  std::copy(record.tokens.begin(), record.tokens.begin() + record.known, raw.tokens);
  buffer_.resize(PrefixRecordBytes(content.size()));
  std::memcpy(buffer_.data(), &raw, sizeof(raw));
  std::copy(content.begin(), content.end(), buffer_.begin() + sizeof(raw));
  const size_t end = sizeof(raw) + content.size();
  const Digest128 digest = DigestOfRecord(absl::MakeConstSpan(buffer_).first(end), secret_, number_++);
  std::memcpy(buffer_.data() + end, &digest.high, sizeof(digest.high));
  std::memcpy(buffer_.data() + end + sizeof(digest.high), &digest.low, sizeof(digest.low));
  RETURN_IF_ERROR(file_.WriteAt(offset_, buffer_));
  offset_ += buffer_.size();
  return absl::OkStatus();
}

absl::Status PrefixFileWriter::Finish() {
  RETURN_IF_ERROR(file_.Sync());
  if (rename(file_.path().c_str(), path_.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("rename ", file_.path(), " to ", path_));
  }
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

void PrefixFileWriter::Discard() { unlink(file_.path().c_str()); }

absl::StatusOr<PrefixFileReader> PrefixFileReader::Open(const std::string& path,
                                                        const PrefixFileHead& wanted) {
  ASSIGN_OR_RETURN(File file, File::OpenForRead(path));
  RETURN_IF_ERROR(CheckOwner(file));
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  RawHead raw{};
  if (size < sizeof(raw)) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, and no head"));
  }
  RETURN_IF_ERROR(file.ReadAt(0, {reinterpret_cast<std::byte*>(&raw), sizeof(raw)}));
  const Digest128 digest = DigestOfHead(raw);
  if (std::memcmp(raw.magic, kMagic, sizeof(kMagic)) != 0 || raw.version != kVersion ||
      digest != Digest128{raw.digest[0], raw.digest[1]}) {
    return absl::DataLossError(absl::StrCat(path, ": its head is no prefix file's of version ", kVersion));
  }
  const PrefixFileHead head{{raw.identity[0], raw.identity[1]},
                            {raw.secret[0], raw.secret[1]},
                            raw.page_bytes,
                            raw.state_bytes,
                            raw.pages,
                            raw.states};
  if (head.identity != wanted.identity || head.page_bytes != wanted.page_bytes ||
      head.state_bytes != wanted.state_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": made with another model, other options, another device or program"));
  }
  // Checked before the numbers are multiplied, against overflow.
  const bool absurd = head.pages > size || head.states > size;
  if (absurd || FileBytes(head) != size) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, not those of ", head.pages,
                                            " pages and ", head.states, " states"));
  }
  PrefixFileReader reader(std::move(file), head);
  reader.offset_ = sizeof(raw);
  return reader;
}

absl::Status PrefixFileReader::Next(PrefixRecord* record, std::vector<std::byte>* content) {
  const uint64_t number = number_++;
  const size_t bytes = number < head_.pages ? head_.page_bytes : head_.state_bytes;
  std::vector<std::byte>& buffer = *content;
  buffer.resize(PrefixRecordBytes(bytes));
  const uint64_t offset = std::exchange(offset_, offset_ + buffer.size());
  RETURN_IF_ERROR(file_.ReadAt(offset, absl::MakeSpan(buffer)));
  RawRecord raw{};
  std::memcpy(&raw, buffer.data(), sizeof(raw));
  const size_t end = sizeof(raw) + bytes;
  Digest128 stored;
  std::memcpy(&stored.high, buffer.data() + end, sizeof(stored.high));
  std::memcpy(&stored.low, buffer.data() + end + sizeof(stored.high), sizeof(stored.low));
  const Digest128 actual = DigestOfRecord(absl::MakeConstSpan(buffer).first(end), head_.secret, number);
  if (actual != stored || raw.known > kPageTokens) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": record ", number, " at byte ", offset,
                                            " is damaged: its digest is ", actual.ToHex(), ", but it says ",
                                            stored.ToHex()));
  }
  record->before = {raw.before[0], raw.before[1]};
  record->position = raw.position;
  record->known = raw.known;
  std::copy(std::begin(raw.tokens), std::end(raw.tokens), record->tokens.begin());
  buffer.erase(buffer.begin() + static_cast<std::ptrdiff_t>(end), buffer.end());
  buffer.erase(buffer.begin(), buffer.begin() + sizeof(raw));
  return absl::OkStatus();
}

}  // namespace sluice::inferd
