#include "weightd/store/in_place_source.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/protocol/session_abi.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kBlock = kSegmentAlignment;
// Bytes that are copied from the page cache and arranged at once: both copies stay in a core's second cache.
constexpr uint64_t kCachedPiece = 128 << 10;

uint64_t AlignBlock(uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

// Memory for reads past the page cache, one for each reading thread. Grows only.
class ReadBuffer {
 public:
  std::byte* Of(uint64_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlock, bytes)));
      size_ = memory_ == nullptr ? 0 : bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  uint64_t size_ = 0;
};

}  // namespace

struct InPlaceSource::Model {
  std::unique_ptr<InPlacePayload> payload;
  std::vector<std::unique_ptr<ReadFile>> files;  // payload->files()
  std::vector<uint64_t> file_bytes;
  std::function<void(const std::string&)> report;
  mutable std::atomic<uint64_t> failures = 0;

  // The thread's buffer.
  static absl::StatusOr<std::byte*> BufferOf(uint64_t bytes) {
    thread_local ReadBuffer buffer;
    std::byte* const memory = buffer.Of(AlignBlock(bytes));
    if (memory != nullptr) return memory;
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a read of ", bytes, " bytes"));
  }

  // Reads whole blocks around the bytes, into the thread's buffer.
  absl::StatusOr<absl::Span<const std::byte>> Read(uint32_t file, uint64_t offset, uint64_t bytes) const {
    RETURN_IF_ERROR(payload->CheckUnchanged(file));
    const uint64_t first = offset / kBlock * kBlock;
    // The last block of a file may be cut short.
    const uint64_t end = std::min(AlignBlock(offset + bytes), file_bytes[file]);
    if (offset + bytes > end) {
      return absl::DataLossError(
          absl::StrCat(payload->files()[file], ": ends at ", end, ", before ", offset + bytes));
    }
    ASSIGN_OR_RETURN(std::byte* const to, BufferOf(end - first));
    RangeProgress progress(end - first);
    for (bool more = true; more;) {
      const uint64_t good = progress.range().good;
      const int64_t got = files[file]->ReadAt(to + good, AlignBlock(progress.left()), first + good);
      more = progress.Take(std::min<int64_t>(got, static_cast<int64_t>(progress.left())));
      if (progress.again() > 0) BackOff(progress.again());
    }
    RETURN_IF_ERROR(StatusOfRange(progress.range(), payload->files()[file], end - first, first));
    return absl::MakeConstSpan(to + (offset - first), bytes);
  }

  // The same from the page cache; Unavailable where it does not hold all of them.
  absl::StatusOr<absl::Span<const std::byte>> CopyCached(uint32_t file, uint64_t offset,
                                                         uint64_t bytes) const {
    RETURN_IF_ERROR(payload->CheckUnchanged(file));
    ASSIGN_OR_RETURN(std::byte* const to, BufferOf(bytes));
    if (files[file]->CopyCached(to, bytes, offset) == bytes) return absl::MakeConstSpan(to, bytes);
    return absl::UnavailableError("not in the page cache");
  }
};

namespace {

// A payload file of a pack in place.
template <typename Model>
class InPlaceFile final : public ReadFile {
 public:
  InPlaceFile(std::shared_ptr<const Model> model, PackFile file) : model_(std::move(model)), file_(file) {}

  int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) override {
    const absl::Status status = Fill(&Model::Read, dest, length, offset);
    if (status.ok()) return static_cast<int64_t>(length);
    // A lasting fault meets every request: the reason is logged ever more rarely.
    if (std::has_single_bit(model_->failures.fetch_add(1) + 1)) model_->report(std::string(status.message()));
    return absl::IsFailedPrecondition(status) ? -ESTALE : -EIO;
  }

  // An error is met again, and reported, by the ReadAt() that follows.
  uint64_t CopyCached(std::byte* dest, uint64_t length, uint64_t offset) override {
    uint64_t done = 0;
    while (done < length) {
      const uint64_t piece = std::min(kCachedPiece, length - done);
      if (!Fill(&Model::CopyCached, dest + done, piece, offset + done).ok()) break;
      done += piece;
    }
    return done;
  }

  std::string how() const override { return model_->files.front()->how(); }

 private:
  template <typename Method>
  absl::Status Fill(Method method, std::byte* dest, uint64_t length, uint64_t offset) const {
    return model_->payload->Read(file_, offset, absl::MakeSpan(dest, length),
                                 [this, method](uint32_t file, uint64_t at, uint64_t bytes) {
                                   return std::invoke(method, *model_, file, at, bytes);
                                 });
  }

  const std::shared_ptr<const Model> model_;
  const PackFile file_;
};

}  // namespace

InPlaceSource::InPlaceSource(std::unique_ptr<Pack> pack, std::shared_ptr<const Model> model,
                             std::unique_ptr<LearnedChecksums> checksums)
    : PackExtentSource(std::move(pack)), model_(std::move(model)), checksums_(std::move(checksums)) {}

absl::StatusOr<std::unique_ptr<InPlaceSource>> InPlaceSource::Open(
    std::unique_ptr<Pack> pack, const FileOpener& opener, std::function<void(const std::string&)> report) {
  auto model = std::make_shared<Model>();
  model->report = std::move(report);
  ASSIGN_OR_RETURN(model->payload, InPlacePayload::Open(*pack));
  for (const std::string& path : model->payload->files()) {
    ASSIGN_OR_RETURN(std::unique_ptr<ReadFile> file, opener(path));
    model->files.push_back(std::move(file));
    ASSIGN_OR_RETURN(const File sized, File::OpenForRead(path));
    ASSIGN_OR_RETURN(const uint64_t bytes, sized.Size());
    model->file_bytes.push_back(bytes);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<LearnedChecksums> checksums, LearnedChecksums::Open(*pack));
  return std::unique_ptr<InPlaceSource>(
      new InPlaceSource(std::move(pack), std::move(model), std::move(checksums)));
}

std::unique_ptr<ReadFile> InPlaceSource::OpenFile(uint32_t file) const {
  return std::make_unique<InPlaceFile<Model>>(model_, static_cast<PackFile>(file));
}

absl::Status InPlaceSource::Verify(uint32_t extent, uint64_t offset, std::span<const std::byte> bytes) const {
  return checksums_->Check(*pack(), extent, offset, absl::MakeConstSpan(bytes.data(), bytes.size()));
}

}  // namespace sluice::weightd
