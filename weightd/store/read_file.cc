#include "weightd/store/read_file.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/protocol/session_abi.h"

namespace sluice::weightd {
namespace {

constexpr uint64_t kBlock = kSegmentAlignment;
// Linux 6.1's statx bit; glibc 2.36's headers may lack it.
constexpr unsigned kStatxDioalign = 0x2000;

// struct statx up to the DIO fields (linux/stat.h of 6.1), for headers that end before them.
struct StatxDio {
  uint32_t mask;
  uint32_t before[37];  // everything up to stx_dio_mem_align, at byte 152
  uint32_t mem_align;
  uint32_t offset_align;
  uint64_t after[12];
};
static_assert(offsetof(StatxDio, mem_align) == 152 && sizeof(StatxDio) == 256);

// Copies of what the page cache holds of a file. mincore(2) is asked first, over a mapping that nobody
// touches: reads by RWF_NOWAIT alone start a read-ahead of absent pages into the page cache.
class PageCache {
 public:
  // Null if this process cannot learn which pages are cached.
  static std::unique_ptr<PageCache> Open(const std::string& path) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (!fd.valid() || fstat(fd.get(), &info) != 0 || !TellsPages(path, info)) {
      return nullptr;
    }
    const auto bytes = static_cast<uint64_t>(info.st_size);
    void* const map = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd.get(), 0);
    if (map == MAP_FAILED) return nullptr;  // of an empty file, too
    std::unique_ptr<PageCache> cache(new PageCache(std::move(fd), static_cast<std::byte*>(map), bytes));
    unsigned char first = 0;
    return mincore(map, 1, &first) == 0 ? std::move(cache) : nullptr;  // a sandbox may refuse it
  }
  ~PageCache() { munmap(map_, bytes_); }
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  uint64_t Copy(std::byte* dest, uint64_t length, uint64_t offset) const {
    const uint64_t cached = Prefix(length, offset);
    uint64_t done = 0;
    while (done < cached) {
      const iovec to{dest + done, cached - done};
      // Without RWF_NOWAIT a page that was evicted since would be waited for.
      const ssize_t got = preadv2(fd_.get(), &to, 1, static_cast<off_t>(offset + done), RWF_NOWAIT);
      if (got <= 0) break;
      done += static_cast<uint64_t>(got);
    }
    return done == length ? done : done / kBlock * kBlock;
  }

 private:
  PageCache(UniqueFd fd, std::byte* map, uint64_t bytes) : fd_(std::move(fd)), map_(map), bytes_(bytes) {}

  // To others mincore(2) reports every page as cached.
  static bool TellsPages(const std::string& path, const struct stat& info) {
    return info.st_uid == geteuid() || faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
  }

  // Number of leading bytes of the range whose pages are cached, as a multiple of pages but for the range's
  // end. The first page is looked up alone: absent ranges cost no more.
  uint64_t Prefix(uint64_t length, uint64_t offset) const {
    const uint64_t end = std::min(offset + length, bytes_);
    std::array<unsigned char, 256> pages;
    uint64_t at = offset / kBlock * kBlock;
    for (uint64_t most = 1; at < end; most = pages.size()) {
      const uint64_t count = std::min(most, (end - at + kBlock - 1) / kBlock);
      if (mincore(map_ + at, count * kBlock, pages.data()) != 0) break;
      uint64_t cached = 0;
      while (cached < count && (pages[cached] & 1) != 0) ++cached;
      at += cached * kBlock;
      if (cached < count) break;
    }
    return std::min(at, end) - std::min({offset, at, end});
  }

  const UniqueFd fd_;
  std::byte* const map_;  // PROT_NONE
  const uint64_t bytes_;
};

class OsReadFile final : public ReadFile {
 public:
  // `cache` may be null.
  OsReadFile(UniqueFd fd, std::string how, std::unique_ptr<const PageCache> cache)
      : fd_(std::move(fd)), how_(std::move(how)), cache_(std::move(cache)) {}
  int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) override {
    const ssize_t got = pread(fd_.get(), dest, length, static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
  }
  uint64_t CopyCached(std::byte* dest, uint64_t length, uint64_t offset) override {
    return cache_ == nullptr ? 0 : cache_->Copy(dest, length, offset);
  }
  std::string how() const override { return how_; }
  int fd() const override { return fd_.get(); }

 private:
  const UniqueFd fd_;
  const std::string how_;
  const std::unique_ptr<const PageCache> cache_;
};

// The reason why this descriptor cannot be read in 4096-byte units past the page cache; empty if it can.
std::string DirectRefusal(int fd) {
  StatxDio info{};
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, kStatxDioalign, &info) == 0 &&
      (info.mask & kStatxDioalign) != 0) {
    if (info.offset_align == 0) {
      return "the file system has no direct reads";
    }
    if (info.offset_align > kBlock || info.mem_align > kBlock) {
      return absl::StrCat("direct reads need ", info.offset_align, "/", info.mem_align, "-byte alignment");
    }
  }
  std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBlock, kBlock), &std::free);
  ssize_t got;
  do {
    got = pread(fd, block.get(), kBlock, 0);
  } while (got < 0 && errno == EINTR);
  return got < 0 ? absl::StrCat("a trial read failed, errno ", errno) : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadFile>> OpenReadFile(const std::string& path, bool direct) {
  std::string how = "buffered (asked for)";
  if (direct) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
    if (fd.valid()) {
      const std::string refusal = DirectRefusal(fd.get());
      if (refusal.empty()) {
        return std::make_unique<OsReadFile>(std::move(fd), "O_DIRECT", PageCache::Open(path));
      }
      how = absl::StrCat("buffered (", refusal, ")");
    } else if (errno == EINVAL) {
      how = "buffered (the file system refuses O_DIRECT)";
    } else {
      return ErrnoToStatus(errno, path);
    }
  }
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, path);
  }
  return std::make_unique<OsReadFile>(std::move(fd), how, nullptr);
}

bool RangeProgress::End(ReadOutcome outcome, int error_number) {
  range_.outcome = outcome;
  range_.error_number = error_number;
  return false;
}

bool RangeProgress::Take(int64_t got) {
  again_ = 0;
  if (got == -EINTR || got == -EAGAIN) {
    if (++retries_ > kMaxReadRetries) {
      return End(ReadOutcome::kIoError, static_cast<int>(-got));
    }
    again_ = got == -EAGAIN ? retries_ : 0;
    return true;
  }
  if (got < 0) {
    return End(ReadOutcome::kIoError, static_cast<int>(-got));
  }
  range_.bytes_read += static_cast<uint64_t>(got);
  if (got == 0) {
    return End(ReadOutcome::kEndOfFile, 0);
  }
  const uint64_t reached = range_.good + static_cast<uint64_t>(got);
  const uint64_t aligned = reached >= length_ ? length_ : reached / kBlock * kBlock;
  if (aligned == range_.good && ++retries_ > kMaxReadRetries) {
    return End(ReadOutcome::kEndOfFile, 0);  // the file ends within this block
  }
  range_.good = aligned;
  return range_.good < length_;
}

bool RangeProgress::TakeCached(uint64_t got) {
  range_.cached_bytes += got;
  return Take(static_cast<int64_t>(got));
}

absl::Status StatusOfRange(const RangeRead& range, const std::string& path, uint64_t length,
                           uint64_t offset) {
  switch (range.outcome) {
    case ReadOutcome::kIoError:
      return ErrnoToStatus(range.error_number,
                           absl::StrCat(path, ": read of ", length, " bytes at ", offset));
    case ReadOutcome::kEndOfFile:
      return absl::DataLossError(
          absl::StrCat(path, ": ends at ", offset + range.good, ", before ", offset + length));
    default:
      return absl::OkStatus();
  }
}

void BackOff(int attempt) {
  const timespec pause{0, 25'000L << std::clamp(attempt, 1, 7)};
  nanosleep(&pause, nullptr);
}

RangeRead ReadRange(ReadFile& file, std::byte* dest, uint64_t length, uint64_t offset, bool past_cache) {
  RangeProgress progress(length);
  bool more = length > 0;
  while (more) {
    const uint64_t good = progress.range().good;
    const uint64_t cached = past_cache ? 0 : file.CopyCached(dest + good, progress.left(), offset + good);
    more = cached > 0 ? progress.TakeCached(cached)
                      : progress.Take(file.ReadAt(dest + good, progress.left(), offset + good));
    if (progress.again() > 0) {
      BackOff(progress.again());
    }
  }
  return progress.range();
}

}  // namespace sluice::weightd
