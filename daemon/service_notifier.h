// ServiceNotifier: what a daemon tells the service manager that started it (systemd's notify protocol), and
// how often that wants to hear that it lives. Without NOTIFY_SOCKET nothing is sent.
//
// Thread safety: thread-safe; messages are single datagrams.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sluice {

class ServiceNotifier {
 public:
  ServiceNotifier();

  // The service works: a fetch, a token was made.
  void Ready() const;
  // The line that `systemctl status` shows.
  void Status(const std::string& text) const;
  // The options are read anew; Ready() follows.
  void Reloading() const;
  void Stopping() const;
  // While starting: goes on, do not give up for this long.
  void ExtendStart(absl::Duration more) const;
  // Progress was made since the last call.
  void Watchdog() const;

  // The manager restarts a daemon from which it hears no Watchdog() for this long; InfiniteDuration: it does
  // not watch.
  absl::Duration watchdog() const { return watchdog_; }

 private:
  absl::Duration watchdog_;
};

}  // namespace sluice
