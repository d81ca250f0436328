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

}  // namespace sluice::cli
