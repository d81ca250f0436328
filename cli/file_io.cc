#include "cli/file_io.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::cli {

absl::Status WriteAt(int fd, uint64_t offset, const void* bytes, size_t count, const std::string& path) {
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t n = pwrite(fd, at, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    }
    at += n;
    offset += static_cast<uint64_t>(n);
    count -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status ReadAt(int fd, uint64_t offset, void* bytes, size_t count, const std::string& path) {
  char* at = static_cast<char*>(bytes);
  while (count > 0) {
    const ssize_t n = pread(fd, at, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path, " ends at byte ", offset, ", ", count, " too early"));
    }
    at += n;
    offset += static_cast<uint64_t>(n);
    count -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace sluice::cli
