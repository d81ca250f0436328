#include "cli/ui/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/size.h"

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
    : label_(std::move(label)), unit_(unit), shown_(!quiet && StderrIsTerminal()), start_(absl::Now()) {}

void Progress::Update(uint64_t done, uint64_t total) {
  const absl::Time now = absl::Now();
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

}  // namespace sluice::cli
