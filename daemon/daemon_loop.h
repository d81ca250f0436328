// The frame of a daemon: its log, signals, messages to the service manager, and the main thread's loop.
//
// Thread safety: stated at each part; the loop belongs to main's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/unique_fd.h"
#include "daemon/option_values.h"
#include "spdlog/logger.h"

namespace sluice {

// The log of a daemon: lines on standard error, with time and severity in words; under systemd's journal with
// the journal's priority prefix and without the time, which the journal adds.
//
// Thread safety: free functions, safe from any thread; the loggers are thread-safe.

// `level` is one of debug, info, warning, error.
std::shared_ptr<spdlog::logger> NewDaemonLog(const std::string& name, const std::string& level);

// True if descriptor `fd` is the stream that `journal_stream`, the value of $JOURNAL_STREAM ("device:inode"),
// names. Null or any other value: false.
bool IsJournalStream(int fd, const char* journal_stream);

// A log line in the journal's form: "<4>text" for a warning, as syslog(3) numbers them.
std::string JournalLine(spdlog::level::level_enum level, const std::string& text);

// ProcessSignals: a daemon's signals as a readable descriptor: SIGTERM and SIGINT end it, SIGHUP makes it
// reload its options. SIGPIPE is ignored.
//
// Thread safety: thread-compatible; main's thread owns it, and creates it before any other thread, because
// all of them inherit the mask.

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

// ServiceNotifier: messages of a daemon to the service manager that started it (systemd's notify protocol),
// and the interval of its watchdog. Without NOTIFY_SOCKET nothing is sent.
//
// Thread safety: thread-safe; messages are single datagrams.
class ServiceNotifier {
 public:
  ServiceNotifier();

  // Reports that the service works, proven by a first fetch or token.
  void Ready() const;
  // Sets the line that `systemctl status` shows.
  void Status(const std::string& text) const;
  // Announces that the options are reloaded; Ready() follows.
  void Reloading() const;
  void Stopping() const;
  // Extends the start timeout by this time while the start makes progress.
  void ExtendStart(absl::Duration more) const;
  // Reports progress since the last call.
  void Watchdog() const;

  // The manager restarts a daemon without a Watchdog() call within this time; InfiniteDuration: no watchdog.
  absl::Duration watchdog() const { return watchdog_; }

 private:
  absl::Duration watchdog_;
};

// DaemonLoop: the wait of a daemon's main thread between start and end: signals, the end of its parent, the
// next watchdog beat for the service manager; also the sequence of reloading the options.
//
// Thread safety: thread-compatible; main's thread owns it.
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
