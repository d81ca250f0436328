// What StoreCore tells of itself.
#include "weightd/core/store_core.h"

namespace sluice {

StoreStats StoreCore::Stats() const {
  StoreStats stats;
  const Arena& arena = tier_.arena();
  static_cast<FetcherStats&>(stats) = fetcher_.stats();
  stats.dram_budget = arena.budget();
  stats.segment_bytes = arena.total_bytes();
  stats.retired_bytes = arena.retired_bytes();
  stats.segments = arena.segment_count();
  stats.resident_bytes = tier_.store().resident_bytes();
  stats.resident_extents = tier_.store().resident_extents();
  stats.bad_extents = tier_.store().bad_extents();
  stats.evictions = tier_.evictions();
  stats.eviction = NameOf(tier_.policy_kind().eviction);
  stats.admission = tier_.policy_kind().admission;
  stats.trusted_extents = tier_.trusted_extents();
  stats.promotions = tier_.promotions();
  stats.scrub_bytes = scrubber_.stats().bytes;
  stats.scrub_passes = scrubber_.stats().passes;
  stats.scrub_failures = scrubber_.stats().failures;
  stats.sessions_lost = sessions_lost_;
  stats.sessions_stopped = sessions_stopped_;
  stats.in_flight_bytes = fetcher_.started_bytes();
  stats.prefetch_useful = fetcher_.prefetches().useful();
  stats.prefetch_wasted = fetcher_.prefetches().wasted();
  stats.queued_demand = fetcher_.queued(RequestClass::kDemand);
  stats.queued_prefetch = fetcher_.queued(RequestClass::kPrefetch);
  if (environment_.transfers != nullptr) {
    const TransferStats transfers = environment_.transfers->stats();
    stats.transfers = transfers.transfers;
    stats.transfers_cancelled = transfers.cancelled;
    stats.transfers_waiting = transfers.waiting;
    stats.link_bytes = transfers.link_bytes;
  }
  for (const auto& [id, session] : sessions_) {
    SessionStats one;
    one.session = id;
    one.client_name = session->options().client_name;
    one.state = session->state == SessionState::kOpened   ? "opened"
                : session->state == SessionState::kActive ? "active"
                                                          : "lost";
    one.outstanding = session->state == SessionState::kLost ? 0 : session->outstanding();
    one.requests = session->requests;
    one.quota_bytes = session->options().quota_bytes;
    one.charged_bytes = tier_.charged_bytes(id);
    one.bytes_read = session->bytes_read;
    for (const SessionPackPlan& plan : session->options().packs) {
      const Store::Holdings held = tier_.store().HeldBy(plan.pack, id);
      one.held_extents += held.extents;
      one.held_bytes += held.bytes;
    }
    stats.sessions.push_back(std::move(one));
  }
  return stats;
}

}  // namespace sluice
