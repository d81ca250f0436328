// Measures the disk's rate with weightd's own reader and request pattern.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/plan/host_rates.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/ring/unique_fd.h"
#include "common/status.h"
#include "weightd/io/pread_reader.h"
#include "weightd/io/uring_reader.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kDiskBlock = 4096;
constexpr uint64_t kScratchBytes = 256ull << 20;
constexpr uint64_t kLeastBytes = 2ull << 20;
// Larger extents are read in pieces anyhow.
constexpr uint64_t kLargestRequest = 16ull << 20;
// Buffers, used in turn: a virtual disk copies faster into a few that stay in the cache.
constexpr uint64_t kBufferBytes = 64ull << 20;
constexpr absl::Duration kMeasure = absl::Milliseconds(600);

std::unique_ptr<weightd::BlockReader> MakeReader(const Clock* clock, bool direct) {
  const weightd::FileOpener opener = [direct](const std::string& path) {
    return weightd::OpenReadFile(path, direct);
  };
  absl::StatusOr<std::unique_ptr<weightd::ReadRing>> ring =
      weightd::MakeReadRing(weightd::UringReader::kDepth);
  if (ring.ok()) {
    weightd::UringReader::Options options;
    options.opener = opener;
    options.ring = *std::move(ring);
    options.clock = clock;
    return std::make_unique<weightd::UringReader>(std::move(options));
  }
  weightd::PreadReader::Options options;
  options.opener = opener;
  options.clock = clock;
  return std::make_unique<weightd::PreadReader>(std::move(options));
}

// Requests that are always in flight, until time is up.
class RandomReads {
 public:
  RandomReads(uint64_t file_bytes, uint64_t length)
      : file_bytes_(file_bytes), length_(length), reader_(MakeReader(&clock_, /*direct=*/true)) {}
  ~RandomReads() {
    reader_.reset();
    if (buffers_ != nullptr) munmap(buffers_, count_ * length_);
  }
  RandomReads(const RandomReads&) = delete;
  RandomReads& operator=(const RandomReads&) = delete;

  absl::StatusOr<double> Measure(const std::string& path) {
    count_ = std::max<uint64_t>(2, kBufferBytes / length_);
    void* buffers =
        mmap(nullptr, count_ * length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffers == MAP_FAILED)
      return ErrnoToStatus(errno, absl::StrCat("mapping ", count_ * length_, " bytes"));
    buffers_ = static_cast<std::byte*>(buffers);
    madvise(buffers_, count_ * length_, MADV_HUGEPAGE);
    std::fill(buffers_, buffers_ + count_ * length_, std::byte{1});
    reader_->SetSink([this](weightd::ReadResult result) {
      const MutexLock lock(&mutex_);
      if (!result.status.ok()) status_ = result.status;
      bytes_ += result.bytes_read;
      free_.push_back(result.tag);
      ended_.Signal();
    });
    ASSIGN_OR_RETURN(file_, reader_->Register(path));
    const absl::Time start = absl::Now();
    for (uint64_t tag = 0; tag < count_; ++tag) Submit(tag);
    while (absl::Now() < start + kMeasure) {
      ASSIGN_OR_RETURN(const uint64_t tag, Ended());
      Submit(tag);
    }
    for (uint64_t left = count_; left > 0; --left) RETURN_IF_ERROR(Ended().status());
    const MutexLock lock(&mutex_);
    return static_cast<double>(bytes_) / absl::ToDoubleSeconds(absl::Now() - start);
  }

 private:
  void Submit(uint64_t tag) {
    weightd::ReadJob job;
    job.tag = tag;
    job.file = file_;
    job.offset = random_() % ((file_bytes_ - length_) / kDiskBlock + 1) * kDiskBlock;
    job.dest = buffers_ + tag * length_;
    job.length = length_;
    // As much work as the check of what was packed.
    job.check = [](uint64_t at, std::span<const std::byte> bytes) {
      return ChunkChecksum(0, at, bytes) == 0 ? absl::DataLossError("a checksum of zero") : absl::OkStatus();
    };
    job.sole = true;
    reader_->Submit(std::move(job));
  }

  absl::StatusOr<uint64_t> Ended() {
    const MutexLock lock(&mutex_);
    while (free_.empty()) ended_.Wait(&mutex_);
    RETURN_IF_ERROR(status_);
    const uint64_t tag = free_.front();
    free_.pop_front();
    return tag;
  }

  const uint64_t file_bytes_;
  const uint64_t length_;
  const MonotonicClock clock_;
  std::mt19937_64 random_{1};
  uint64_t count_ = 0;
  std::byte* buffers_ = nullptr;
  int file_ = 0;
  Mutex mutex_;
  CondVar ended_;
  std::deque<uint64_t> free_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<weightd::BlockReader> reader_;  // last: its threads use the others
};

}  // namespace

absl::StatusOr<double> MeasureDisk(const std::string& path, uint64_t read_bytes) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoToStatus(errno, path);
  const uint64_t bytes = static_cast<uint64_t>(info.st_size);
  if (bytes < kLeastBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes, " bytes are too few to measure a disk by"));
  }
  const uint64_t most = std::min(kLargestRequest, bytes / 2);
  const uint64_t length = std::clamp(read_bytes, kDiskBlock, most) / kDiskBlock * kDiskBlock;
  return RandomReads(bytes, length).Measure(path);
}

absl::StatusOr<double> MeasureFolder(const std::string& folder, uint64_t read_bytes) {
  std::string path = absl::StrCat(folder, "/.sluice-plan-XXXXXX");
  const UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, absl::StrCat("making a file in ", folder));
  const absl::Cleanup remove = [&path] { unlink(path.c_str()); };
  std::vector<uint64_t> noise((4 << 20) / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at < kScratchBytes; at += 4 << 20) {
    for (uint64_t& word : noise) word = random();
    if (pwrite(fd.get(), noise.data(), 4 << 20, static_cast<off_t>(at)) != 4 << 20) {
      return ErrnoToStatus(errno == 0 ? ENOSPC : errno,
                           absl::StrCat("writing ", kScratchBytes, " bytes in ", folder));
    }
  }
  if (fdatasync(fd.get()) != 0) return ErrnoToStatus(errno, path);
  return MeasureDisk(path, read_bytes);
}

}  // namespace sluice::cli
