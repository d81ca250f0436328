// DaemonLoop: what a daemon's main thread waits for between its start and its end: signals, the end of its
// parent, the next beat for the service manager; and the ceremony of reading the options anew.
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
    UniqueFd lifeline;  // at whose end the daemon ends; invalid: none
    absl::Duration most_between_beats = absl::InfiniteDuration();
    std::function<absl::Duration()> keep;  // it stays so long after the lifeline's end
    // Parses the options again and applies what can change; what it did. An error: they are wrong, and
    // nothing was changed.
    std::function<absl::StatusOr<ReloadPlan>()> reload;
  };
  enum class Turn {
    kBeat,   // it is time to tell the service manager that the daemon lives
    kEvent,  // the caller's event is readable
    kEnd     // why_end() says why
  };

  // `signals` and `log` are borrowed.
  DaemonLoop(Options options, ProcessSignals* signals, spdlog::logger* log);

  // Waits for the next of these. Reloads meanwhile, as signals ask. `event`: a descriptor, -1: none.
  Turn Next(int event = -1);
  const std::string& why_end() const { return why_end_; }

  const ServiceNotifier& notifier() const { return notifier_; }
  // Whether the service manager wants beats.
  bool watched() const { return notifier_.watchdog() != absl::InfiniteDuration(); }
  // The start has ended well: the manager is told, now and after each reload.
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
  const absl::Duration beat_;
  absl::Time next_beat_ = absl::InfinitePast();
  absl::Time end_at_ = absl::InfiniteFuture();
  bool ready_ = false;
  std::string why_end_;
};

}  // namespace sluice
