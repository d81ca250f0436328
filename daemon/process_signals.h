// ProcessSignals: a daemon's signals as a readable descriptor: SIGTERM and SIGINT end it, SIGHUP has it read
// its options anew. SIGPIPE is ignored.
//
// Thread safety: thread-compatible; main's thread owns it, and makes it before it starts any other, which all
// inherit the mask.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ring/unique_fd.h"

namespace sluice {

enum class SignalKind : uint8_t { kNone, kEnd, kReload };

class ProcessSignals {
 public:
  static absl::StatusOr<ProcessSignals> Block();

  int fd() const { return fd_.get(); }
  // The next signal that came, without waiting.
  SignalKind Take();
  // Whether a signal to end came within `timeout`; signals to reload are passed over.
  bool AwaitEnd(absl::Duration timeout);

 private:
  explicit ProcessSignals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace sluice
