#include "weightd/metrics_text.h"

#include <cstddef>

#include "common/metrics/metric_text.h"
#include "weightd/store_metrics.h"

namespace sluice {
namespace {

constexpr MetricType kCounter = MetricType::kCounter;
constexpr MetricType kGauge = MetricType::kGauge;
constexpr MetricType kHistogram = MetricType::kHistogram;

void Requests(const StoreMetrics& metrics, MetricText* text) {
  const auto by_tier = [&](auto member) {
    for (size_t i = 0; i < kRequestClasses; ++i) {
      for (size_t tier = 0; tier < kFetchTiers; ++tier) {
        text->Sample({{"class", kRequestClassNames[i]}, {"tier", kFetchTierNames[tier]}},
                     (metrics.classes[i].*member)[tier].value());
      }
    }
  };
  text->Family("weightd_requests_total", kCounter,
               "Requests that ended OK, by the furthest tier that they had to wait for.");
  by_tier(&StoreMetrics::Class::requests);
  text->Family("weightd_request_bytes_total", kCounter,
               "Bytes that requests found in memory, joined another's read of, or had read from SSD.");
  by_tier(&StoreMetrics::Class::bytes);
  const auto by_class = [&](auto member) {
    for (size_t i = 0; i < kRequestClasses; ++i) {
      text->Buckets({{"class", kRequestClassNames[i]}}, (metrics.classes[i].*member).Read());
    }
  };
  text->Family("weightd_queue_seconds", kHistogram,
               "Time of requests that read, until their first read began.");
  by_class(&StoreMetrics::Class::queue_seconds);
  text->Family("weightd_io_seconds", kHistogram, "From there until their last byte was verified.");
  by_class(&StoreMetrics::Class::io_seconds);
}

void Reading(const StoreStats& stats, MetricText* text) {
  text->Family("weightd_queued_requests", kGauge, "Requests that wait for their turn or for room.");
  text->Sample({{"class", "demand"}}, stats.queued_demand);
  text->Sample({{"class", "prefetch"}}, stats.queued_prefetch);
  text->One("weightd_in_flight_bytes", kGauge, "Bytes being read.", stats.in_flight_bytes);
  text->One("weightd_fills_total", kCounter, "Extents read and verified.", stats.fills);
  text->One("weightd_read_bytes_total", kCounter, "Bytes read from SSD.", stats.bytes_read);
  text->One("weightd_cancelled_requests_total", kCounter, "Requests that ended CANCELLED.", stats.cancelled);
  text->One("weightd_no_room_requests_total", kCounter, "Requests that ended for want of room.",
            stats.no_room);
  text->One("weightd_checksum_failures_total", kCounter, "Extents whose bytes failed their checksum.",
            stats.checksum_failures);
  text->One("weightd_io_errors_total", kCounter, "Reads that failed.", stats.io_errors);
  text->One("weightd_rereads_total", kCounter, "Extents read again after a failure.", stats.rereads);
  text->One("weightd_slow_reads_total", kCounter, "Reads that had not ended by their deadline.",
            stats.slow_reads);
  text->One("weightd_second_reads_total", kCounter, "Second reads started beside slow ones.",
            stats.second_reads);
  text->One("weightd_second_reads_won_total", kCounter, "Of these, those that brought the bytes.",
            stats.second_reads_won);
  text->One("weightd_timed_out_requests_total", kCounter, "Requests that ended because a read did not.",
            stats.timed_out);
}

void Transfers(const StoreStats& stats, const StoreMetrics& metrics, MetricText* text) {
  text->One("weightd_transfers_total", kCounter, "Transfers into slabs that have ended.", stats.transfers);
  text->One("weightd_transfers_cancelled_total", kCounter, "Transfers that ended CANCELLED.",
            stats.transfers_cancelled);
  text->One("weightd_transfers_waiting", kGauge, "Transfers that wait for their turn.",
            stats.transfers_waiting);
  text->One("weightd_link_bytes_total", kCounter, "Bytes copied into slabs.", stats.link_bytes);
  text->Family("weightd_copy_seconds", kHistogram, "Time of the copies of transfers.");
  text->Buckets({}, metrics.copy_seconds.Read());
}

void Prefetches(const StoreStats& stats, const StoreMetrics& metrics, MetricText* text) {
  text->One("weightd_prefetch_issued_total", kCounter, "Prefetch requests.", stats.prefetch_requests);
  text->One("weightd_prefetch_useful_total", kCounter, "Extents that a prefetch brought and a session used.",
            stats.prefetch_useful);
  text->One("weightd_prefetch_late_total", kCounter, "Demands that came while the prefetch was being read.",
            metrics.prefetch_late.value());
  text->One("weightd_prefetch_wasted_total", kCounter, "Extents that a prefetch brought and nobody used.",
            stats.prefetch_wasted);
}

void Memory(const StoreStats& stats, MetricText* text) {
  text->One("weightd_dram_budget_bytes", kGauge, "Bytes that segments may take.", stats.dram_budget);
  text->One("weightd_segment_bytes", kGauge, "Bytes of all segments.", stats.segment_bytes);
  text->One("weightd_retired_bytes", kGauge, "Of these, given up and still mapped by a client.",
            stats.retired_bytes);
  text->One("weightd_segments", kGauge, "Segments of the arena.", stats.segments);
  text->One("weightd_resident_bytes", kGauge, "Bytes of extents in memory.", stats.resident_bytes);
  text->One("weightd_resident_extents", kGauge, "Extents in memory.", stats.resident_extents);
  text->One("weightd_bad_extents", kGauge, "Extents whose bytes on disk are damaged.", stats.bad_extents);
  text->One("weightd_evictions_total", kCounter, "Extents evicted.", stats.evictions);
  text->One("weightd_trusted_extents", kGauge, "Extents that the admission keeps from scans.",
            stats.trusted_extents);
  text->One("weightd_promotions_total", kCounter, "Extents that came to be that.", stats.promotions);
  text->One("weightd_scrub_bytes_total", kCounter, "Bytes verified again in memory.", stats.scrub_bytes);
  text->One("weightd_scrub_passes_total", kCounter, "Times that all that was resident has been.",
            stats.scrub_passes);
  text->One("weightd_scrub_failures_total", kCounter, "Extents whose bytes had gone bad in memory.",
            stats.scrub_failures);
}

void Sessions(const StoreStats& stats, MetricText* text) {
  uint64_t held = 0;
  uint64_t outstanding = 0;
  for (const SessionStats& session : stats.sessions) {
    held += session.held_bytes;
    outstanding += session.outstanding;
  }
  text->One("weightd_sessions", kGauge, "Open sessions.", stats.sessions.size());
  text->One("weightd_session_held_bytes", kGauge,
            "Bytes that sessions hold leases on, each counted for itself.", held);
  text->One("weightd_outstanding_requests", kGauge, "Requests of all sessions without completion.",
            outstanding);
  text->One("weightd_sessions_lost_total", kCounter, "Sessions ended for misbehaviour.", stats.sessions_lost);
}

}  // namespace

std::string WeightdMetrics(const WeightStore& store, const std::string& version) {
  const StoreStats stats = store.Stats();
  MetricText text;
  text.Family("weightd_build_info", kGauge, "What runs.");
  text.Sample({{"version", version}}, 1);
  text.Family("weightd_io_engine_info", kGauge, "How packs are read.");
  text.Sample({{"engine", stats.io_engine}}, 1);
  Requests(store.metrics(), &text);
  Reading(stats, &text);
  Transfers(stats, store.metrics(), &text);
  Prefetches(stats, store.metrics(), &text);
  Memory(stats, &text);
  Sessions(stats, &text);
  return text.Take();
}

}  // namespace sluice
