// Which requests live, and how many wait: unique ids, the bounded queue, and when one that is refused may
// find a place in it.
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
#include "common/clock.h"
#include "common/mutex.h"
#include "inferd/api/queue_limits.h"
#include "inferd/schedule/scheduler.h"

namespace sluice {

class RequestRegistry {
 public:
  // `clock` (null: the machine's) outlives the registry.
  explicit RequestRegistry(const QueueLimits& limits, const Clock* clock = nullptr)
      : clock_(clock == nullptr ? &real_clock_ : clock), limits_(limits) {}

  // For requests from now on; those that wait go on waiting.
  void SetLimits(const QueueLimits& limits);

  // A new request waits. ALREADY_EXISTS: the id lives; RESOURCE_EXHAUSTED, reason QUEUE_FULL, naming the
  // limit that is reached, with RetryDelay().
  // A client that floods the queue leaves an eighth of its places to others.
  absl::StatusOr<SequenceId> Enter(const std::string& request_id, uint64_t tokens, uint64_t bytes,
                                   const std::string& client = "");

  // The errors of Enter() that do not depend on what the request is.
  absl::Status CheckPlace(const std::string& client);

  // It waits no longer. Later calls for the same request do nothing.
  void LeaveQueue(const std::string& request_id);

  // It ended; its id may be used again.
  void End(const std::string& request_id);

  // How long until a place in the queue is likely, by the pace at which places came free lately; those that
  // were refused since the last did each have one before. Within kShortestRetry..kLongestRetry.
  absl::Duration RetryDelay() const;
  static constexpr absl::Duration kShortestRetry = absl::Milliseconds(50);
  static constexpr absl::Duration kLongestRetry = absl::Seconds(60);

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
  absl::Status CheckPlaceLocked(const std::string& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status QueueFull(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration RetryDelayLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MonotonicClock real_clock_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  QueueLimits limits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Request> requests_ ABSL_GUARDED_BY(mutex_);
  SequenceId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint32_t> waiting_of_ ABSL_GUARDED_BY(mutex_);  // by client; none is 0
  uint64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of places in the queue: when one last came free, the mean time between two while others waited (0: not
  // known), and requests refused since.
  int64_t freed_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
  double pace_nanos_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
