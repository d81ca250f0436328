// ServiceNotifier: messages of a daemon to the service manager that started it (systemd's notify protocol),
// and the interval of its watchdog. Without NOTIFY_SOCKET nothing is sent.
//
// Thread safety: thread-safe; messages are single datagrams.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sluice {

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

}  // namespace sluice
