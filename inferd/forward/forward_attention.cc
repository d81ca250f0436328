// Attention of the forward pass, one function per kind.

#include "common/base/status.h"
#include "inferd/forward/forward.h"

namespace sluice::inferd {

// Computes x += o(attention(norm(x))), x the rows' residual.
absl::Status Forward::Attend(uint32_t layer, const Rows& x, const StepBatch& batch) {
  switch (config_.layers[layer].attention.kind) {
    case AttentionKind::kGrouped:
      return AttendGrouped(layer, x, batch);
    case AttentionKind::kLatent:
      return AttendLatent(layer, x, batch);
    case AttentionKind::kGatedDelta:
      return AttendDelta(layer, x, batch);
    case AttentionKind::kMamba:
      return AttendMamba(layer, x, batch);
    case AttentionKind::kShortConv:
      return AttendShortConv(layer, x, batch);
    case AttentionKind::kNone:
      return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("layer ", layer, " has an unknown kind of attention"));
}

absl::Status Forward::ProjectOut(uint32_t layer, uint32_t tokens, const Rows& from, uint32_t cols,
                                 const Rows& x) {
  const LayerWeights& w = weights_.layer(layer);
  const float scale = config_.residual_scale;
  if (!config_.layers[layer].post_norms) {
    const MatMulPart o[] = {{w.o, x, w.o_bias, scale}};
    return queue_->MatMul({from, tokens, cols, {}, {}, o, x});
  }
  const uint32_t hidden = config_.hidden;
  const MatMulPart o[] = {{w.o, sums_, w.o_bias}};
  RETURN_IF_ERROR(queue_->MatMul({from, tokens, cols, {}, {}, o, {}}));
  RETURN_IF_ERROR(queue_->Norm({sums_, tokens, hidden, w.attn_post_norm, sums_}));
  return queue_->Combine({sums_, {}, tokens, 1, hidden, x, x, scale});
}

std::array<Forward::RopeGroup, 2> Forward::RopeGroups(uint32_t layer, const StepBatch& batch) const {
  const Rope& rope = ropes_[rope_of_[layer]];
  const RopeRows& long_texts = rope.long_texts.has_value() ? *rope.long_texts : rope.short_texts;
  return {{{rope.short_texts.table(), batch.short_texts()}, {long_texts.table(), batch.long_texts()}}};
}

// Computes attention(rope(q), rope(k), v), with q, k, v = W norm(x).
absl::Status Forward::AttendGrouped(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const uint32_t tokens = batch.tokens();
  const uint32_t cols = a.heads * a.head_dim;

  std::array<MatMulPart, 4> parts = {{{w.q, q_, w.q_bias}, {w.k, k_, w.k_bias}}};
  size_t count = 2;
  if (!a.value_is_key) {
    parts[count++] = {w.v, v_, w.v_bias};
  }
  if (a.output_gate) {
    parts[count++] = {w.q_gate, gate_, {}};
  }
  RETURN_IF_ERROR(queue_->MatMul(
      {x, tokens, config_.hidden, {}, w.attn_norm, absl::MakeConstSpan(parts.data(), count), {}}));
  for (const RopeGroup& group : RopeGroups(layer, batch)) {
    if (group.sequences.empty()) {
      continue;
    }
    RETURN_IF_ERROR(queue_->RopeKvWrite({.q = q_,
                                         .k = k_,
                                         .v = a.value_is_key ? k_ : v_,
                                         .tokens = tokens,
                                         .heads = a.heads,
                                         .qk_norm = a.qk_norm,
                                         .q_norm = w.q_norm,
                                         .k_norm = w.k_norm,
                                         .value_norm = a.value_norm,
                                         .clip = a.clip_qkv,
                                         .temperature_scale = a.temperature_scale,
                                         .temperature_floor = a.temperature_floor,
                                         .temperature_offset = a.temperature_offset,
                                         .rope_table = group.table,
                                         .rope_positions = options_.context,
                                         .rope_dims = group.table ? a.rope.dimensions : 0,
                                         .rope_interleaved = a.rope.interleaved,
                                         .sequences = group.sequences,
                                         .kv = kv_.view(layer)}));
  }
  RETURN_IF_ERROR(queue_->Attention({.q = q_,
                                     .tokens = tokens,
                                     .heads = a.heads,
                                     .scale = a.scale,
                                     .sliding_window = a.sliding_window,
                                     .chunk = a.chunk,
                                     .sinks = w.sinks,
                                     .sequences = batch.sequences(),
                                     .kv = kv_.view(layer),
                                     .out = attended_}));
  if (a.output_gate) {
    RETURN_IF_ERROR(queue_->SigmoidGate({attended_, gate_, tokens, cols}));
  }
  return ProjectOut(layer, tokens, attended_, cols, x);
}

// Projects each head's q and the compressed kv into q_ and latent_.
absl::Status Forward::ProjectLatent(uint32_t layer, const Rows& x, uint32_t tokens) {
  const LayerWeights& w = weights_.layer(layer);
  const uint32_t q_rank = config_.layers[layer].attention.latent.q_rank;

  const MatMulPart down[] = {{w.kv_down, latent_, {}},
                             q_rank > 0 ? MatMulPart{w.q_down, q_low_, {}} : MatMulPart{w.q, q_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, down, {}}));
  if (q_rank == 0) {
    return absl::OkStatus();
  }
  const MatMulPart up[] = {{w.q, q_, {}}};
  return queue_->MatMul({q_low_, tokens, q_rank, {}, w.q_down_norm, up, {}});
}

// The cache holds the compressed kv and the rotated key part that all heads share. A head's scores and values
// are computed in that space: the key expansion is absorbed into q, the value expansion follows the
// attention.
absl::Status Forward::AttendLatent(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const LatentConfig& l = a.latent;
  const uint32_t tokens = batch.tokens();
  const uint32_t row = l.kv_rank + a.rope.dimensions;

  RETURN_IF_ERROR(ProjectLatent(layer, x, tokens));
  RETURN_IF_ERROR(queue_->HeadMatMul({q_, a.head_dim, tokens, a.heads, w.k_up_t, absorbed_, row}));
  for (const RopeGroup& group : RopeGroups(layer, batch)) {
    if (group.sequences.empty()) {
      continue;
    }
    RETURN_IF_ERROR(queue_->LatentKvWrite({.q = q_,
                                           .nope_dim = l.nope_dim,
                                           .latent = latent_,
                                           .q_out = absorbed_,
                                           .tokens = tokens,
                                           .heads = a.heads,
                                           .kv_rank = l.kv_rank,
                                           .norm = w.kv_down_norm,
                                           .temperature_scale = a.temperature_scale,
                                           .temperature_floor = a.temperature_floor,
                                           .temperature_offset = a.temperature_offset,
                                           .rope_table = group.table,
                                           .rope_positions = options_.context,
                                           .rope_dims = a.rope.dimensions,
                                           .rope_interleaved = a.rope.interleaved,
                                           .sequences = group.sequences,
                                           .kv = kv_.view(layer)}));
  }
  RETURN_IF_ERROR(queue_->Attention({.q = absorbed_,
                                     .tokens = tokens,
                                     .heads = a.heads,
                                     .scale = a.scale,
                                     .sliding_window = a.sliding_window,
                                     .sequences = batch.sequences(),
                                     .kv = kv_.view(layer),
                                     .out = attended_}));
  RETURN_IF_ERROR(queue_->HeadMatMul({attended_, l.kv_rank, tokens, a.heads, w.v_up, q_, l.value_dim}));
  return ProjectOut(layer, tokens, q_, a.heads * l.value_dim, x);
}

absl::Status Forward::AttendDelta(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const DeltaConfig& d = config_.layers[layer].attention.delta;
  const uint32_t tokens = batch.tokens();

  const MatMulPart parts[] = {
      {w.delta_qkv, q_, {}}, {w.delta_z, gate_, {}}, {w.delta_beta, beta_, {}}, {w.delta_decay, decay_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, parts, {}}));
  RETURN_IF_ERROR(queue_->GatedDelta({.qkv = q_,
                                      .z = gate_,
                                      .beta = beta_,
                                      .decay = decay_,
                                      .tokens = tokens,
                                      .shape = d,
                                      .conv = w.delta_conv.base,
                                      .a_log = w.delta_a_log,
                                      .dt_bias = w.delta_dt_bias,
                                      .norm = w.delta_norm,
                                      .sequences = batch.sequences(),
                                      .from = batch.state_from(),
                                      .to = batch.state_to(),
                                      .state = states_.view(layer),
                                      .out = attended_}));
  return ProjectOut(layer, tokens, attended_, d.value_heads * d.value_dim, x);
}

absl::Status Forward::AttendMamba(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const MambaConfig& m = config_.layers[layer].attention.mamba;
  const uint32_t tokens = batch.tokens();

  const MatMulPart parts[] = {{w.mamba_z, gate_, {}}, {w.mamba_xbc, q_, {}}, {w.mamba_dt, beta_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, parts, {}}));
  RETURN_IF_ERROR(queue_->Mamba({.z = gate_,
                                 .xbc = q_,
                                 .dt = beta_,
                                 .tokens = tokens,
                                 .shape = m,
                                 .conv = {w.mamba_conv.base, w.mamba_conv.stride / sizeof(float)},
                                 .conv_bias = w.mamba_conv_bias,
                                 .a_log = w.mamba_a_log,
                                 .dt_bias = w.mamba_dt_bias,
                                 .skip = w.mamba_d,
                                 .norm = w.mamba_norm,
                                 .sequences = batch.sequences(),
                                 .from = batch.state_from(),
                                 .to = batch.state_to(),
                                 .state = states_.view(layer),
                                 .out = attended_}));
  return ProjectOut(layer, tokens, attended_, m.heads * m.head_dim, x);
}

absl::Status Forward::AttendShortConv(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const ShortConvConfig& c = config_.layers[layer].attention.conv;
  const uint32_t tokens = batch.tokens();

  const MatMulPart in[] = {{w.conv_in, q_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, in, {}}));
  RETURN_IF_ERROR(queue_->ShortConv({.bcx = q_,
                                     .tokens = tokens,
                                     .shape = c,
                                     .conv = {w.conv_kernel.base, w.conv_kernel.stride / sizeof(float)},
                                     .sequences = batch.sequences(),
                                     .from = batch.state_from(),
                                     .to = batch.state_to(),
                                     .state = states_.view(layer),
                                     .out = attended_}));
  return ProjectOut(layer, tokens, attended_, c.width, x);
}

}  // namespace sluice::inferd
