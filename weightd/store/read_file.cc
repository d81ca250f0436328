#include "weightd/store/read_file.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
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

class OsReadFile final : public ReadFile {
 public:
  OsReadFile(UniqueFd fd, std::string how) : fd_(std::move(fd)), how_(std::move(how)) {}
  int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) override {
    const ssize_t got = pread(fd_.get(), dest, length, static_cast<off_t>(offset));
    return got < 0 ? -errno : got;
  }
  std::string how() const override { return how_; }
  int fd() const override { return fd_.get(); }

 private:
  const UniqueFd fd_;
  const std::string how_;
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
        return std::make_unique<OsReadFile>(std::move(fd), "O_DIRECT");
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
  return std::make_unique<OsReadFile>(std::move(fd), how);
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

RangeRead ReadRange(ReadFile& file, std::byte* dest, uint64_t length, uint64_t offset) {
  RangeProgress progress(length);
  bool more = length > 0;
  while (more) {
    const uint64_t good = progress.range().good;
    more = progress.Take(file.ReadAt(dest + good, progress.left(), offset + good));
    if (progress.again() > 0) {
      BackOff(progress.again());
    }
  }
  return progress.range();
}

}  // namespace sluice::weightd
