#include "inferd/forward.h"

#include <algorithm>
#include <cstring>

#include "common/status.h"

namespace sluice {

absl::Status Forward::Run(StepBatch* batch) {
  RETURN_IF_ERROR(queue_->Embed({batch->ids(), weights_.embed(), 1.0f, x_}));
  return RunFrom(0, batch);
}

absl::Status Forward::RunFrom(uint32_t first_layer, StepBatch* batch) {
  for (uint32_t layer = first_layer; layer < config_.layers.size() && !batch->all_lost(); ++layer) {
    RETURN_IF_ERROR(Attend(layer, *batch));
    RETURN_IF_ERROR(Mix(layer, batch));
    if (tap_ != nullptr) {
      RETURN_IF_ERROR(tap_->AfterLayer({layer, x_, outputs_, batch}));
    }
  }
  return absl::OkStatus();
}

// x += o(attention(rope(q), rope(k), v)), with q, k, v = W norm(x).
absl::Status Forward::Attend(uint32_t layer, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const Rope& rope = ropes_[rope_of_[layer]];
  const uint32_t tokens = batch.tokens();
  const uint32_t dims = rope.table ? a.rope.dimensions : 0;

  const MatMulPart qkv[] = {{w.q, q_, w.q_bias}, {w.k, k_, w.k_bias}, {w.v, v_, w.v_bias}};
  RETURN_IF_ERROR(queue_->MatMul({x_, tokens, config_.hidden, {}, w.attn_norm, qkv, {}}));
  RETURN_IF_ERROR(queue_->RopeKvWrite({.q = q_,
                                       .k = k_,
                                       .v = v_,
                                       .tokens = tokens,
                                       .heads = a.heads,
                                       .qk_norm = a.qk_norm,
                                       .q_norm = w.q_norm,
                                       .k_norm = w.k_norm,
                                       .rope_table = rope.table,
                                       .rope_positions = options_.context,
                                       .rope_dims = dims,
                                       .rope_interleaved = a.rope.interleaved,
                                       .sequences = batch.sequences(),
                                       .kv = kv_.view(layer)}));
  RETURN_IF_ERROR(queue_->Attention({.q = q_,
                                     .tokens = tokens,
                                     .heads = a.heads,
                                     .scale = a.scale,
                                     .sliding_window = a.sliding_window,
                                     .sequences = batch.sequences(),
                                     .kv = kv_.view(layer),
                                     .out = attended_}));
  const MatMulPart o[] = {{w.o, x_, w.o_bias}};
  return queue_->MatMul({attended_, tokens, a.heads * a.head_dim, {}, {}, o, x_});
}

// x += sum over ranks of weight * expert(norm(x)). Resident experts first, the others as they arrive; the sum
// goes by rank, so arrival decides nothing.
absl::Status Forward::Mix(uint32_t layer, StepBatch* batch) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const uint32_t tokens = batch->tokens();

  RETURN_IF_ERROR(queue_->Norm({x_, tokens, config_.hidden, weights_.layer(layer).ffn_norm, normed_}));
  ASSIGN_OR_RETURN(const Routing routing, Route(layer, tokens));
  RETURN_IF_ERROR(plan_.Build(routing, moe.experts, *batch));
  RETURN_IF_ERROR(residency_->BeginLayer(layer, plan_.demands()));
  if (tap_ != nullptr) {
    RETURN_IF_ERROR(tap_->AfterRouter({layer, x_, normed_, routing, batch}));
  }
  RETURN_IF_ERROR(ComputeExperts(layer, tokens));
  RETURN_IF_ERROR(DropLostRows(tokens, moe.top_k, batch));
  return queue_->Combine({outputs_, expert_weights_, tokens, moe.top_k, config_.hidden, x_, x_});
}

absl::StatusOr<Routing> Forward::Route(uint32_t layer, uint32_t tokens) {
  const MoeConfig& moe = config_.layers[layer].moe;
  const MatMulPart router[] = {{weights_.layer(layer).router, scores_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({normed_, tokens, config_.hidden, {}, {}, router, {}}));
  RETURN_IF_ERROR(
      routing_->Choose({layer, &moe, tokens, scores_, expert_ids_, expert_weights_, residency_}, queue_));
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  const uint64_t bytes = uint64_t{tokens} * moe.top_k * sizeof(float);
  const std::byte* ids = backend_->HostRead(expert_ids_, bytes);
  const std::byte* weights = backend_->HostRead(expert_weights_, bytes);
  if (ids == nullptr || weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be read");
  }
  return Routing{tokens, moe.top_k, reinterpret_cast<const int32_t*>(ids),
                 reinterpret_cast<const float*>(weights)};
}

absl::Status Forward::ComputeExperts(uint32_t layer, uint32_t tokens) {
  const MoeConfig& moe = config_.layers[layer].moe;
  for (;;) {
    ASSIGN_OR_RETURN(const absl::Span<const ReadyTile> ready, residency_->Next());
    if (ready.empty()) {
      return CountActive(layer);
    }
    works_.clear();
    for (const ReadyTile& tile : ready) {
      works_.push_back({.up = tile.up,
                        .gate = tile.gate,
                        .down = tile.down,
                        .rows = plan_.rows(tile.demand),
                        .slots = plan_.slots(tile.demand),
                        .neuron_begin = tile.neuron_begin,
                        .neuron_end = tile.neuron_end,
                        .sparsity = sparsity_->order(),
                        .threshold = sparsity_->threshold(layer, plan_.demands()[tile.demand].expert)});
    }
    const MoeExpertsArgs args = {.x = normed_,
                                 .tokens = tokens,
                                 .hidden = config_.hidden,
                                 .activation = {moe.activation, moe.activation_alpha, moe.activation_limit},
                                 .experts = works_,
                                 .y = outputs_,
                                 .slots = tokens * moe.top_k,
                                 .active = active_};
    if (tap_ != nullptr) {
      RETURN_IF_ERROR(tap_->BeforeExperts(layer, args));
    }
    RETURN_IF_ERROR(queue_->MoeExperts(args));
  }
}

absl::Status Forward::CountActive(uint32_t layer) {
  if (!sparsity_->enabled() || plan_.demands().empty()) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  uint64_t pairs = 0;
  uint64_t kept = 0;
  for (uint32_t demand = 0; demand < plan_.demands().size(); ++demand) {
    for (const uint32_t slot : plan_.slots(demand)) {
      const std::byte* count =
          backend_->HostRead(active_ + uint64_t{slot} * sizeof(uint32_t), sizeof(uint32_t));
      if (count == nullptr) {
        return absl::InternalError("the experts' neuron counts cannot be read");
      }
      uint32_t neurons = 0;
      std::memcpy(&neurons, count, sizeof(neurons));
      kept += neurons;
      ++pairs;
    }
  }
  sparsity_->Count(layer, pairs * config_.layers[layer].moe.expert_width, kept);
  return absl::OkStatus();
}

// Rows of sequences that met damaged weights count as nothing from here on: their results were never made.
absl::Status Forward::DropLostRows(uint32_t tokens, uint32_t top_k, StepBatch* batch) {
  for (const FailedDemand& failed : residency_->failed()) {
    for (const uint32_t row : plan_.rows(failed.demand)) {
      batch->Fail(batch->sequence_of(row), failed.extent);
    }
  }
  if (!batch->any_lost()) {
    return absl::OkStatus();
  }
  std::byte* bytes = backend_->HostWrite(expert_weights_, uint64_t{tokens} * top_k * sizeof(float));
  if (bytes == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  float* weights = reinterpret_cast<float*>(bytes);
  for (uint32_t row = 0; row < tokens; ++row) {
    if (batch->lost(row)) {
      std::fill_n(weights + uint64_t{row} * top_k, top_k, 0.0f);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LogitRows> Forward::Logits(absl::Span<const uint32_t> rows, uint32_t k) {
  const uint32_t count = static_cast<uint32_t>(rows.size());
  if (count > options_.logit_rows || k > options_.max_candidates) {
    return absl::InternalError(absl::StrCat("logits of ", count, " rows with ", k, " candidates; limits are ",
                                            options_.logit_rows, " and ", options_.max_candidates));
  }
  const MatMulPart head[] = {{weights_.head(), logits_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x_, count, config_.hidden, rows, weights_.final_norm(), head, {}}));
  RETURN_IF_ERROR(queue_->TopLogits({logits_, count, config_.vocab, k, top_ids_, top_values_, log_sums_}));
  RETURN_IF_ERROR(queue_->Wait(queue_->Record()));
  const auto read = [this](BufferRef ref, uint64_t values) { return backend_->HostRead(ref, values * 4); };
  LogitRows result;
  result.rows = count;
  result.k = k;
  result.logits = reinterpret_cast<const float*>(read(logits_.base, uint64_t{count} * config_.vocab));
  result.ids = reinterpret_cast<const int32_t*>(read(top_ids_, uint64_t{count} * k));
  result.values = reinterpret_cast<const float*>(read(top_values_, uint64_t{count} * k));
  result.log_sum_exp = reinterpret_cast<const float*>(read(log_sums_, count));
  if (result.logits == nullptr || result.ids == nullptr || result.values == nullptr ||
      result.log_sum_exp == nullptr) {
    return absl::InternalError("the logits' staging memory cannot be read");
  }
  return result;
}

}  // namespace sluice
