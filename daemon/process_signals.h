// ProcessSignals: a daemon's signals as a readable descriptor: SIGTERM and SIGINT end it, SIGHUP makes it
// reload its options. SIGPIPE is ignored.
//
// Thread safety: thread-compatible; main's thread owns it, and creates it before any other thread, because
// all of them inherit the mask.
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
  // The next pending signal, without waiting.
  SignalKind Take();
  // True if a signal to end came within `timeout`; reload signals are skipped.
  bool AwaitEnd(absl::Duration timeout);

 private:
  explicit ProcessSignals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace sluice
