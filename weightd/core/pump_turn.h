// One turn of weightd's pump: the waiting reports, a round of the core, and the decision to sleep after it.
// WeightStore runs turns on a thread of its own; the simulation (tests/simulation) runs the same ones.
//
// Thread safety: ReadInbox is thread-safe, but Take(), BeginSleep() and EndSleep() belong to the pump's
// thread. PumpTurn() needs the core's lock.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/ring/protocol_step.h"
#include "weightd/core/store_core.h"
#include "weightd/io/block_reader.h"

namespace sluice::weightd {

// Reports on their way from the readers' threads to the pump.
class ReadInbox {
 public:
  // True: the pump sleeps, or is about to, and the caller must wake it. At most one caller per sleep gets
  // true.
  bool Add(ReadResult result) {
    {
      MutexLock lock(&mutex_);
      reads_.push_back(std::move(result));
    }
    ProtocolStep(ProtocolPoint::kSleepReset, &asleep_);
    return asleep_.exchange(false);
  }

  // The same for any other event that the pump's next round finds by itself.
  bool Notify() { return asleep_.exchange(false); }

  std::vector<ReadResult> Take() {
    std::vector<ReadResult> reads;
    MutexLock lock(&mutex_);
    reads.swap(reads_);
    return reads;
  }

  // Announces sleep. False: there are reports; do not sleep.
  bool BeginSleep() {
    ProtocolStep(ProtocolPoint::kSleepAnnounce, &asleep_);
    asleep_.store(true);
    ProtocolStep(ProtocolPoint::kSleepCheck, &asleep_);
    MutexLock lock(&mutex_);
    return reads_.empty();
  }
  void EndSleep() { asleep_.store(false); }

 private:
  std::atomic<bool> asleep_{false};
  Mutex mutex_;
  std::vector<ReadResult> reads_ ABSL_GUARDED_BY(mutex_);
};

// Runs a turn. Returns how many milliseconds the pump may sleep afterwards: 0 not at all, -1 until it is
// woken. After the sleep the caller calls inbox->EndSleep() and core->EndSleep() and passes on the poller's
// events.
int PumpTurn(StoreCore* core, ReadInbox* inbox, const Clock& clock);

}  // namespace sluice::weightd
