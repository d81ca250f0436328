#include "weightd/engine/watchdog.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace sluice::weightd {

std::string ProgressWatch::Look(const StoreProgress& now, int64_t now_nanos) {
  const bool first = !looked_;
  const bool pump_stands = !first && now.rounds == last_.rounds;
  if (first || now.in_flight_bytes == 0 || last_.in_flight_bytes == 0 ||
      now.reads_reported != last_.reads_reported) {
    reader_moved_nanos_ = now_nanos;
  }
  looked_ = true;
  last_ = now;
  if (pump_stands) {
    return absl::StrCat("the pump has made no round since it was nudged (", now.rounds, " so far)");
  }
  const int64_t silent = now_nanos - reader_moved_nanos_;
  if (silent > kReaderTimeoutNanos) {
    return absl::StrCat("no read has ended for ", silent / 1'000'000'000, " s, ", now.in_flight_bytes,
                        " bytes are under way");
  }
  return "";
}

StopGuard::StopGuard(absl::Duration timeout, std::function<void()> late) {
  thread_ = std::thread([this, end = SteadyNow() + timeout, late = std::move(late)] {
    MutexLock lock(&mutex_);
    while (!done_ && SteadyNow() < end) {
      // The condition variable adds the duration to its own clock: forever would overflow.
      ended_.WaitFor(&mutex_, absl::ToChronoNanoseconds(std::min(end - SteadyNow(), absl::Hours(1))));
    }
    if (!done_) {
      late();
    }
  });
}

StopGuard::~StopGuard() {
  {
    MutexLock lock(&mutex_);
    done_ = true;
  }
  ended_.SignalAll();
  thread_.join();
}

}  // namespace sluice::weightd
