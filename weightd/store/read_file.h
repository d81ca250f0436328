// One file opened for positioned reads, past the page cache where that works, and the loop that reads a whole
// range. It is the engines' only contact with the operating system; tests put a faulty file in its place.
//
// Bytes that the page cache holds already are copied from it: the file was just written or downloaded, or the
// server is started again. Nothing is added to the page cache.
//
// Thread safety: thread-safe; ReadAt may be called from any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "weightd/store/block_reader.h"

namespace sluice::weightd {

class ReadFile {
 public:
  virtual ~ReadFile() = default;
  // Like pread(2): bytes read (0 at the end of the file), or -errno.
  virtual int64_t ReadAt(std::byte* dest, uint64_t length, uint64_t offset) = 0;
  // Copies the leading bytes of the range that the page cache holds, without waiting for the disk. Returns
  // their number, `length` or a multiple of 4096; 0: none, or this file is always read by ReadAt.
  virtual uint64_t CopyCached(std::byte* /*dest*/, uint64_t /*length*/, uint64_t /*offset*/) { return 0; }
  // "O_DIRECT", or "buffered (reason)".
  virtual std::string how() const = 0;
  // The file descriptor, for a ring; -1 if there is none.
  virtual int fd() const { return -1; }
};

using FileOpener = std::function<absl::StatusOr<std::unique_ptr<ReadFile>>(const std::string& path)>;

// Opens `path`; with `direct` by O_DIRECT if the file allows 4096-aligned reads (STATX_DIOALIGN, then one
// real read), else through the page cache, with the reason in how(). A direct file has CopyCached() if the
// kernel says which pages it caches, which it tells only users who own the file or may write it (mincore(2)).
absl::StatusOr<std::unique_ptr<ReadFile>> OpenReadFile(const std::string& path, bool direct);

// Maximum number of failed system calls per range: EINTR and EAGAIN are retried this often, and so are reads
// that end before the next 4096-byte boundary.
inline constexpr int kMaxReadRetries = 16;

struct RangeRead {
  ReadOutcome outcome = ReadOutcome::kOk;
  int error_number = 0;       // with kIoError
  uint64_t good = 0;          // leading bytes that are in place
  uint64_t bytes_read = 0;    // by all calls, repeated bytes counted
  uint64_t cached_bytes = 0;  // those of bytes_read that came from the page cache
};

// State of a range that is read call by call; every engine handles results of read(2) with it. A short read
// continues from the last 4096-byte boundary it passed, as O_DIRECT demands; the end of the file before the
// range's end is kEndOfFile, never a loop.
class RangeProgress {
 public:
  explicit RangeProgress(uint64_t length) : length_(length) {}

  // The next read covers [range().good, length). False once the range is over, complete or not.
  bool Take(int64_t got);
  // The same for what CopyCached returned. REQUIRES: it is not 0.
  bool TakeCached(uint64_t got);
  const RangeRead& range() const { return range_; }
  uint64_t left() const { return length_ - range_.good; }
  // The attempt to pass to BackOff() before the next call; 0: none.
  int again() const { return again_; }

 private:
  bool End(ReadOutcome outcome, int error_number);

  uint64_t length_;
  RangeRead range_;
  int retries_ = 0;
  int again_ = 0;
};

// OK, or the error of a range of `length` bytes at `offset` of `path` that was not read completely.
absl::Status StatusOfRange(const RangeRead& range, const std::string& path, uint64_t length, uint64_t offset);

// Sleeps before attempt 2, 3, .. of a read that the kernel refused with EAGAIN: 50 us doubling to 3.2 ms.
// `attempt` counts from 1.
void BackOff(int attempt);

// Reads all of [offset, offset + length), from the page cache what it holds unless `past_cache`.
RangeRead ReadRange(ReadFile& file, std::byte* dest, uint64_t length, uint64_t offset, bool past_cache);

}  // namespace sluice::weightd
