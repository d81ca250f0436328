// Statistics of weightd's core: one value with every counter and gauge, and each session's holdings.
//
// Each part's counters are a base struct of StoreStats; kStoreCounters has each number's public name.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/metrics.h"
#include "common/protocol/memory_handle.h"
#include "common/protocol/transfer_engine.h"
#include "weightd/store/scrubber.h"
#include "weightd/store/store_metrics.h"

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

// The one table of the numbers in StoreStats: their names in GetStatsResponse and in the metrics.
//
// Thread safety: constants.

struct StoreCounter {
  const char* field;  // of sluice.weights.v1.GetStatsResponse, a uint64
  uint64_t StoreStats::*value;
  const char* metric;  // null: none; the labelled families of weights_service.cc cover it
  MetricType type;
  const char* help;
};

inline constexpr StoreCounter kStoreCounters[] = {
    // Reading.
    {"in_flight_bytes", &StoreStats::in_flight_bytes, "weightd_in_flight_bytes", MetricType::kGauge,
     "Bytes being read."},
    {"fills", &StoreStats::fills, "weightd_fills_total", MetricType::kCounter, "Extents read and verified."},
    {"bytes_read", &StoreStats::bytes_read, "weightd_read_bytes_total", MetricType::kCounter,
     "Bytes read from files."},
    {"page_cache_bytes", &StoreStats::cached_bytes, "weightd_page_cache_bytes_total", MetricType::kCounter,
     "Bytes of these that the page cache held; the others came from SSD."},
    {"demand_requests", &StoreStats::demand_requests, nullptr, MetricType::kCounter, ""},
    {"resident_requests", &StoreStats::resident_requests, nullptr, MetricType::kCounter, ""},
    {"joined", &StoreStats::coalesced, nullptr, MetricType::kCounter, ""},
    {"cancelled", &StoreStats::cancelled, "weightd_cancelled_requests_total", MetricType::kCounter,
     "Requests that ended CANCELLED."},
    {"no_room", &StoreStats::no_room, "weightd_no_room_requests_total", MetricType::kCounter,
     "Requests that ended for lack of memory."},
    {"checksum_failures", &StoreStats::checksum_failures, "weightd_checksum_failures_total",
     MetricType::kCounter, "Extents whose bytes failed their checksum."},
    {"io_errors", &StoreStats::io_errors, "weightd_io_errors_total", MetricType::kCounter,
     "Reads that failed."},
    {"rereads", &StoreStats::rereads, "weightd_rereads_total", MetricType::kCounter,
     "Extents read again after a failure."},
    {"slow_reads", &StoreStats::slow_reads, "weightd_slow_reads_total", MetricType::kCounter,
     "Reads that had not ended by their timeout."},
    {"second_reads", &StoreStats::hedged_reads, "weightd_hedged_reads_total", MetricType::kCounter,
     "Hedged reads started for slow ones."},
    {"second_reads_won", &StoreStats::hedged_reads_won, "weightd_hedged_reads_won_total",
     MetricType::kCounter, "Hedged reads that ended first, with good bytes."},
    {"timed_out", &StoreStats::timed_out, "weightd_timed_out_requests_total", MetricType::kCounter,
     "Requests that ended because a read timed out."},
    // Transfers.
    {"transfers", &StoreStats::transfers, "weightd_transfers_total", MetricType::kCounter,
     "Transfers into slabs that have ended."},
    {"transfers_cancelled", &StoreStats::transfers_cancelled, "weightd_transfers_cancelled_total",
     MetricType::kCounter, "Transfers that ended CANCELLED."},
    {"transfers_waiting", &StoreStats::transfers_waiting, "weightd_transfers_waiting", MetricType::kGauge,
     "Transfers that wait for their turn."},
    {"link_bytes", &StoreStats::link_bytes, "weightd_link_bytes_total", MetricType::kCounter,
     "Bytes copied into slabs."},
    // Prefetches.
    {"prefetch_requests", &StoreStats::prefetch_requests, "weightd_prefetch_issued_total",
     MetricType::kCounter, "Prefetch requests."},
    {"prefetch_useful", &StoreStats::prefetch_useful, "weightd_prefetch_useful_total", MetricType::kCounter,
     "Prefetched extents that a session used."},
    {"prefetch_wasted", &StoreStats::prefetch_wasted, "weightd_prefetch_wasted_total", MetricType::kCounter,
     "Prefetched extents evicted without a use."},
    // Memory.
    {"dram_budget_bytes", &StoreStats::dram_budget, "weightd_dram_budget_bytes", MetricType::kGauge,
     "Maximum bytes of all segments."},
    {"segment_bytes", &StoreStats::segment_bytes, "weightd_segment_bytes", MetricType::kGauge,
     "Bytes of all segments."},
    {"retired_bytes", &StoreStats::retired_bytes, "weightd_retired_bytes", MetricType::kGauge,
     "Bytes of retired segments that a client still maps."},
    {"segments", &StoreStats::segments, "weightd_segments", MetricType::kGauge, "Segments of the arena."},
    {"resident_bytes", &StoreStats::resident_bytes, "weightd_resident_bytes", MetricType::kGauge,
     "Bytes of extents in memory."},
    {"resident_extents", &StoreStats::resident_extents, "weightd_resident_extents", MetricType::kGauge,
     "Extents in memory."},
    {"bad_extents", &StoreStats::bad_extents, "weightd_bad_extents", MetricType::kGauge,
     "Extents whose bytes on disk are damaged."},
    {"evictions", &StoreStats::evictions, "weightd_evictions_total", MetricType::kCounter,
     "Extents evicted."},
    {"trusted_extents", &StoreStats::trusted_extents, "weightd_trusted_extents", MetricType::kGauge,
     "Extents that the admission keeps from scans."},
    {"promotions", &StoreStats::promotions, "weightd_promotions_total", MetricType::kCounter,
     "Extents that became trusted."},
    {"scrub_bytes", &StoreStats::scrub_bytes, "weightd_scrub_bytes_total", MetricType::kCounter,
     "Bytes verified again in memory."},
    {"scrub_passes", &StoreStats::scrub_passes, "weightd_scrub_passes_total", MetricType::kCounter,
     "Passes over all resident extents."},
    {"scrub_failures", &StoreStats::scrub_failures, "weightd_scrub_failures_total", MetricType::kCounter,
     "Extents whose bytes had gone bad in memory."},
    // Sessions.
    {"sessions_lost", &StoreStats::sessions_lost, "weightd_sessions_lost_total", MetricType::kCounter,
     "Sessions that weightd ended: misbehaving or stalled."},
    {"sessions_stopped", &StoreStats::sessions_stalled, "weightd_sessions_stalled_total",
     MetricType::kCounter,
     "Sessions ended as stalled: no sign of life, and more than a fair share held while others starved."},
};

}  // namespace sluice::weightd
