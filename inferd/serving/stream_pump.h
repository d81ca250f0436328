// StreamPump: the thread that writes what the engine appended to calls, and the registry of the calls that
// live.
//
// The engine's thread must never run gRPC's code: it appends to a call and schedules it here, which costs at
// most one wake for a whole step. The pump also cuts streams whose reader has stalled. gRPC-free.
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
#include "common/mutex.h"

namespace sluice {

// A call as the pump sees it. Its methods are called by the pump's thread, one at a time, except
// unsent_bytes, which any thread may call.
class PumpedCall {
 public:
  virtual ~PumpedCall() = default;
  // Writes what is pending, unless a write is under way.
  virtual void Pump() = 0;
  // Cuts the call off if its reader has taken nothing for too long.
  virtual void CheckStall(absl::Time now) = 0;
  // Bytes appended or being written that the reader has not taken. Takes no lock.
  virtual uint64_t unsent_bytes() const = 0;

 private:
  friend class StreamPump;
  std::atomic<bool> scheduled_{false};
};

class StreamPump {
 public:
  // Stalls are looked for every `tick` while calls live.
  explicit StreamPump(absl::Duration tick = absl::Milliseconds(250));
  // REQUIRES: no call lives.
  ~StreamPump();

  // Keeps `call` alive until Remove.
  void Add(std::shared_ptr<PumpedCall> call) ABSL_LOCKS_EXCLUDED(mutex_);
  // May destroy the call.
  void Remove(PumpedCall* call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Has Pump() run soon; calls between two runs are one. Does not block on I/O.
  void Schedule(std::shared_ptr<PumpedCall> call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls that live, and their unsent bytes together.
  uint64_t calls() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t unsent_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until no call lives, up to `patience`; whether none does.
  bool AwaitIdle(absl::Duration patience) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Streams cut because of their reader, since the start.
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
  mutable CondVar idle_;  // self-synchronised: no call lives
  std::thread thread_;    // the constructor's and the destructor's
};

}  // namespace sluice
