// StreamPump: the thread that writes output appended by the engine, and the registry of live calls.
//
// The engine's thread must never run gRPC's code: it appends to a call and schedules it here, which costs at
// most one wake-up for a whole step. The pump also cuts streams of stalled readers. gRPC-free.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::inferd {

// Interface of a call for the pump. The pump's thread calls its methods, one at a time, except unsent_bytes,
// which any thread may call.
class PumpedCall {
 public:
  virtual ~PumpedCall() = default;
  // Writes pending output, unless a write is under way.
  virtual void Pump() = 0;
  // Cuts the call if its reader has stalled for too long.
  virtual void CheckStall(absl::Time now) = 0;
  // Number of bytes appended or being written that the reader has not accepted. Lock-free.
  virtual uint64_t unsent_bytes() const = 0;

 private:
  friend class StreamPump;
  std::atomic<bool> scheduled_{false};
};

class StreamPump {
 public:
  // Stalls are checked every `tick` while there are calls.
  explicit StreamPump(absl::Duration tick = absl::Milliseconds(250));
  // REQUIRES: there is no call.
  ~StreamPump();

  // Keeps `call` alive until Remove.
  void Add(std::shared_ptr<PumpedCall> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // May destroy the call.
  void Remove(PumpedCall* call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Schedules Pump() to run soon; several requests before it runs are coalesced. Does not block on I/O.
  void Schedule(std::shared_ptr<PumpedCall> call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Number of live calls, and their unsent bytes together.
  uint64_t calls() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t unsent_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits up to `timeout` until there is no call; true if there is none.
  bool AwaitIdle(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Number of streams cut because of a slow reader, since the start.
  void CountSlowConsumer() { slow_consumers_.fetch_add(1); }
  uint64_t slow_consumers() const { return slow_consumers_.load(); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for work or for the next tick; false once the pump ends.
  bool Await(absl::Time next_tick, std::vector<std::shared_ptr<PumpedCall>>* ready)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckStalls(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);

  const absl::Duration tick_;
  std::atomic<uint64_t> slow_consumers_{0};
  mutable Mutex mutex_;
  absl::flat_hash_map<PumpedCall*, std::shared_ptr<PumpedCall>> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PumpedCall>> ready_ ABSL_GUARDED_BY(mutex_);
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar wake_;          // self-synchronised: work, or the end
  mutable CondVar idle_;  // self-synchronised: no call is live
  std::thread thread_;    // started by the constructor, joined by the destructor
};

}  // namespace sluice::inferd
