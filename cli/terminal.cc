#include "cli/terminal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kRefresh = absl::Milliseconds(100);
constexpr int kBarWidth = 20;

const char* StyleCode(Style style) {
  switch (style) {
    case Style::kGreen:
      return "\033[32m";
    case Style::kYellow:
      return "\033[33m";
    case Style::kRed:
      return "\033[31m";
    case Style::kDim:
      return "\033[2m";
    case Style::kBold:
      return "\033[1m";
  }
  return "";
}

std::string Amount(ProgressUnit unit, uint64_t value) {
  return unit == ProgressUnit::kBytes ? FormatSize(value) : absl::StrCat(value);
}

std::string Rate(ProgressUnit unit, double per_second) {
  switch (unit) {
    case ProgressUnit::kBytes:
      return absl::StrCat(FormatSize(static_cast<uint64_t>(per_second)), "/s");
    case ProgressUnit::kTokens:
      return absl::StrFormat("%.1f tokens/s", per_second);
    case ProgressUnit::kItems:
      return absl::StrFormat("%.1f/s", per_second);
  }
  return "";
}

size_t TerminalWidth() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }
bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }

std::string Styled(const std::string& text, Style style, bool terminal) {
  const char* no_color = std::getenv("NO_COLOR");
  if (!terminal || (no_color != nullptr && no_color[0] != '\0')) {
    return text;
  }
  return absl::StrCat(StyleCode(style), text, "\033[0m");
}

std::string ProgressLine(const std::string& label, ProgressUnit unit, uint64_t done, uint64_t total,
                         absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  if (total == 0) {
    return absl::StrCat(label, "  ", Amount(unit, done), "  ", Rate(unit, rate));
  }
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kBarWidth);
  std::string line = absl::StrFormat("%s  [%s%s] %3d %%  %s of %s  %s", label, std::string(filled, '#'),
                                     std::string(kBarWidth - filled, ' '), static_cast<int>(share * 100),
                                     Amount(unit, done), Amount(unit, total), Rate(unit, rate));
  if (rate > 0 && done < total) {
    absl::StrAppend(&line, "  ", FormatTimeSpan(absl::Seconds(static_cast<double>(total - done) / rate)),
                    " left");
  }
  return line;
}

Progress::Progress(std::string label, ProgressUnit unit, bool quiet)
    : label_(std::move(label)), unit_(unit), shown_(!quiet && StderrIsTerminal()), start_(SteadyNow()) {}

void Progress::Update(uint64_t done, uint64_t total) {
  const absl::Time now = SteadyNow();
  if (shown_ && (now - last_ >= kRefresh || (total != 0 && done >= total))) {
    last_ = now;
    const std::string line = ProgressLine(label_, unit_, done, total, now - start_);
    Show(suffix_.empty() ? line : absl::StrCat(line, "; ", suffix_));
  }
}

void Progress::Note(const std::string& text) {
  if (shown_) {
    Show(absl::StrCat(label_, "  ", text));
  }
}

void Progress::Show(const std::string& line) {
  std::fprintf(stderr, "\r\033[K%s", line.substr(0, TerminalWidth() - 1).c_str());
  std::fflush(stderr);
  on_screen_ = true;
}

void Progress::Finish() {
  if (on_screen_) {
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
    on_screen_ = false;
  }
}

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

absl::Status CodeFromText(const std::string& text, absl::StatusCode otherwise, const std::string& message) {
  absl::StatusCode code = otherwise;
  size_t last = 0;  // one past the position of the last match
  for (int number = 1; number <= 16; ++number) {
    const auto candidate = static_cast<absl::StatusCode>(number);
    const size_t at = text.rfind(absl::StatusCodeToString(candidate) + ": ");
    if (at != std::string::npos && at + 1 > last) {
      code = candidate;
      last = at + 1;
    }
  }
  return absl::Status(code, message);
}

}  // namespace sluice::cli
