// Statistics of weightd's core: one value with every counter and gauge, and each session's holdings.
//
// The counters lie in the stats of the part that counts them, which are bases here; store_counters.h has each
// number's public name.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/ring/memory_handle.h"
#include "common/transfer/transfer_stats.h"
#include "weightd/fetch/fetcher_stats.h"
#include "weightd/fetch/scrubber.h"

namespace sluice::weightd {

struct SessionStats {
  uint64_t session = 0;
  std::string client_name;
  std::string state;          // "opened", "active", "lost"
  uint64_t held_extents = 0;  // extents with a pin of this session above zero
  uint64_t held_bytes = 0;    // bytes of these
  uint64_t outstanding = 0;   // requests without completion
  uint64_t requests = 0;
  uint64_t bytes_read = 0;
  uint64_t quota_bytes = 0;    // 0: none
  uint64_t charged_bytes = 0;  // of the quota
};

struct StoreStats : FetcherStats, TransferStats, ScrubStats {
  // Gauges of the memory.
  uint64_t dram_budget = 0;
  uint64_t segment_bytes = 0;  // all segments, also retired but unacknowledged ones: <= dram_budget
  uint64_t retired_bytes = 0;  // retired ones of these
  uint64_t resident_bytes = 0;
  uint64_t resident_extents = 0;
  uint64_t bad_extents = 0;
  uint64_t segments = 0;
  uint64_t trusted_extents = 0;  // extents that the admission keeps from scans
  uint64_t in_flight_bytes = 0;
  // Requests that wait for their turn or for room; by class in the metrics.
  uint64_t queued_demand = 0;
  uint64_t queued_prefetch = 0;
  // Counters.
  uint64_t evictions = 0;
  uint64_t promotions = 0;        // number of extents that became trusted
  uint64_t prefetch_useful = 0;   // prefetched extents that a session used
  uint64_t prefetch_wasted = 0;   // prefetched extents that left memory unused
  uint64_t sessions_lost = 0;     // sessions that weightd ended: misbehaving or stalled
  uint64_t sessions_stalled = 0;  // the stalled ones of these

  // Bytes of mapped slabs, by kHandleKinds.
  std::array<uint64_t, kHandleKinds.size()> slab_bytes = {};

  std::string eviction;  // "lru", "lfru", "score"
  bool admission = false;
  std::string io_engine;  // "uring, O_DIRECT", "pread, buffered"
  std::vector<SessionStats> sessions;
};

}  // namespace sluice::weightd
