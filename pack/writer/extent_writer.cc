#include "pack/writer/extent_writer.h"

#include <algorithm>

#include "common/checksum.h"
#include "common/status.h"

namespace sluice {
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

}  // namespace sluice
