// VerifyPack: checks every digest and every checksum of a pack.
#include <algorithm>
#include <vector>

#include "common/checksum.h"
#include "common/file_io.h"
#include "common/status.h"
#include "pack/checksum.h"
#include "pack/pack.h"
#include "pack/writer/pack_writer.h"
#include "pack/writer/progress_meter.h"

namespace sluice {
namespace {

// Bytes read and checked at once: whole chunks.
constexpr uint64_t kReadBytes = 8 * kChecksumChunkBytes;

absl::Status VerifyPayload(const Pack& pack, uint32_t first, uint32_t last, PackFile which,
                           ProgressMeter* meter) {
  ASSIGN_OR_RETURN(const File file, File::OpenForRead(pack.file_path(which)));
  std::vector<std::byte> buffer;
  Hasher128 hasher;
  for (uint32_t extent = first; extent < last; ++extent) {
    const ExtentEntry& entry = pack.extents()[extent];
    for (uint64_t at = 0; at < entry.length; at += kReadBytes) {
      buffer.resize(std::min(kReadBytes, entry.length - at));
      const absl::Status read = file.ReadAt(entry.offset + at, absl::MakeSpan(buffer));
      if (!read.ok()) return Annotate(read, pack.ExtentName(extent));
      RETURN_IF_ERROR(VerifyChunks(pack, extent, at, buffer));
      RETURN_IF_ERROR(meter->Add(buffer.size()));
    }
    const absl::Span<const uint64_t> checksums = pack.checksums(extent);
    hasher.Update(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(checksums.data()), checksums.size() * 8));
  }
  // Each chunk matches its checksum; the manifest holds the digest of the checksums, so the chain ends at
  // model_id.
  if (hasher.Finish() != pack.manifest().payload[static_cast<size_t>(which)].digest) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": the digest of its checksums is not that of the manifest"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPack(const std::string& dir, const PackingProgressFn& progress,
                        const std::atomic<bool>* cancel) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  RETURN_IF_ERROR(pack->ReadTokenizerFiles().status());
  ProgressMeter meter(progress, cancel, "verifying", pack->dense_bytes() + pack->total_expert_bytes());
  RETURN_IF_ERROR(VerifyPayload(*pack, 0, pack->dense_extent_count(), PackFile::kDense, &meter));
  return VerifyPayload(*pack, pack->dense_extent_count(), pack->extent_count(), PackFile::kExperts, &meter);
}

}  // namespace sluice
