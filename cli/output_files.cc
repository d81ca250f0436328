#include "cli/output_files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/json.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

// Retry interval for a held lock: flock has no timeout.
constexpr int kLockRetryMs = 10;
// Delay before a message about the wait.
constexpr absl::Duration kNoticeAfter = absl::Seconds(1);

// Daemons write their process id into the lock file; other programs leave it empty.
std::string LockHolder(int fd) {
  char text[32];
  const ssize_t n = pread(fd, text, sizeof(text), 0);
  const absl::string_view pid = absl::StripAsciiWhitespace(absl::string_view(text, n > 0 ? n : 0));
  return pid.empty() ? "another process" : absl::StrCat("process ", pid);
}

}  // namespace

absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel,
                                  const std::function<void(const std::string&)>& on_wait) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("cannot open the lock ", path));
  }
  const absl::Time start = SteadyNow();
  const absl::Time deadline = start + patience;
  bool told = !on_wait;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
    }
    if (cancel != nullptr && cancel->load()) {
      return absl::CancelledError("interrupted");
    }
    if (SteadyNow() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(path, " is still locked by another process after ", FormatTimeSpan(patience)));
    }
    if (!told && SteadyNow() - start >= kNoticeAfter) {
      told = true;
      on_wait(LockHolder(fd.get()));
    }
    poll(nullptr, 0, kLockRetryMs);
  }
  return fd;
}

absl::StatusOr<PartialFile> PartialFile::Create(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is ",
                                                   S_ISDIR(info.st_mode) ? "a folder" : "no regular file",
                                                   " and cannot be replaced by the result"));
  }
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(absl::StrCat(path, ".tmp.", getpid())));
  RETURN_IF_ERROR(file.Truncate(0));
  return PartialFile(path, std::move(file));
}

PartialFile::~PartialFile() {
  if (file_.fd() >= 0) {
    unlink(file_.path().c_str());
  }
}

absl::Status PartialFile::WriteAt(uint64_t offset, absl::Span<const float> values) const {
  return file_.WriteAt(offset, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                                   values.size() * sizeof(float)));
}

absl::Status PartialFile::WriteAt(uint64_t offset, const std::string& bytes) const {
  return file_.WriteAt(offset,
                       absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

absl::Status PartialFile::Commit() {
  if (rename(file_.path().c_str(), path_.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot rename ", file_.path(), " to ", path_));
  }
  file_ = File();
  return absl::OkStatus();
}

static_assert(std::endian::native == std::endian::little, "the format is little-endian, written as it lies");

std::string SafetensorsHeader(const std::string& tensor, uint64_t rows, uint64_t cols) {
  const uint64_t bytes = rows * cols * sizeof(float);
  std::string json = Json::Object()
                         .Set(tensor, Json::Object()
                                          .Set("dtype", "F32")
                                          .Set("shape", std::vector<uint64_t>{rows, cols})
                                          .Set("data_offsets", std::vector<uint64_t>{0, bytes}))
                         .Dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path,
                                                                             const std::string& tensor,
                                                                             uint64_t rows, uint64_t cols) {
  ASSIGN_OR_RETURN(PartialFile file, PartialFile::Create(path));
  const std::string header = SafetensorsHeader(tensor, rows, cols);
  RETURN_IF_ERROR(file.WriteAt(0, header));
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(std::move(file), header.size(), rows, cols));
}

absl::Status SafetensorsWriter::WriteRows(uint64_t first, absl::Span<const float> values) {
  const uint64_t rows = values.size() / cols_;
  if (values.size() % cols_ != 0 || first > rows_ || rows > rows_ - first) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " values at row ", first, " do not fit into [", rows_, ", ", cols_, "]"));
  }
  rows_written_ += rows;
  return file_.WriteAt(header_bytes_ + first * cols_ * sizeof(float), values);
}

absl::Status SafetensorsWriter::Finish() {
  if (rows_written_ != rows_) {
    return absl::FailedPreconditionError(
        absl::StrCat(file_.path(), ": ", rows_written_, " rows of ", rows_, " were written"));
  }
  return file_.Commit();
}

}  // namespace sluice::cli
