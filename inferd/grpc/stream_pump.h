// StreamPump: the thread that writes output appended by the engine, and keeps gRPC's calls alive.
//
// The engine's thread must never run gRPC's code: it appends to a call and schedules it here, which costs at
// most one wake-up for a whole step. The pump also cuts streams of stalled readers. HTTP has no pump: its
// server's own thread writes.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "inferd/serving/served_call.h"

namespace sluice::inferd {

// A call of gRPC. The pump's thread calls its methods, one at a time.
class PumpedCall : public ServedCall {
 public:
  using ServedCall::ServedCall;
  // Writes pending output, unless a write is under way.
  virtual void Pump() = 0;
  // Cuts the call if its reader has stalled for too long.
  virtual void CheckStall(absl::Time now) = 0;

 private:
  friend class StreamPump;  // Enter, Leave and the mark
  std::atomic<bool> scheduled_{false};
};

class StreamPump {
 public:
  // Stalls are checked every `tick` while there are calls.
  explicit StreamPump(absl::Duration tick = absl::Milliseconds(250));
  // REQUIRES: there is no call.
  ~StreamPump();

  // Keeps `call` alive, and among the live calls, until Remove.
  void Add(std::shared_ptr<PumpedCall> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // May destroy the call.
  void Remove(PumpedCall* call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Schedules Pump() to run soon; several requests before it runs are coalesced. Does not block on I/O.
  void Schedule(std::shared_ptr<PumpedCall> call) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for work or for the next tick; false once the pump ends.
  bool Await(absl::Time next_tick, std::vector<std::shared_ptr<PumpedCall>>* ready)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckStalls(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Duration tick_;
  Mutex mutex_;
  absl::flat_hash_map<PumpedCall*, std::shared_ptr<PumpedCall>> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PumpedCall>> ready_ ABSL_GUARDED_BY(mutex_);
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar wake_;        // self-synchronised: work, or the end
  std::thread thread_;  // started by the constructor, joined by the destructor
};

}  // namespace sluice::inferd
