// HttpMetrics: HTTP responses by client and status.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/metrics/metric_text.h"
#include "common/mutex.h"

namespace sluice::inferd {

class HttpMetrics {
 public:
  // Counts a response at its start. Clients are user classes or key names, so there are few.
  void Answered(const std::string& client, int status) ABSL_LOCKS_EXCLUDED(mutex_);
  void ConnectionsAre(uint64_t count) { connections_.store(count, std::memory_order_relaxed); }
  void Refused() { refused_.fetch_add(1, std::memory_order_relaxed); }
  void Left() { left_.fetch_add(1, std::memory_order_relaxed); }

  uint64_t connections() const { return connections_.load(std::memory_order_relaxed); }

  // Appends all counters in Prometheus' text format.
  void Write(MetricText* text) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::atomic<uint64_t> connections_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> left_{0};
  mutable Mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::inferd
