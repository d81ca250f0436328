#include "pack/in_place/in_place_checksums.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "pack/in_place/in_place_payload.h"
#include "pack/writer/parallel_units.h"

namespace sluice {
namespace {

constexpr char kFileName[] = "checksums.bin";
// Bytes read and checked at once: whole chunks.
constexpr uint64_t kReadBytes = 8 * kChecksumChunkBytes;

}  // namespace

absl::StatusOr<std::unique_ptr<LearnedChecksums>> LearnedChecksums::Open(const Pack& pack) {
  uint64_t count = 1;  // an empty file cannot be mapped
  for (const ExtentEntry& entry : pack.extents()) count += ChecksumChunkCount(entry.length);
  const auto bytes = static_cast<off_t>(count * sizeof(uint64_t));
  const std::string path = absl::StrCat(pack.dir(), "/", kFileName);
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return ErrnoToStatus(errno, path);
  if (info.st_size != bytes && ftruncate(fd.get(), 0) != 0) return ErrnoToStatus(errno, path);
  // Space is taken now: a full disk would end the process at a later write into the map.
  if (const int error = posix_fallocate(fd.get(), 0, bytes); error != 0) return ErrnoToStatus(error, path);
  void* const map =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (map == MAP_FAILED) return ErrnoToStatus(errno, path);
  return std::unique_ptr<LearnedChecksums>(
      new LearnedChecksums(static_cast<std::atomic<uint64_t>*>(map), static_cast<uint64_t>(bytes)));
}

LearnedChecksums::~LearnedChecksums() { munmap(sums_, bytes_); }

absl::Status LearnedChecksums::Check(const Pack& pack, uint32_t extent, uint64_t offset,
                                     absl::Span<const std::byte> bytes) {
  const ExtentEntry& entry = pack.extents()[extent];
  for (uint64_t at = 0; at < bytes.size(); at += kChecksumChunkBytes) {
    const uint64_t number = (offset + at) / kChecksumChunkBytes;
    const uint64_t sum =
        ChunkChecksum(entry.file, entry.offset + offset + at, bytes.subspan(at, kChecksumChunkBytes));
    uint64_t known = 0;
    std::atomic<uint64_t>& slot = sums_[entry.first_checksum + number];
    if (slot.compare_exchange_strong(known, sum, std::memory_order_relaxed) || known == sum) continue;
    return absl::DataLossError(absl::StrCat(pack.file_path(static_cast<PackFile>(entry.file)), ": chunk ",
                                            number, " of ", pack.ExtentName(extent),
                                            " is not what it was when it was first read"));
  }
  return absl::OkStatus();
}

absl::Status VerifyInPlace(const std::string& dir, const PackingProgressFn& progress,
                           const std::atomic<bool>* cancel) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(dir));
  RETURN_IF_ERROR(pack->ReadTokenizerFiles().status());
  ASSIGN_OR_RETURN(const std::unique_ptr<InPlaceReader> reader, InPlaceReader::Open(*pack));
  ASSIGN_OR_RETURN(const std::unique_ptr<LearnedChecksums> checksums, LearnedChecksums::Open(*pack));
  ProgressMeter meter(progress, cancel, "verifying", pack->dense_bytes() + pack->total_expert_bytes());
  std::vector<std::byte> buffer;
  for (uint32_t extent = 0; extent < pack->extent_count(); ++extent) {
    const ExtentEntry& entry = pack->extents()[extent];
    for (uint64_t at = 0; at < entry.length; at += kReadBytes) {
      buffer.resize(std::min(kReadBytes, entry.length - at));
      RETURN_IF_ERROR(
          reader->Read(static_cast<PackFile>(entry.file), entry.offset + at, absl::MakeSpan(buffer)));
      RETURN_IF_ERROR(checksums->Check(*pack, extent, at, buffer));
      RETURN_IF_ERROR(meter.Add(buffer.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
