// The engine's statistics: steps, times, and counters of its parts.
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "inferd/engine/engine_core.h"
#include "inferd/experts/residency_statistics.h"

namespace sluice::inferd {
namespace {

void AddResidency(const ResidencyCounters& from, LayerStats* to) {
  to->requests = from.requests;
  to->hits = from.hits;
  to->late = from.late;
  to->cpu = from.cpu;
  to->prefetch_issued = from.prefetch_issued;
  to->prefetch_useful = from.prefetch_useful;
  to->bytes_device = from.bytes_touched - from.bytes_dram;
  to->bytes_dram = from.bytes_dram;
  to->bytes_link = from.bytes_link;
  to->bytes_ssd = from.bytes_ssd;
}

void AddNeurons(const NeuronCounters& from, LayerStats* to) {
  to->neurons_requested = from.requests;
  to->neurons_hit = from.hits;
  to->neurons_fetched = from.fetched + from.prefetched;
  to->neurons_left_out = from.left_out;
}

PredictionStats PredictionsOf(const PredictionCounters& from) {
  return {from.predicted, from.right, from.wanted, from.rows, from.best_right, from.best_found};
}

void AddNeuronPredictions(const NeuronPredictions& from, LayerStats* to) {
  to->neurons_predicted = from.predicted;
  to->neurons_right = from.right;
  to->neurons_wanted = from.wanted;
}

void AddRouting(const RoutingCounters& from, LayerStats* to) {
  to->routed_rows = from.rows;
  to->single_rows = from.single;
  to->routed_pairs = from.pairs;
  to->dropped_pairs = from.dropped;
  to->exchanged_pairs = from.exchanged;
}

}  // namespace

StepCost EngineCore::CostNow() const {
  const ResidencyCounters counters = statistics().counters();
  return {static_cast<double>(fetches_.stall_nanos()) * 1e-9, static_cast<double>(counters.requests),
          static_cast<double>(counters.hits), static_cast<double>(fetches_.bytes_ssd()),
          static_cast<double>(fetches_.bytes_link())};
}

StepCost EngineCore::CostSince(const StepCost& before) const {
  const StepCost now = CostNow();
  return {now.stall_seconds - before.stall_seconds, now.expert_requests - before.expert_requests,
          now.expert_hits - before.expert_hits, now.bytes_ssd - before.bytes_ssd,
          now.bytes_link - before.bytes_link};
}

// Busy time of the link: the modelled time of the bytes on a throttled link, else the measured time of
// copies.
double EngineCore::LoadSeconds() const {
  return link_gbps_ > 0 ? static_cast<double>(fetches_.bytes_link()) / (link_gbps_ * 1e9)
                        : fetches_.copy_seconds();
}

EngineCore::StepMarks EngineCore::MarksNow() const {
  const Clock& clock = virtual_clock_ == nullptr ? static_cast<const Clock&>(real_clock_) : *virtual_clock_;
  return {clock.NowNanos(),       real_clock_.NowNanos(),
          fetches_.stall_nanos(), fetches_.real_stall_nanos(),
          LoadSeconds(),          statistics().counters().bytes_touched,
          fetches_.bytes_ssd()};
}

void EngineCore::CountTimes(const StepMarks& before, const StepMarks& now) {
  const auto seconds = [](int64_t from, int64_t to) { return static_cast<double>(to - from) * 1e-9; };
  const double load = now.load_seconds - before.load_seconds;
  counted_.times.step_seconds += seconds(before.nanos, now.nanos);
  counted_.times.stall_seconds += seconds(before.stall_nanos, now.stall_nanos);
  counted_.times.load_seconds += load;
  counted_.real_times.step_seconds += seconds(before.real_nanos, now.real_nanos);
  counted_.real_times.stall_seconds += seconds(before.real_stall_nanos, now.real_stall_nanos);
  counted_.real_times.load_seconds += virtual_clock_ == nullptr ? load : 0;
}

void EngineCore::CountStep(const StepPlan& plan, const StepMarks& before) {
  const StepMarks now = MarksNow();
  CountTimes(before, now);
  const double seconds = static_cast<double>(now.nanos - before.nanos) * 1e-9;
  const uint64_t expert_bytes = now.bytes_touched - before.bytes_touched;
  counted_.steps++;
  if (plan.prefill_rows > 0) {
    counted_.prompt_seconds += seconds;
    chunk_.Note(plan.prefill_rows, seconds, static_cast<double>(now.stall_nanos - before.stall_nanos) * 1e-9,
                now.bytes_ssd - before.bytes_ssd);
    return;
  }
  counted_.decode_steps++;
  counted_.decode_seconds += seconds;
  counted_.weight_bytes_touched += weights_->bytes_per_step() + expert_bytes;
}

void EngineCore::FillStats(EngineStats* stats) const {
  *stats = counted_;
  const ResidencyCounters residency = statistics().counters();
  const BackendCounters backend = backend_->Counters();
  stats->sequences_running = scheduler_->running();
  stats->kv_pages_used = kv_->pages().used();
  stats->kv_pages_total = kv_->pages().total();
  stats->kv_pages_cached = kv_->pages().kept_pages();
  stats->expert_leases_held = statistics().held();
  stats->dense_leases_held = weights_->leases();
  stats->fetches_outstanding = fetches_.outstanding();
  stats->expert_requests = residency.requests;
  stats->expert_hits = residency.hits;
  stats->prefetch_issued = residency.prefetch_issued;
  stats->prefetch_useful = residency.prefetch_useful;
  stats->draft_steps = forward_->drafts().made;
  stats->draft_steps_right = forward_->drafts().right;
  if (prefetcher_ != nullptr) {
    const PredictionCounters predictions = prefetcher_->total();
    stats->predictions = predictions.predicted;
    stats->predictions_right = predictions.right;
    stats->predictions_wanted = predictions.wanted;
  }
  if (const std::optional<NeuronCacheFacts> cache = statistics().neuron_cache(); cache.has_value()) {
    stats->neuron_slots = cache->slots;
    stats->leads_stay = cache->leads_stay;
    stats->copy_all_share = cache->copy_all_share;
    stats->copy_all_measured = cache->copy_all_measured;
  }
  stats->bytes_ssd = fetches_.bytes_ssd();
  stats->bytes_link = fetches_.bytes_link();
  stats->weightd_reconnects = client_->counters().reconnects;
  stats->device_waits = backend.waits;
  stats->device_kernels = backend.kernels;
  stats->device_graph_launches = backend.graph_launches;
  stats->device_graph_changes = backend.graphs_made + backend.graphs_updated;
  stats->fork_joins = backend.fork_joins;
  stats->fork_join_seconds = backend.region_seconds;
  stats->kernel_seconds = backend.kernel_seconds;
  stats->parts = forward_->part_works();
  stats->stall_seconds = static_cast<double>(fetches_.stall_nanos()) * 1e-9;
}

void EngineCore::FillLayers(std::vector<LayerStats>* layers) const {
  layers->resize(client_->pack().config().layers.size());
  const absl::Span<const ResidencyCounters> residency = statistics().counters_by_layer();
  const absl::Span<const NeuronCounters> neurons = statistics().neuron_counters();
  const absl::Span<const RoutingCounters> routing = routing_->layer_counters();
  const absl::Span<const uint64_t> skipped = routing_->skipped();
  for (uint32_t layer = 0; layer < layers->size(); ++layer) {
    LayerStats& stats = (*layers)[layer];
    stats = {};
    if (layer < residency.size()) {
      AddResidency(residency[layer], &stats);
    }
    if (layer < neurons.size()) {
      AddNeurons(neurons[layer], &stats);
    }
    if (prefetcher_ != nullptr) {
      stats.predictions = PredictionsOf(prefetcher_->counters(layer));
      static_assert(std::tuple_size_v<decltype(stats.predictions_at)> == Prefetcher::kMaxPrefetchDepth + 1);
      for (uint32_t depth = 0; depth <= Prefetcher::kMaxPrefetchDepth; ++depth) {
        stats.predictions_at[depth] = PredictionsOf(prefetcher_->counters_at(layer, depth));
      }
      AddNeuronPredictions(prefetcher_->neuron_predictions(layer), &stats);
    }
    if (layer < routing.size()) {
      AddRouting(routing[layer], &stats);
    }
    stats.skipped = layer < skipped.size() ? skipped[layer] : 0;
  }
}

}  // namespace sluice::inferd
