#include "pack/writer/journal.h"

#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/status.h"

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

}  // namespace sluice
