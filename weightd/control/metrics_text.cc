#include "weightd/control/metrics_text.h"

#include <cstddef>

#include "common/metrics/metric_text.h"
#include "weightd/core/store_counters.h"
#include "weightd/dram/store_metrics.h"

namespace sluice::weightd {
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
               "Requests that ended OK, by the slowest tier that they needed.");
  by_tier(&StoreMetrics::Class::requests);
  text->Family("weightd_request_bytes_total", kCounter,
               "Bytes of requests: resident, coalesced with another request's read, or read from SSD.");
  by_tier(&StoreMetrics::Class::bytes);
  const auto by_class = [&](auto member) {
    for (size_t i = 0; i < kRequestClasses; ++i) {
      text->Buckets({{"class", kRequestClassNames[i]}}, (metrics.classes[i].*member).Read());
    }
  };
  text->Family("weightd_queue_seconds", kHistogram, "Time until the first read of requests that read began.");
  by_class(&StoreMetrics::Class::queue_seconds);
  text->Family("weightd_io_seconds", kHistogram,
               "Time from the first read of a request until its last byte was verified.");
  by_class(&StoreMetrics::Class::io_seconds);
}

void Queues(const StoreStats& stats, const StoreMetrics& metrics, MetricText* text) {
  text->Family("weightd_queued_requests", kGauge, "Requests that wait for their turn or for memory.");
  text->Sample({{"class", "demand"}}, stats.queued_demand);
  text->Sample({{"class", "prefetch"}}, stats.queued_prefetch);
  text->Family("weightd_copy_seconds", kHistogram, "Copy time of transfers.");
  text->Buckets({}, metrics.copy_seconds.Read());
  text->One("weightd_prefetch_late_total", kCounter,
            "Demands that arrived while the prefetch was being read.", metrics.prefetch_late.value());
}

void Counters(const StoreStats& stats, MetricText* text) {
  for (const StoreCounter& counter : kStoreCounters) {
    if (counter.metric != nullptr) {
      text->One(counter.metric, counter.type, counter.help, stats.*counter.value);
    }
  }
}

void Sessions(const StoreStats& stats, MetricText* text) {
  uint64_t held = 0;
  uint64_t outstanding = 0;
  for (const SessionStats& session : stats.sessions) {
    held += session.held_bytes;
    outstanding += session.outstanding;
  }
  text->One("weightd_sessions", kGauge, "Open sessions.", stats.sessions.size());
  text->One("weightd_session_held_bytes", kGauge, "Bytes held by sessions' leases, summed over sessions.",
            held);
  text->One("weightd_outstanding_requests", kGauge, "Requests of all sessions without completion.",
            outstanding);
  text->Family("weightd_slab_bytes", kGauge, "Bytes of clients' mapped slabs, by handle kind.");
  for (size_t i = 0; i < kHandleKinds.size(); ++i) {
    text->Sample({{"handle", NameOf(kHandleKinds[i])}}, stats.slab_bytes[i]);
  }
}

}  // namespace

std::string WeightdMetrics(const WeightStore& store, const std::string& version) {
  const StoreStats stats = store.Look(&StoreCore::Stats);
  MetricText text;
  text.Family("weightd_build_info", kGauge, "The running build.");
  text.Sample({{"version", version}}, 1);
  text.Family("weightd_io_engine_info", kGauge, "The I/O engine that reads packs.");
  text.Sample({{"engine", stats.io_engine}}, 1);
  Requests(store.metrics(), &text);
  Queues(stats, store.metrics(), &text);
  Counters(stats, &text);
  Sessions(stats, &text);
  return text.Take();
}

}  // namespace sluice::weightd
