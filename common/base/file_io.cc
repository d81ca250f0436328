#include "common/base/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/status.h"

namespace sluice {
namespace {

// Linux moves at most 2 GiB a call; smaller pieces also let a signal interrupt sooner.
constexpr uint64_t kMaxTransfer = 1ull << 30;

absl::Status CheckRegular(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoToStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<File> File::OpenForRead(const std::string& path) {
  // O_NONBLOCK: opening a fifo must not wait for its writer.
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
  if (file.fd_ < 0) return ErrnoToStatus(errno, absl::StrCat("open ", path));
  RETURN_IF_ERROR(CheckRegular(file.fd_, path));
  return file;
}

absl::StatusOr<File> File::OpenForWrite(const std::string& path) {
  File file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644), path);
  if (file.fd_ < 0) return ErrnoToStatus(errno, absl::StrCat("open ", path, " for writing"));
  RETURN_IF_ERROR(CheckRegular(file.fd_, path));
  return file;
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<uint64_t> File::Size() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return ErrnoToStatus(errno, absl::StrCat("stat ", path_));
  return static_cast<uint64_t>(info.st_size);
}

absl::Status File::ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pread(fd_, bytes.data() + done, std::min<uint64_t>(bytes.size() - done, kMaxTransfer),
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("read ", path_, " at offset ", offset + done));
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", offset + done, ", but ", bytes.size(),
                                              " bytes are needed at offset ", offset));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status File::WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(fd_, bytes.data() + done, std::min<uint64_t>(bytes.size() - done, kMaxTransfer),
                             static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoToStatus(errno, absl::StrCat("write ", path_, " at offset ", offset + done));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status File::Truncate(uint64_t bytes) const {
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("set the size of ", path_, " to ", bytes));
  }
  return absl::OkStatus();
}

absl::Status File::Reserve(uint64_t bytes) const {
  // The size is set first, so it is right even if the file system cannot reserve blocks. Only a real lack of
  // space is an error: reservation is an early check of the space, not a condition for writing.
  RETURN_IF_ERROR(Truncate(bytes));
  if (bytes != 0 && fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS && errno != EINTR) {
    return ErrnoToStatus(errno, absl::StrCat("reserve ", bytes, " bytes for ", path_));
  }
  return absl::OkStatus();
}

absl::Status File::Sync() const {
  if (fsync(fd_) != 0) return ErrnoToStatus(errno, absl::StrCat("sync ", path_));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(const File file, File::OpenForRead(path));
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  if (size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes, more than the ", max_bytes, " allowed"));
  }
  std::string content(size, '\0');
  RETURN_IF_ERROR(file.ReadAt(0, absl::MakeSpan(reinterpret_cast<std::byte*>(content.data()), size)));
  return content;
}

absl::Status WriteFileDurably(const std::string& path, std::string_view content) {
  ASSIGN_OR_RETURN(const File file, File::OpenForWrite(path));
  RETURN_IF_ERROR(file.Truncate(0));
  RETURN_IF_ERROR(file.WriteAt(
      0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(content.data()), content.size())));
  return file.Sync();
}

// Makes a new name or a rename durable by syncing its folder; syncing the file covers its bytes alone.
absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoToStatus(errno, absl::StrCat("open folder ", path));
  const int result = fsync(fd);
  // close() may overwrite errno.
  const int error = errno;
  close(fd);
  if (result != 0) return ErrnoToStatus(error, absl::StrCat("sync folder ", path));
  return absl::OkStatus();
}

bool FileExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

}  // namespace sluice
