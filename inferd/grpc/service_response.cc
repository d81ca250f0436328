#include "inferd/grpc/service_response.h"

namespace sluice::inferd {
namespace {

namespace v1 = inference::v1;

v1::FinishReason ReasonToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kStopSequence:
      return v1::FINISH_REASON_STOP_SEQUENCE;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillTimes(const StepTimes& times, v1::StepTimes* out) {
  out->set_step_seconds(times.step_seconds);
  out->set_compute_seconds(times.compute_seconds());
  out->set_load_seconds(times.load_seconds);
  out->set_overlap_seconds(times.overlap_seconds());
  out->set_stall_seconds(times.stall_seconds);
}

void FillPredictions(const PredictionStats& stats, v1::LayerPredictions* out) {
  out->set_predicted(stats.predicted);
  out->set_right(stats.right);
  out->set_wanted(stats.wanted);
  out->set_rows(stats.rows);
  out->set_best_right(stats.best_right);
  out->set_best_found(stats.best_found);
}

void FillLayer(const LayerStats& stats, v1::LayerStats* out) {
  v1::LayerExperts* experts = out->mutable_experts();
  experts->set_requests(stats.requests);
  experts->set_hits(stats.hits);
  experts->set_late(stats.late);
  experts->set_cpu(stats.cpu);
  experts->set_skipped(stats.skipped);
  experts->set_prefetch_issued(stats.prefetch_issued);
  experts->set_prefetch_useful(stats.prefetch_useful);
  FillPredictions(stats.predictions, out->mutable_predictions());
  for (uint32_t depth = 0; depth < stats.predictions_at.size(); ++depth) {
    if (stats.predictions_at[depth].predicted > 0) {
      v1::DepthPredictions* at = out->add_depths();
      at->set_depth(depth);
      FillPredictions(stats.predictions_at[depth], at->mutable_predictions());
    }
  }
  v1::LayerNeurons* neurons = out->mutable_neurons();
  neurons->set_requested(stats.neurons_requested);
  neurons->set_hits(stats.neurons_hit);
  neurons->set_fetched(stats.neurons_fetched);
  neurons->set_left_out(stats.neurons_left_out);
  neurons->set_predicted(stats.neurons_predicted);
  neurons->set_right(stats.neurons_right);
  neurons->set_wanted(stats.neurons_wanted);
  v1::LayerBytes* bytes = out->mutable_bytes();
  bytes->set_device(stats.bytes_device);
  bytes->set_link(stats.bytes_link);
  bytes->set_dram(stats.bytes_dram);
  bytes->set_ssd(stats.bytes_ssd);
  v1::LayerRouting* routing = out->mutable_routing();
  routing->set_rows(stats.routed_rows);
  routing->set_single(stats.single_rows);
  routing->set_pairs(stats.routed_pairs);
  routing->set_dropped(stats.dropped_pairs);
  routing->set_exchanged(stats.exchanged_pairs);
}

}  // namespace

void FillUsage(const Usage& usage, v1::Usage* out) {
  out->set_prompt_tokens(usage.prompt_tokens);
  out->set_completion_tokens(usage.completion_tokens);
  out->set_cached_prompt_tokens(usage.cached_prompt_tokens);
  out->set_total_tokens(usage.prompt_tokens + usage.completion_tokens);
}

void FillTimings(const Timings& timings, uint32_t completion_tokens, v1::Timings* out) {
  out->set_queue_seconds(timings.queue_seconds);
  out->set_prompt_seconds(timings.prompt_seconds);
  out->set_decode_seconds(timings.decode_seconds);
  out->set_stall_seconds(timings.stall_seconds);
  // The first token counts as prompt time, so n tokens took n - 1 decode steps.
  if (completion_tokens > 1 && timings.decode_seconds > 0) {
    out->set_tokens_per_second((completion_tokens - 1) / timings.decode_seconds);
  }
  out->set_expert_requests(timings.expert_requests);
  out->set_expert_hits(timings.expert_hits);
  out->set_bytes_ssd(timings.bytes_ssd);
  out->set_bytes_link(timings.bytes_link);
}

void FillFinished(const FinishInfo& info, v1::Finished* out) {
  out->set_reason(ReasonToProto(info.reason));
  if (info.matched_stop_id.has_value()) {
    out->set_stop_token_id(static_cast<uint32_t>(*info.matched_stop_id));
  } else if (info.matched_stop_string.has_value()) {
    out->set_stop_text(*info.matched_stop_string);
  }
  FillUsage(info.usage, out->mutable_usage());
  FillTimings(info.timings, info.usage.completion_tokens, out->mutable_timings());
  out->set_seed(info.seed);
}

void FillModel(const ServedModel& model, bool has_tokenizer, v1::Model* out) {
  out->set_id(model.id);
  out->set_name(model.name);
  out->set_family(model.family);
  out->set_vocab_size(model.vocab);
  out->set_hidden_size(model.hidden);
  out->set_layers(model.layers);
  out->set_experts_per_layer(model.experts_per_layer);
  out->set_experts_per_token(model.experts_per_token);
  out->set_context_tokens(model.context);
  out->set_max_position(model.max_position);
  if (model.bos.has_value()) {
    out->set_bos_token_id(static_cast<uint32_t>(*model.bos));
  }
  for (const int32_t id : model.eos) {
    out->add_eos_token_ids(static_cast<uint32_t>(id));
  }
  const SamplingParams defaults = DefaultSampling(model.generation);
  v1::SamplingParams* sampling = out->mutable_generation_defaults();
  sampling->set_temperature(defaults.temperature);
  sampling->set_top_p(defaults.top_p);
  sampling->set_top_k(defaults.top_k);
  sampling->set_min_p(defaults.min_p);
  sampling->set_repetition_penalty(defaults.repetition_penalty);
  out->set_has_tokenizer(has_tokenizer);
  out->set_has_chat_template(model.has_chat_template);
  out->set_expert_bytes(model.expert_bytes);
  out->set_dense_bytes(model.dense_bytes);
}

void FillStats(const EngineStats& stats, v1::GetStatsResponse* out) {
  v1::Gauges* gauges = out->mutable_gauges();
  gauges->set_sequences_running(stats.sequences_running);
  gauges->set_sequences_waiting(stats.sequences_waiting);
  gauges->set_kv_pages_used(stats.kv_pages_used);
  gauges->set_expert_leases(stats.expert_leases_held);
  gauges->set_fetches_outstanding(stats.fetches_outstanding);
  v1::Resources* resources = out->mutable_resources();
  resources->set_kv_pages_total(stats.kv_pages_total);
  resources->set_kv_pages_kept(stats.kv_pages_cached);
  resources->set_dense_leases(stats.dense_leases_held);
  v1::Counters* counters = out->mutable_counters();
  counters->set_steps(stats.steps);
  counters->set_decode_steps(stats.decode_steps);
  counters->set_prompt_tokens(stats.prompt_tokens);
  counters->set_cached_prompt_tokens(stats.cached_prompt_tokens);
  counters->set_preemptions(stats.preemptions);
  counters->set_generated_tokens(stats.generated_tokens);
  counters->set_requests_finished(stats.requests_finished);
  counters->set_requests_cancelled(stats.requests_cancelled);
  counters->set_requests_failed(stats.requests_failed);
  counters->set_requests_rejected(stats.requests_rejected);
  counters->set_expert_requests(stats.expert_requests);
  counters->set_expert_hits(stats.expert_hits);
  counters->set_prefetch_issued(stats.prefetch_issued);
  counters->set_prefetch_useful(stats.prefetch_useful);
  counters->set_predictions(stats.predictions);
  counters->set_predictions_right(stats.predictions_right);
  counters->set_predictions_wanted(stats.predictions_wanted);
  counters->set_bytes_ssd(stats.bytes_ssd);
  counters->set_bytes_link(stats.bytes_link);
  counters->set_weight_bytes_touched(stats.weight_bytes_touched);
  counters->set_weightd_reconnects(stats.weightd_reconnects);
  counters->set_device_waits(stats.device_waits);
  counters->set_device_kernels(stats.device_kernels);
  counters->set_device_graph_launches(stats.device_graph_launches);
  counters->set_device_graph_changes(stats.device_graph_changes);
  counters->set_fork_joins(stats.fork_joins);
  counters->set_fork_join_seconds(stats.fork_join_seconds);
  counters->mutable_drafts_verified()->Add(stats.drafts_verified.begin(), stats.drafts_verified.end());
  counters->mutable_drafts_accepted()->Add(stats.drafts_accepted.begin(), stats.drafts_accepted.end());
  counters->set_speculation_saved_seconds(stats.speculation_saved_seconds);
  counters->set_kernel_seconds(stats.kernel_seconds);
  counters->set_stall_seconds(stats.stall_seconds);
  counters->set_prompt_seconds(stats.prompt_seconds);
  counters->set_decode_seconds(stats.decode_seconds);
  if (stats.neuron_slots > 0) {
    v1::NeuronCache* cache = out->mutable_neuron_cache();
    cache->set_slots(stats.neuron_slots);
    cache->set_lead_resident(stats.leads_stay);
    cache->set_copy_all_share(stats.copy_all_share);
  }
  for (size_t part = 0; part < kStepParts; ++part) {
    v1::PartWork* work = out->add_parts();
    work->set_part(NameOf(static_cast<StepPart>(part)));
    work->set_seconds(stats.parts[part].seconds);
    work->set_bytes(stats.parts[part].bytes);
    work->set_products(stats.parts[part].products);
  }
  FillTimes(stats.times, out->mutable_times());
  FillTimes(stats.real_times, out->mutable_real_times());
}

void FillSparsity(const std::vector<LayerSparsity>& layers, v1::GetStatsResponse* out) {
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    v1::LayerSparsity* entry = out->add_sparsity();
    entry->set_layer(layer);
    entry->set_neurons(layers[layer].neurons);
    entry->set_kept(layers[layer].kept);
  }
}

void FillLayers(const std::vector<LayerStats>& layers, v1::GetStatsResponse* out) {
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    v1::LayerStats* entry = out->add_layers();
    entry->set_layer(layer);
    FillLayer(layers[layer], entry);
  }
}

}  // namespace sluice::inferd
