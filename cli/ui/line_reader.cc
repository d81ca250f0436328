#include "cli/ui/line_reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxLineBytes = 16 << 20;

}  // namespace

LineReader::LineReader(int fd) : fd_(fd), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

LineReader::~LineReader() { close(wake_fd_); }

absl::StatusOr<LineReader::Event> LineReader::Read(std::string* line) {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      *line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return Event::kLine;
    }
    if (ended_) {
      *line = std::exchange(buffer_, {});
      return line->empty() ? Event::kEnd : Event::kLine;
    }
    if (buffer_.size() > kMaxLineBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a line of more than ", kMaxLineBytes, " bytes"));
    }
    pollfd fds[] = {{wake_fd_, POLLIN, 0}, {fd_, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) {
        continue;
      }
      return ErrnoToStatus(errno, "poll of standard input");
    }
    if (fds[0].revents != 0) {
      eventfd_t count = 0;
      eventfd_read(wake_fd_, &count);
      return Event::kWoken;
    }
    char bytes[4096];
    const ssize_t n = read(fd_, bytes, sizeof(bytes));
    if (n < 0 && errno != EINTR) {
      return ErrnoToStatus(errno, "read of standard input");
    }
    if (n >= 0) {
      ended_ = n == 0;
      buffer_.append(bytes, static_cast<size_t>(n));
    }
  }
}

void LineReader::Wake() { eventfd_write(wake_fd_, 1); }

}  // namespace sluice::cli
