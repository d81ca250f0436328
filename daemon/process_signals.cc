#include "daemon/process_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"
#include "common/status.h"

namespace sluice {

absl::StatusOr<ProcessSignals> ProcessSignals::Block() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    sigaddset(&signals, number);
  }
  // Blocked before any thread starts, so that every thread inherits the mask and signals arrive only by the
  // descriptor. SIGPIPE is ignored: a disconnected peer is an error of write(), not the daemon's end.
  if (sigprocmask(SIG_BLOCK, &signals, nullptr) != 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR) {
    return ErrnoToStatus(errno, "signals");
  }
  UniqueFd fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return ErrnoToStatus(errno, "signalfd");
  }
  return ProcessSignals(std::move(fd));
}

SignalKind ProcessSignals::Take() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return SignalKind::kNone;
  }
  return info.ssi_signo == SIGHUP ? SignalKind::kReload : SignalKind::kEnd;
}

bool ProcessSignals::AwaitEnd(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    // A reload request is ignored here: the process is ending.
    for (SignalKind kind = Take(); kind != SignalKind::kNone; kind = Take()) {
      if (kind == SignalKind::kEnd) {
        return true;
      }
    }
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return false;
    }
    pollfd polled{fd_.get(), POLLIN, 0};
    // Long waits are split, so that none overflows poll's milliseconds.
    poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Hours(1)))) + 1);
  }
}

}  // namespace sluice
