// DaemonLoop: the wait of a daemon's main thread between start and end: signals, the end of its parent, the
// next watchdog beat for the service manager; also the sequence of reloading the options.
//
// Thread safety: thread-compatible; main's thread owns it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ring/unique_fd.h"
#include "daemon/option_values.h"
#include "daemon/process_signals.h"
#include "daemon/service_notifier.h"
#include "spdlog/logger.h"

namespace sluice {

class DaemonLoop {
 public:
  struct Options {
    UniqueFd lifeline;  // the daemon ends when this descriptor closes; invalid: none
    absl::Duration max_heartbeat_interval = absl::InfiniteDuration();
    std::function<absl::Duration()> keep;  // time that the daemon stays after the lifeline closed
    // Parses the options again, applies the reloadable ones and describes the changes. An error: the options
    // are wrong, and nothing was changed.
    std::function<absl::StatusOr<ReloadPlan>()> reload;
  };
  enum class Turn {
    kHeartbeat,  // a watchdog beat is due
    kEvent,      // the caller's event is readable
    kEnd         // end_reason() has the reason
  };

  // `signals` and `log` are borrowed.
  DaemonLoop(Options options, ProcessSignals* signals, spdlog::logger* log);

  // Waits for the next of these. Handles reload signals meanwhile. `event`: a descriptor, -1: none.
  Turn Next(int event = -1);
  const std::string& end_reason() const { return end_reason_; }

  const ServiceNotifier& notifier() const { return notifier_; }
  // True if the service manager wants watchdog beats.
  bool has_watchdog() const { return notifier_.watchdog() != absl::InfiniteDuration(); }
  // Reports to the service manager that the start succeeded, now and after each reload.
  void Ready();

 private:
  int PollMs() const;
  void Reload();
  bool LifelineEnded();
  Turn End(const char* why);

  Options options_;
  ProcessSignals* const signals_;
  spdlog::logger* const log_;
  const ServiceNotifier notifier_;
  const absl::Duration heartbeat_interval_;
  absl::Time next_heartbeat_ = absl::InfinitePast();
  absl::Time end_at_ = absl::InfiniteFuture();
  bool ready_ = false;
  std::string end_reason_;
};

}  // namespace sluice
