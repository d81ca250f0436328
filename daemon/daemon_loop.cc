#include "daemon/daemon_loop.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace sluice {

DaemonLoop::DaemonLoop(Options options, ProcessSignals* signals, spdlog::logger* log)
    : options_(std::move(options)),
      signals_(signals),
      log_(log),
      heartbeat_interval_(std::min(options_.max_heartbeat_interval, notifier_.watchdog() / 3)) {}

void DaemonLoop::Ready() {
  ready_ = true;
  notifier_.Ready();
}

// Rounds up, so that a watchdog beat is never awaited in a loop of waits of 0 ms, and limits to an hour, so
// that an infinite deadline fits poll's milliseconds.
int DaemonLoop::PollMs() const {
  const absl::Duration left = std::min(next_heartbeat_, end_at_) - absl::Now();
  return left > absl::Hours(1)
             ? 3'600'000
             : static_cast<int>(absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration()))) + 1;
}

bool DaemonLoop::LifelineEnded() {
  char byte;
  return read(options_.lifeline.get(), &byte, 1) <= 0;
}

DaemonLoop::Turn DaemonLoop::End(const char* why) {
  end_reason_ = why;
  return Turn::kEnd;
}

DaemonLoop::Turn DaemonLoop::Next(int event) {
  // Deadlines come before events: a flood of events must not delay the watchdog's beat, nor the end of a
  // daemon whose parent has gone.
  while (true) {
    if (absl::Now() >= end_at_) {
      return End("the parent has gone");
    }
    if (absl::Now() >= next_heartbeat_) {
      next_heartbeat_ = absl::Now() + heartbeat_interval_;
      return Turn::kHeartbeat;
    }
    pollfd polled[3] = {
        {signals_->fd(), POLLIN, 0}, {options_.lifeline.get(), POLLIN, 0}, {event, POLLIN, 0}};
    if (poll(polled, 3, PollMs()) < 0) {
      continue;  // EINTR
    }
    switch (polled[0].revents != 0 ? signals_->Take() : SignalKind::kNone) {
      case SignalKind::kEnd:
        return End("ended by a signal");
      case SignalKind::kReload:
        Reload();
        break;
      case SignalKind::kNone:
        break;
    }
    if (polled[1].revents != 0 && LifelineEnded()) {
      options_.lifeline.reset();
      const absl::Duration keep = options_.keep();
      end_at_ = absl::Now() + keep;
      log_->info("the parent has gone; ending in {}", absl::FormatDuration(keep));
    }
    if (polled[2].revents != 0) {
      return Turn::kEvent;
    }
  }
}

void DaemonLoop::Reload() {
  notifier_.Reloading();
  const absl::StatusOr<ReloadPlan> plan = options_.reload();
  if (plan.ok()) {
    log_->log(plan->needs_restart.empty() ? spdlog::level::info : spdlog::level::warn,
              "options read anew: {}", plan->Describe());
  } else {
    log_->error("the options that were read anew are wrong; those in effect stay");
  }
  // systemd waits for READY after RELOADING; before the first READY it would read RELOADING as a finished
  // start.
  if (ready_) {
    notifier_.Ready();
  }
}

}  // namespace sluice
