// Which requests live, and how many wait: unique ids, the bounded queue.
//
// Thread safety: thread-safe; handlers enter requests, the engine thread moves and ends them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "inferd/api/queue_limits.h"
#include "inferd/schedule/scheduler.h"

namespace sluice {

class RequestRegistry {
 public:
  explicit RequestRegistry(const QueueLimits& limits) : limits_(limits) {}

  // For requests from now on; those that wait go on waiting.
  void SetLimits(const QueueLimits& limits);

  // A new request waits. ALREADY_EXISTS: the id lives; RESOURCE_EXHAUSTED, reason QUEUE_FULL, naming the
  // limit that is reached.
  absl::StatusOr<SequenceId> Enter(const std::string& request_id, uint64_t tokens, uint64_t bytes);

  // It waits no longer. Later calls for the same request do nothing.
  void LeaveQueue(const std::string& request_id);

  // It ended; its id may be used again.
  void End(const std::string& request_id);

  std::optional<SequenceId> Find(const std::string& request_id) const;
  uint64_t waiting() const;
  uint64_t live() const;

 private:
  struct Request {
    SequenceId id = 0;
    uint64_t tokens = 0;
    uint64_t bytes = 0;
    bool waiting = true;
  };
  void StopWaiting(Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  QueueLimits limits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Request> requests_ ABSL_GUARDED_BY(mutex_);
  SequenceId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice
