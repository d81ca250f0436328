#include "inferd/forward/prefix_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
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
constexpr uint32_t kVersion = 2;
constexpr uint64_t kMaxPageSlots = 1 << 16;  // two million tokens

struct RawHead {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t identity[2];
  uint64_t secret[2];
  uint64_t page_bytes;
  uint64_t state_bytes;
  uint64_t page_slots;
  uint64_t state_slots;
  uint64_t digest[2];
};
static_assert(sizeof(RawHead) == 96, "no padding");

struct RawRecord {
  uint64_t digest[2];
  uint64_t stamp;
  uint64_t before[2];
  uint32_t position;
  uint32_t known;
  int32_t tokens[kPageTokens];
};
static_assert(sizeof(RawRecord) == 48 + kPageTokens * sizeof(int32_t), "no padding");

absl::Span<const std::byte> BytesOf(const RawHead& head, size_t size) {
  return {reinterpret_cast<const std::byte*>(&head), size};
}

Digest128 DigestOfHead(const RawHead& head) { return DigestOf(BytesOf(head, offsetof(RawHead, digest))); }

// Binds the digest to file and slot, so that a record from another file or slot does not match. `bytes`: a
// whole record.
Digest128 DigestOfRecord(absl::Span<const std::byte> bytes, const Digest128& secret, uint64_t slot) {
  Hasher128 hasher;
  hasher.UpdateU64(secret.high);
  hasher.UpdateU64(secret.low);
  hasher.UpdateU64(slot);
  hasher.Update(bytes.subspan(sizeof(RawRecord::digest)));
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
  return sizeof(RawHead) + head.page_slots * PrefixRecordBytes(head.page_bytes) +
         head.state_slots * PrefixRecordBytes(head.state_bytes);
}

// Locks the file for this process; the lock ends with it.
absl::Status Lock(const File& file) {
  if (flock(file.fd(), LOCK_EX | LOCK_NB) == 0) {
    return absl::OkStatus();
  }
  return errno == EWOULDBLOCK
             ? absl::UnavailableError(absl::StrCat(file.path(), ": another process has it open"))
             : ErrnoToStatus(errno, absl::StrCat("lock ", file.path()));
}

RawHead RawHeadOf(const PrefixFileHead& head) {
  RawHead raw{};
  std::memcpy(raw.magic, kMagic, sizeof(kMagic));
  raw.version = kVersion;
  raw.identity[0] = head.identity.high;
  raw.identity[1] = head.identity.low;
  raw.secret[0] = head.secret.high;
  raw.secret[1] = head.secret.low;
  raw.page_bytes = head.page_bytes;
  raw.state_bytes = head.state_bytes;
  raw.page_slots = head.page_slots;
  raw.state_slots = head.state_slots;
  const Digest128 digest = DigestOfHead(raw);
  raw.digest[0] = digest.high;
  raw.digest[1] = digest.low;
  return raw;
}

// Reads the head and checks it against the file's size.
absl::StatusOr<PrefixFileHead> ReadHead(const File& file) {
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  RawHead raw{};
  if (size < sizeof(raw)) {
    return absl::DataLossError(absl::StrCat(file.path(), ": has ", size, " bytes, and no head"));
  }
  RETURN_IF_ERROR(file.ReadAt(0, {reinterpret_cast<std::byte*>(&raw), sizeof(raw)}));
  const Digest128 digest = DigestOfHead(raw);
  if (std::memcmp(raw.magic, kMagic, sizeof(kMagic)) != 0 || raw.version != kVersion ||
      digest != Digest128{raw.digest[0], raw.digest[1]}) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": its head is no prefix file's of version ", kVersion));
  }
  const PrefixFileHead head{{raw.identity[0], raw.identity[1]},
                            {raw.secret[0], raw.secret[1]},
                            raw.page_bytes,
                            raw.state_bytes,
                            raw.page_slots,
                            raw.state_slots};
  // Checked before the numbers are multiplied, against overflow.
  const bool absurd = head.page_slots > size || head.state_slots > size;
  if (absurd || FileBytes(head) != size) {
    return absl::DataLossError(absl::StrCat(file.path(), ": has ", size, " bytes, not those of ",
                                            head.page_slots, " pages and ", head.state_slots, " states"));
  }
  return head;
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

uint64_t PrefixRecordBytes(uint64_t content_bytes) { return sizeof(RawRecord) + content_bytes; }

void DivideSlots(uint64_t limit, uint64_t states, PrefixFileHead* head) {
  const uint64_t state_record = PrefixRecordBytes(head->state_bytes);
  head->state_slots = std::min(states, limit / 4 / state_record);
  head->page_slots = std::min(
      kMaxPageSlots, (limit - head->state_slots * state_record) / PrefixRecordBytes(head->page_bytes));
}

absl::StatusOr<PrefixFile> PrefixFile::Open(const std::string& path, const PrefixFileHead& wanted) {
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrCat(path, ": there is no such file"));
  }
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(path));
  RETURN_IF_ERROR(CheckOwner(file));
  RETURN_IF_ERROR(Lock(file));
  ASSIGN_OR_RETURN(const PrefixFileHead head, ReadHead(file));
  if (head.identity != wanted.identity || head.page_bytes != wanted.page_bytes ||
      head.state_bytes != wanted.state_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": made with another model, other options, another device or program"));
  }
  return PrefixFile(path, std::move(file), head);
}

absl::StatusOr<PrefixFile> PrefixFile::Create(const std::string& path, const PrefixFileHead& head) {
  if (FileExists(path)) {
    ASSIGN_OR_RETURN(const File old, File::OpenForRead(path));
    RETURN_IF_ERROR(Lock(old));
  }
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());  // left by a process that died
  const int fd = open(fresh.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) {
    return ErrnoToStatus(errno, absl::StrCat("create ", fresh));
  }
  close(fd);
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(fresh));
  RETURN_IF_ERROR(Lock(file));
  RETURN_IF_ERROR(file.Truncate(FileBytes(head)));
  RETURN_IF_ERROR(file.WriteAt(0, BytesOf(RawHeadOf(head), sizeof(RawHead))));
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("rename ", fresh, " to ", path));
  }
  return PrefixFile(path, std::move(file), head);
}

uint64_t PrefixFile::OffsetOf(uint64_t slot) const {
  const uint64_t pages = std::min(slot, head_.page_slots);
  return sizeof(RawHead) + pages * PrefixRecordBytes(head_.page_bytes) +
         (slot - pages) * PrefixRecordBytes(head_.state_bytes);
}

absl::StatusOr<std::vector<uint64_t>> PrefixFile::Stamps(uint64_t first, uint64_t count) const {
  std::vector<uint64_t> stamps(count);
  for (uint64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(file_.ReadAt(OffsetOf(first + i) + offsetof(RawRecord, stamp),
                                 {reinterpret_cast<std::byte*>(&stamps[i]), sizeof(stamps[i])}));
  }
  return stamps;
}

absl::Status PrefixFile::Read(uint64_t slot, PrefixRecord* record, std::vector<std::byte>* content) const {
  std::vector<std::byte>& buffer = *content;
  buffer.resize(PrefixRecordBytes(ContentBytes(slot)));
  RETURN_IF_ERROR(file_.ReadAt(OffsetOf(slot), absl::MakeSpan(buffer)));
  RawRecord raw{};
  std::memcpy(&raw, buffer.data(), sizeof(raw));
  const Digest128 stored{raw.digest[0], raw.digest[1]};
  const Digest128 actual = DigestOfRecord(buffer, head_.secret, slot);
  if (actual != stored || raw.known > kPageTokens) {
    return absl::DataLossError(absl::StrCat(path_, ": slot ", slot, " at byte ", OffsetOf(slot),
                                            " is damaged: its digest is ", actual.ToHex(), ", but it says ",
                                            stored.ToHex()));
  }
  record->stamp = raw.stamp;
  record->before = {raw.before[0], raw.before[1]};
  record->position = raw.position;
  record->known = raw.known;
  std::copy(std::begin(raw.tokens), std::end(raw.tokens), record->tokens.begin());
  buffer.erase(buffer.begin(), buffer.begin() + sizeof(raw));
  return absl::OkStatus();
}

absl::Status PrefixFile::Write(uint64_t slot, const PrefixRecord& record,
                               absl::Span<const std::byte> content) {
  RawRecord raw{};
  raw.stamp = record.stamp;
  raw.before[0] = record.before.high;
  raw.before[1] = record.before.low;
  raw.position = record.position;
  raw.known = record.known;
  std::copy(record.tokens.begin(), record.tokens.begin() + record.known, raw.tokens);
  buffer_.resize(PrefixRecordBytes(content.size()));
  std::memcpy(buffer_.data(), &raw, sizeof(raw));
  std::copy(content.begin(), content.end(), buffer_.begin() + sizeof(raw));
  const Digest128 digest = DigestOfRecord(buffer_, head_.secret, slot);
  raw.digest[0] = digest.high;
  raw.digest[1] = digest.low;
  std::memcpy(buffer_.data(), raw.digest, sizeof(raw.digest));
  return file_.WriteAt(OffsetOf(slot), buffer_);
}

void PrefixSlots::Reset(uint32_t entries) {
  for (const uint64_t slot : slot_of_) {
    if (slot != kNone) {
      free_.push_back(slot);
    }
  }
  slot_of_.assign(entries, kNone);
  queued_.assign(entries, 0);
  queue_.clear();
}

void PrefixSlots::Changed(uint32_t entry) {
  if (queued_[entry] == 0) {
    queued_[entry] = 1;
    queue_.push_back(entry);
  }
}

void PrefixSlots::Forget(uint32_t entry) {
  if (slot_of_[entry] != kNone) {
    free_.push_back(slot_of_[entry]);
    slot_of_[entry] = kNone;
  }
  if (queued_[entry] != 0) {
    queued_[entry] = 0;
    queue_.erase(std::find(queue_.begin(), queue_.end(), entry));
  }
}

std::optional<uint32_t> PrefixSlots::Next() {
  if (queue_.empty()) {
    return std::nullopt;
  }
  const uint32_t entry = queue_.front();
  queue_.pop_front();
  queued_[entry] = 0;
  return entry;
}

std::optional<uint64_t> PrefixSlots::SlotFor(uint32_t entry, absl::Span<const uint32_t> victims) {
  if (HasSlot(entry)) {
    return slot_of_[entry];
  }
  if (!free_.empty()) {
    slot_of_[entry] = free_.front();
    free_.pop_front();
    return slot_of_[entry];
  }
  const auto victim = std::find_if(victims.begin(), victims.end(),
                                   [&](uint32_t other) { return other != entry && HasSlot(other); });
  if (victim == victims.end()) {
    return std::nullopt;
  }
  slot_of_[entry] = std::exchange(slot_of_[*victim], kNone);
  return slot_of_[entry];
}

uint64_t PrefixSlots::assigned() const {
  return slot_of_.size() - static_cast<uint64_t>(std::count(slot_of_.begin(), slot_of_.end(), kNone));
}

}  // namespace sluice::inferd
