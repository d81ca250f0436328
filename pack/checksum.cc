#include "pack/checksum.h"

#include "common/checksum.h"

namespace sluice {

absl::Status VerifyChunks(const Pack& pack, uint32_t extent, uint64_t offset,
                          absl::Span<const std::byte> bytes) {
  if (extent >= pack.extent_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("pack ", pack.dir(), " has ", pack.extent_count(), " extents, none is ", extent));
  }
  const ExtentEntry& entry = pack.extents()[extent];
  // The order of the two comparisons matters: `offset + size` could wrap around.
  const bool in_range = offset <= entry.length && bytes.size() <= entry.length - offset;
  const uint64_t end = offset + bytes.size();
  if (!in_range || offset % kChecksumChunkBytes != 0 ||
      (end != entry.length && end % kChecksumChunkBytes != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("bytes ", offset, " to ", end, " of ",
                                                   pack.ExtentName(extent), " (", entry.length,
                                                   " bytes) are not whole chunks"));
  }
  const absl::Span<const uint64_t> expected = pack.checksums(extent);
  for (uint64_t at = 0; at < bytes.size(); at += kChecksumChunkBytes) {
    const absl::Span<const std::byte> chunk = bytes.subspan(at, kChecksumChunkBytes);
    const uint64_t number = (offset + at) / kChecksumChunkBytes;
    const uint64_t file_offset = entry.offset + offset + at;
    if (ChunkChecksum(entry.file, file_offset, chunk) != expected[number]) {
      return absl::DataLossError(absl::StrCat("pack ", pack.dir(), ": ", pack.ExtentName(extent), ": chunk ",
                                              number, " (", chunk.size(), " bytes at offset ", file_offset,
                                              " of ", kPackFileNames[entry.file],
                                              ") does not match its checksum"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
