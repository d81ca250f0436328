#include "pack/extent_table.h"

#include <array>
#include <cstring>

#include "common/status.h"

namespace sluice {
namespace {

constexpr uint32_t kExtentTableVersion = 1;

// Reads little-endian integers at fixed offsets; big-endian machines are refused at compile time
// (common/checksum.cc).
template <typename T>
T Load(absl::Span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <typename T>
void Store(T value, size_t at, std::string* out) {
  std::memcpy(out->data() + at, &value, sizeof(value));
}

absl::Status DamagedTable(const std::string& what) {
  return absl::DataLossError(absl::StrCat(kExtentTableName, ": ", what));
}

absl::Status CheckHeader(absl::Span<const std::byte> bytes) {
  if (bytes.size() < kExtentTableHeaderBytes) {
    return DamagedTable(absl::StrCat(bytes.size(), " bytes are too few for a header"));
  }
  if (std::memcmp(bytes.data(), kExtentTableMagic, 8) != 0)
    return DamagedTable("not an extent table (magic)");
  const uint32_t version = Load<uint32_t>(bytes, 8);
  if (version != kExtentTableVersion) {
    return absl::UnimplementedError(
        absl::StrCat(kExtentTableName, ": version ", version, " is not supported"));
  }
  if (Load<uint32_t>(bytes, 12) != kExtentTableHeaderBytes ||
      Load<uint32_t>(bytes, 16) != kExtentEntryBytes || Load<uint32_t>(bytes, 20) != kChecksumChunkBytes) {
    return DamagedTable("header, entry or chunk size is not that of version 1");
  }
  const uint64_t entries = Load<uint64_t>(bytes, 24);
  const uint64_t checksums = Load<uint64_t>(bytes, 32);
  // Counts are checked against the available bytes before they size any allocation, and by division, so that
  // no product can overflow.
  const uint64_t rest = bytes.size() - kExtentTableHeaderBytes;
  if (entries >= ExtentEntry::kNone || entries > rest / kExtentEntryBytes ||
      checksums != (rest - entries * kExtentEntryBytes) / 8 ||
      (rest - entries * kExtentEntryBytes) % 8 != 0) {
    return DamagedTable(
        absl::StrCat(entries, " entries and ", checksums, " checksums do not make ", bytes.size(), " bytes"));
  }
  for (size_t at = 40; at < kExtentTableHeaderBytes; ++at) {
    if (bytes[at] != std::byte{0})
      return DamagedTable(absl::StrCat("reserved header byte ", at, " is not zero"));
  }
  return absl::OkStatus();
}

ExtentEntry LoadEntry(absl::Span<const std::byte> bytes, size_t at) {
  ExtentEntry entry;
  entry.kind = static_cast<ExtentKind>(Load<uint8_t>(bytes, at));
  entry.file = Load<uint8_t>(bytes, at + 1);
  entry.stream = Load<uint16_t>(bytes, at + 2);
  entry.layer = Load<uint32_t>(bytes, at + 4);
  entry.expert = Load<uint32_t>(bytes, at + 8);
  entry.format = Load<uint32_t>(bytes, at + 12);
  entry.offset = Load<uint64_t>(bytes, at + 16);
  entry.length = Load<uint64_t>(bytes, at + 24);
  entry.first_checksum = Load<uint64_t>(bytes, at + 32);
  return entry;
}

}  // namespace

absl::StatusOr<ExtentTable> ParseExtentTable(absl::Span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckHeader(bytes));
  const uint64_t entries = Load<uint64_t>(bytes, 24);
  const uint64_t checksums = Load<uint64_t>(bytes, 32);
  ExtentTable table;
  table.entries.reserve(entries);
  // Extents fill their files without a gap, in the table's order. Readers rely on it, and it leaves no byte
  // of a file without a checksum.
  std::array<uint64_t, kPackFileCount> file_end = {};
  uint64_t next_checksum = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    const ExtentEntry entry = LoadEntry(bytes, kExtentTableHeaderBytes + i * kExtentEntryBytes);
    const auto bad = [i](const char* what) { return DamagedTable(absl::StrCat("entry ", i, ": ", what)); };
    if (entry.kind > ExtentKind::kExpert) return bad("unknown kind");
    if (entry.file >= kPackFileCount) return bad("unknown file");
    if (entry.length == 0 || entry.length % kExtentAlignment != 0)
      return bad("length is not a multiple of 4096");
    if (entry.offset != file_end[entry.file]) return bad("does not follow the extent before");
    if (__builtin_add_overflow(entry.offset, entry.length, &file_end[entry.file]))
      return bad("length overflows");
    if (entry.first_checksum != next_checksum) return bad("checksum index is not contiguous");
    if (ChecksumChunkCount(entry.length) > checksums - next_checksum) return bad("checksums are missing");
    next_checksum += ChecksumChunkCount(entry.length);
    table.entries.push_back(entry);
  }
  if (next_checksum != checksums) {
    return DamagedTable(
        absl::StrCat(checksums, " checksums, but the extents have ", next_checksum, " chunks"));
  }
  table.checksums.resize(checksums);
  std::memcpy(table.checksums.data(), bytes.data() + kExtentTableHeaderBytes + entries * kExtentEntryBytes,
              checksums * 8);
  return table;
}

std::string SerializeExtentTable(const ExtentTable& table) {
  const size_t entries_end = kExtentTableHeaderBytes + table.entries.size() * kExtentEntryBytes;
  std::string out(entries_end + table.checksums.size() * 8, '\0');
  std::memcpy(out.data(), kExtentTableMagic, 8);
  Store<uint32_t>(kExtentTableVersion, 8, &out);
  Store<uint32_t>(kExtentTableHeaderBytes, 12, &out);
  Store<uint32_t>(kExtentEntryBytes, 16, &out);
  Store<uint32_t>(kChecksumChunkBytes, 20, &out);
  Store<uint64_t>(table.entries.size(), 24, &out);
  Store<uint64_t>(table.checksums.size(), 32, &out);
  size_t at = kExtentTableHeaderBytes;
  for (const ExtentEntry& entry : table.entries) {
    Store<uint8_t>(static_cast<uint8_t>(entry.kind), at, &out);
    Store<uint8_t>(entry.file, at + 1, &out);
    Store<uint16_t>(entry.stream, at + 2, &out);
    Store<uint32_t>(entry.layer, at + 4, &out);
    Store<uint32_t>(entry.expert, at + 8, &out);
    Store<uint32_t>(entry.format, at + 12, &out);
    Store<uint64_t>(entry.offset, at + 16, &out);
    Store<uint64_t>(entry.length, at + 24, &out);
    Store<uint64_t>(entry.first_checksum, at + 32, &out);
    at += kExtentEntryBytes;
  }
  std::memcpy(out.data() + at, table.checksums.data(), table.checksums.size() * 8);
  return out;
}

}  // namespace sluice
