// Registry of live and waiting requests: unique ids, the bounded queue, and the retry delay of a refused
// request.
//
// Thread safety: thread-safe; handlers enter requests, the engine thread moves and ends them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "inferd/api/engine_api.h"
#include "inferd/forward/scheduler.h"

namespace sluice::inferd {

class RequestRegistry {
 public:
  // `clock` (null: the system clock) outlives the registry.
  explicit RequestRegistry(const QueueLimits& limits, const Clock* clock = nullptr)
      : clock_(clock == nullptr ? &real_clock_ : clock), limits_(limits) {}

  // Sets the limits of future requests; waiting requests keep waiting.
  void SetLimits(const QueueLimits& limits);

  // Enters a new request into the queue. ALREADY_EXISTS: the id is live; RESOURCE_EXHAUSTED, reason
  // QUEUE_FULL, naming the reached limit, with RetryDelay(). A client that floods the queue leaves an eighth
  // of its places to others.
  absl::StatusOr<SequenceId> Enter(const std::string& request_id, uint64_t tokens, uint64_t bytes,
                                   const std::string& client = "");

  // Returns the errors of Enter() that do not depend on the request.
  absl::Status CheckQueueSpace(const std::string& client);

  // Takes a request out of the queue. Later calls for the same request do nothing.
  void LeaveQueue(const std::string& request_id);

  // Ends a request; its id may be used again.
  void End(const std::string& request_id);

  // Estimates the time until a queue place is free, from the recent pace of freed places; each request
  // refused since the last one counts as one place ahead. Within kMinRetry..kMaxRetry.
  absl::Duration RetryDelay() const;
  static constexpr absl::Duration kMinRetry = absl::Milliseconds(50);
  static constexpr absl::Duration kMaxRetry = absl::Seconds(60);

  std::optional<SequenceId> Find(const std::string& request_id) const;
  uint64_t waiting() const;
  uint64_t live() const;

 private:
  struct Request {
    SequenceId id = 0;
    uint64_t tokens = 0;
    uint64_t bytes = 0;
    std::string client;
    bool waiting = true;
  };
  void StopWaiting(Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckQueueSpaceLocked(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status QueueFull(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration RetryDelayLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MonotonicClock real_clock_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  QueueLimits limits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Request> requests_ ABSL_GUARDED_BY(mutex_);
  SequenceId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint32_t> waiting_of_ ABSL_GUARDED_BY(mutex_);  // by client; absent: 0
  uint64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Queue places: time at which one last came free, mean interval between two while others waited (0: not
  // known), and number of requests refused since.
  int64_t freed_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
  double pace_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::inferd
