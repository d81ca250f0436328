#include "daemon/service_notifier.h"

#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/clock.h"

namespace sluice {
namespace {

// Errors are ignored: a daemon serves its clients even if the service manager misses the message.
void Tell(const std::string& message) { sd_notify(/*unset_environment=*/0, message.c_str()); }

}  // namespace

ServiceNotifier::ServiceNotifier() : watchdog_(absl::InfiniteDuration()) {
  uint64_t microseconds = 0;
  if (sd_watchdog_enabled(/*unset_environment=*/0, &microseconds) > 0) {
    watchdog_ = absl::Microseconds(microseconds);
  }
}

void ServiceNotifier::Ready() const { Tell("READY=1"); }

void ServiceNotifier::Status(const std::string& text) const {
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');  // a line break begins another assignment
  Tell(absl::StrCat("STATUS=", line));
}

// systemd 253 and later require the time of the reload in the message; earlier versions ignore it.
void ServiceNotifier::Reloading() const {
  Tell(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", MonotonicClock().NowNanos() / 1000));
}

void ServiceNotifier::Stopping() const { Tell("STOPPING=1"); }

void ServiceNotifier::ExtendStart(absl::Duration more) const {
  Tell(absl::StrCat("EXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(more)));
}

void ServiceNotifier::Watchdog() const { Tell("WATCHDOG=1"); }

}  // namespace sluice
