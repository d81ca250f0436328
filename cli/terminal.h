// Properties of this process's terminal, and the progress line of long work.
//
// Progress lines go to stderr, only when it is a terminal; styles only then, too, and never with NO_COLOR
// set.
//
// Thread safety: the free functions may be called from any thread; a Progress is thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice::cli {

bool StdinIsTerminal();
bool StdoutIsTerminal();
bool StderrIsTerminal();

enum class Style { kGreen, kYellow, kRed, kDim, kBold };

// `text` in the style if `terminal` and NO_COLOR is unset or empty; else unchanged.
std::string Styled(const std::string& text, Style style, bool terminal);

enum class ProgressUnit { kBytes, kTokens, kItems };

// The line itself, without control characters: "packing  [#####     ]  50 %  1.0 GiB of 2.0 GiB  512.0 MiB/s
// 2s left". `total` 0: unknown, neither bar nor time left.
std::string ProgressLine(const std::string& label, ProgressUnit unit, uint64_t done, uint64_t total,
                         absl::Duration elapsed);

// One line that is rewritten at most ten times a second.
class Progress {
 public:
  // Shows nothing if `quiet` or if stderr is no terminal.
  Progress(std::string label, ProgressUnit unit, bool quiet);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(uint64_t done, uint64_t total);
  // Stands behind the bar from the next update on.
  void Suffix(std::string text) { suffix_ = std::move(text); }
  // A message instead of a bar.
  void Note(const std::string& text);
  // Takes the line off the screen.
  void Finish();

 private:
  void Show(const std::string& line);

  const std::string label_;
  const ProgressUnit unit_;
  const bool shown_;
  const absl::Time start_;
  std::string suffix_;
  absl::Time last_ = absl::InfinitePast();
  bool on_screen_ = false;
};

// LineReader: lines of standard input for a conversation, woken by other threads while it waits.
//
// Thread safety: Read is used by one thread; Wake may be called by any.

class LineReader {
 public:
  // Reads from `fd`, which is borrowed.
  explicit LineReader(int fd);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Event { kLine, kEnd, kWoken };
  // Waits. kLine: *line is the next line without its end, the last one perhaps unended. InvalidArgument for a
  // line of more than 16 MiB; errors of the system.
  absl::StatusOr<Event> Read(std::string* line);

  // Ends a Read that waits, or the next one that would wait, with kWoken.
  void Wake();

 private:
  const int fd_;
  const int wake_fd_;  // eventfd
  std::string buffer_;
  bool ended_ = false;
};

// Status codes in the text of logs.
//
// Thread safety: pure functions.

// A status with `message` and the code whose name ("DATA_LOSS: ...") stands last in `text`; `otherwise` if no
// name does. A daemon that could not start leaves its reason in its log in that form.
absl::Status CodeFromText(const std::string& text, absl::StatusCode otherwise, const std::string& message);

}  // namespace sluice::cli
