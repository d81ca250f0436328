// ServingMetrics: counters of finished responses, and the text of all metrics of inferd.
//
// Thread safety: thread-safe and lock-free; any thread records and reads.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/metrics.h"
#include "inferd/api/engine_api.h"
#include "inferd/serving/live_calls.h"
#include "inferd/serving/server_state.h"

namespace sluice::inferd {

class ServingMetrics {
 public:
  ServingMetrics();

  // Counts a finished response; `info` is null unless it ended OK.
  void Ended(const FinishInfo* info, const absl::Status& status);

  // Returns all metrics in Prometheus' text format.
  std::string Text(const EngineStats& stats, const ServerInfo& info, ServerState::Phase phase,
                   const LiveCalls& calls) const;

 private:
  MetricRegistry registry_;
  std::array<Counter*, 17> by_code_;  // by absl::StatusCode
  Histogram* const ttft_;
  Histogram* const tpot_;
  Histogram* const queue_;
  Histogram* const seconds_;
};

// System resources of this process.
//
// Thread safety: free functions, safe to call from any thread.

// Number of open file descriptors; 0 if /proc cannot be read.
uint64_t CountOpenDescriptors();

// Resident memory, bytes; 0 if /proc cannot be read. Only touched pages of weightd's mapped segments count.
uint64_t ResidentBytes();

// Parts of the resident memory. Zeros if /proc cannot be read.
struct ResidentParts {
  uint64_t own = 0;     // anonymous: private to this process
  uint64_t shared = 0;  // mapped memory files: touched pages of weightd's segments
};
ResidentParts ReadResidentParts();

}  // namespace sluice::inferd
