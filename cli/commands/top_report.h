// Output of `sluice top`: two samples of the daemons' counters, as rates, text and JSON.
//
// Thread safety: plain values and pure functions, safe to use from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/json.h"

namespace sluice::cli {

struct TopSession {
  std::string name;
  std::string state;
  uint64_t held_bytes = 0;
  uint64_t outstanding = 0;
};

struct WeightdFacts {
  uint64_t life = 0;  // changes when weightd restarts
  std::string io_engine;
  uint64_t dram_budget = 0;
  uint64_t segment_bytes = 0;
  uint64_t resident_bytes = 0;
  uint64_t queued = 0;
  uint64_t in_flight_bytes = 0;
  uint64_t errors = 0;            // checksum failures and failed reads
  uint64_t slow_reads = 0;        // reads that exceeded their timeout
  uint64_t hedged_reads = 0;      // hedged reads started for them
  uint64_t hedged_reads_won = 0;  // hedged reads that ended first
  uint64_t timed_out = 0;         // requests that ended because a read did not
  uint64_t sessions_lost = 0;     // sessions that weightd ended
  uint64_t sessions_stopped = 0;  // of these: stalled sessions
  // Counters.
  uint64_t resident_requests = 0;
  uint64_t joined_requests = 0;
  uint64_t ssd_requests = 0;
  uint64_t ssd_bytes = 0;
  uint64_t evictions = 0;
  std::vector<TopSession> sessions;
};

struct InferdFacts {
  uint64_t running = 0;
  uint64_t waiting = 0;
  uint64_t kv_used = 0;
  uint64_t kv_kept = 0;
  uint64_t kv_total = 0;
  // Counters.
  uint64_t steps = 0;
  uint64_t generated_tokens = 0;
  uint64_t prompt_tokens = 0;
  uint64_t cached_prompt_tokens = 0;
  uint64_t finished = 0;
  uint64_t failed = 0;
  uint64_t expert_requests = 0;
  uint64_t expert_hits = 0;
  uint64_t link_bytes = 0;
  double stall_seconds = 0;
};

// One sample. A daemon that did not answer is absent; `why` has the reason.
struct TopSample {
  absl::Time at;
  std::optional<WeightdFacts> weightd;
  std::string weightd_why;
  std::optional<InferdFacts> inferd;
  std::string inferd_why;
};

// Rates are per second between the two samples. They are 0 for a daemon that restarted in between or was
// absent before.
std::string TopText(const TopSample& before, const TopSample& now, bool terminal);
Json TopJson(const TopSample& before, const TopSample& now);

}  // namespace sluice::cli
