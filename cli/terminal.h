// This process's terminal, and progress lines.
//
// Progress lines are printed to stderr, only if it is a terminal; styles likewise, and never if NO_COLOR is
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

// Returns `text` in the style if `terminal` and NO_COLOR is unset or empty; else unchanged.
std::string Styled(const std::string& text, Style style, bool terminal);

enum class ProgressUnit { kBytes, kTokens, kItems };

// Returns the line without control characters: "packing  [#####     ]  50 %  1.0 GiB of 2.0 GiB  512.0 MiB/s
// 2s left". `total` 0: unknown, then without bar and time left.
std::string ProgressLine(const std::string& label, ProgressUnit unit, uint64_t done, uint64_t total,
                         absl::Duration elapsed);

// A line that is rewritten at most ten times per second.
class Progress {
 public:
  // Shows nothing if `quiet` or if stderr is not a terminal.
  Progress(std::string label, ProgressUnit unit, bool quiet);
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(uint64_t done, uint64_t total);
  // Sets a text that is shown behind the bar from the next update on.
  void Suffix(std::string text) { suffix_ = std::move(text); }
  // Shows a message instead of a bar.
  void Note(const std::string& text);
  // Removes the line from the screen.
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

// LineReader: reads lines of standard input for a conversation; other threads can wake it.
//
// Thread safety: one thread calls Read; any thread may call Wake.

class LineReader {
 public:
  // Reads from `fd`, which is borrowed.
  explicit LineReader(int fd);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  enum class Event { kLine, kEnd, kWoken };
  // Waits. kLine: *line is the next line without its end, or the last one, perhaps without an end.
  // INVALID_ARGUMENT for a line of more than 16 MiB; errors of the system.
  absl::StatusOr<Event> Read(std::string* line);

  // Ends a waiting Read, or else the next one that would wait, with kWoken.
  void Wake();

 private:
  const int fd_;
  const int wake_fd_;  // eventfd
  std::string buffer_;
  bool ended_ = false;
};

// Status codes in texts of logs.
//
// Thread safety: pure functions.

// Returns a status with `message` and the last status code named in `text` ("DATA_LOSS: ..."), or `otherwise`
// if there is none. A daemon that cannot start logs its reason in that form.
absl::Status CodeFromText(const std::string& text, absl::StatusCode otherwise, const std::string& message);

}  // namespace sluice::cli
