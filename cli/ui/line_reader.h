// LineReader: lines of standard input for a conversation, woken by other threads while it waits.
//
// Thread safety: Read is used by one thread; Wake may be called by any.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace sluice::cli {

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

}  // namespace sluice::cli
