// Attention of the forward pass, one function per kind.

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "inferd/forward/forward.h"

namespace sluice::inferd {

// Computes x += o(attention(norm(x))), x the rows' residual; of several streams attention takes their mix,
// and its output is added to all. A layer's n-grams are added before.
absl::Status Forward::Attend(uint32_t layer, const Rows& x, const StepBatch& batch) {
  RETURN_IF_ERROR(AddNgrams(layer, x, batch));
  if (!HasStreams(config_) || !HasAttention(config_.layers[layer])) {
    return AttendRows(layer, x, batch);
  }
  RETURN_IF_ERROR(MixStreams(weights_.layer(layer).attn_streams, x, batch.tokens(), attn_factors_));
  RETURN_IF_ERROR(AttendRows(layer, block_in_, batch));
  return WriteStreams(x, batch.tokens(), attn_factors_, x);
}

absl::Status Forward::AttendRows(uint32_t layer, const Rows& x, const StepBatch& batch) {
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
    case AttentionKind::kSelective:
      return AttendSelective(layer, x, batch);
    case AttentionKind::kCompressed:
      return AttendCompressed(layer, x, batch);
    case AttentionKind::kNone:
      return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("layer ", layer, " has an unknown kind of attention"));
}

// Adds o(from) to x, or leaves it in sums_ for WriteStreams.
absl::Status Forward::ProjectOut(uint32_t layer, uint32_t tokens, const Rows& from, uint32_t cols,
                                 const Rows& x) {
  const LayerWeights& w = weights_.layer(layer);
  const float scale = config_.residual_scale;
  if (HasStreams(config_)) {
    const MatMulPart o[] = {{w.o, sums_, w.o_bias, scale}};
    return queue_->MatMul({from, tokens, cols, {}, {}, o, {}});
  }
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
  const uint32_t cols = a.heads * ValueDim(a);

  std::array<MatMulPart, 6> parts = {{{w.q, q_, w.q_bias}, {w.k, k_, w.k_bias}}};
  size_t count = 2;
  if (!a.value_is_key) {
    parts[count++] = {w.v, v_, w.v_bias, a.value_scale};
  }
  if (a.output_gate) {
    parts[count++] = {w.q_gate, gate_, {}};
  }
  if (HasIndexKeys(a)) {
    parts[count++] = {w.index_k, index_k_, {}};
    if (Chooses(a.index, batch)) {
      parts[count++] = {w.index_q, index_q_, {}};
    }
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
  RETURN_IF_ERROR(ChooseBlocks(layer, batch));
  RETURN_IF_ERROR(queue_->Attention({.q = q_,
                                     .tokens = tokens,
                                     .heads = a.heads,
                                     .scale = a.scale,
                                     .sliding_window = a.sliding_window,
                                     .chunk = a.chunk,
                                     .sinks = w.sinks,
                                     .chosen = ChosenOf(layer, batch),
                                     .sequences = batch.sequences(),
                                     .kv = kv_.view(layer),
                                     .out = attended_}));
  RETURN_IF_ERROR(GateOutput(a, tokens, cols, attended_));
  return ProjectOut(layer, tokens, attended_, cols, x);
}

absl::Status Forward::GateOutput(const AttentionConfig& a, uint32_t tokens, uint32_t cols, const Rows& rows) {
  if (!a.output_gate) {
    return absl::OkStatus();
  }
  const uint32_t width = a.gate_per_head ? cols / a.heads : 1;
  return queue_->OutputGate({rows, gate_, tokens, cols, width, a.gate_activation});
}

// True if a row of the batch sees more positions than the indexer chooses.
bool Forward::Chooses(const IndexConfig& index, const StepBatch& batch) const {
  return index.heads > 0 &&
         std::any_of(batch.sequences().begin(), batch.sequences().end(), [&index](const SequenceRows& text) {
           return uint64_t{text.first_position} + text.rows > DensePositions(index);
         });
}

ChosenBlocks Forward::ChosenOf(uint32_t layer, const StepBatch& batch) const {
  const IndexConfig& index = config_.layers[layer].attention.index;
  return Chooses(index, batch)
             ? ChosenBlocks{chosen_, IndexLists(index), index.top, index.block, index.pooled}
             : ChosenBlocks{};
}

// The first value of a head that rotates: compressed attention rotates the last ones.
uint32_t Forward::TurnedFrom(uint32_t layer, uint32_t head_dim) const {
  const AttentionConfig& a = config_.layers[layer].attention;
  return a.kind == AttentionKind::kCompressed ? head_dim - a.rope.dimensions : 0;
}

// Norms each head of a summed indexer's queries.
absl::Status Forward::NormIndexQueries(uint32_t layer, uint32_t tokens) {
  const IndexConfig& index = config_.layers[layer].attention.index;
  for (uint32_t head = 0; head < index.heads; ++head) {
    const Rows rows = {index_q_.base + uint64_t{head} * index.head_dim * sizeof(float),
                       uint64_t{index.heads} * index.head_dim};
    RETURN_IF_ERROR(queue_->Norm({rows, tokens, index.head_dim, weights_.layer(layer).index_q_norm, rows}));
  }
  return absl::OkStatus();
}

// Rotates heads of this layer in place, or back.
absl::Status Forward::TurnHeads(uint32_t layer, const StepBatch& batch, const Rows& x, uint32_t heads,
                                uint32_t head_dim, bool back) {
  const RopeConfig& rope = config_.layers[layer].attention.rope;
  for (const RopeGroup& group : RopeGroups(layer, batch)) {
    if (group.sequences.empty() || !group.table) {
      continue;
    }
    RETURN_IF_ERROR(queue_->RopeHeads({.x = x,
                                       .tokens = batch.tokens(),
                                       .heads = heads,
                                       .head_dim = head_dim,
                                       .rope_table = group.table,
                                       .rope_positions = options_.context,
                                       .rope_dims = rope.dimensions,
                                       .rope_offset = TurnedFrom(layer, head_dim),
                                       .rope_interleaved = rope.interleaved,
                                       .back = back,
                                       .sequences = group.sequences}));
  }
  return absl::OkStatus();
}

// Compresses the keys of a pooled indexer, and rotates its queries. In attention with compressed entries its
// keys are made as those entries are, or they are means; else nothing rotates, and each key is normed before.
absl::Status Forward::PoolIndexKeys(uint32_t layer, bool chooses, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const IndexConfig& index = a.index;
  const bool late_norm = !HasIndexNormBias(a);
  if (!late_norm) {
    RETURN_IF_ERROR(queue_->Norm({index_k_, batch.tokens(), index.head_dim, w.index_k_norm, index_k_}));
  }
  const BufferRef table = ropes_[rope_of_[layer]].short_texts.table();
  const uint32_t turned = table ? a.rope.dimensions : 0;
  DeltaStateView state = states_.view(layer);
  state.base = state.base + EntryStateFloats(a) * sizeof(float);
  const Rows bias = {w.index_bias.base, w.index_bias.stride / sizeof(float)};
  RETURN_IF_ERROR(queue_->Compress({.values = index_k_,
                                    .gates = index.summed ? Rows{} : index_gates_,
                                    .bias = index.summed ? Rows{} : bias,
                                    .tokens = batch.tokens(),
                                    .overlap = a.compress.overlap,
                                    .norm = late_norm ? w.index_k_norm : NormSpec{},
                                    .rope_table = table,
                                    .rope_positions = options_.context,
                                    .rope_dims = turned,
                                    .rope_offset = TurnedFrom(layer, index.head_dim),
                                    .rope_interleaved = a.rope.interleaved,
                                    .sequences = batch.sequences(),
                                    .from = batch.state_from(),
                                    .to = batch.state_to(),
                                    .state = state,
                                    .entries = kv_.index_entries(layer)}));
  if (chooses && index.summed) {
    RETURN_IF_ERROR(NormIndexQueries(layer, batch.tokens()));
  }
  return chooses ? TurnHeads(layer, batch, index_q_, index.heads, index.head_dim, /*back=*/false)
                 : absl::OkStatus();
}

// Writes the index keys of a layer with an indexer, and chooses what its rows see.
absl::Status Forward::ChooseBlocks(uint32_t layer, const StepBatch& batch) {
  const AttentionConfig& a = config_.layers[layer].attention;
  const IndexConfig& index = a.index;
  if (!HasIndexKeys(a)) {
    return absl::OkStatus();
  }
  const bool chooses = Chooses(index, batch);
  RETURN_IF_ERROR(index.pooled ? PoolIndexKeys(layer, chooses, batch)
                               : WriteIndexKeys(layer, chooses, batch));
  if (!chooses) {
    return absl::OkStatus();
  }
  return queue_->IndexSelect(
      {.q = index_q_,
       .weights = index.weighted ? index_weights_ : Rows{},
       .summed = index.summed,
       .tokens = batch.tokens(),
       .heads = index.heads,
       .scale = index.weighted || index.summed ? 1 / std::sqrt(static_cast<float>(index.head_dim)) : 1.0f,
       .local = index.local,
       .sequences = batch.sequences(),
       .keys = kv_.index_view(layer),
       .entries = kv_.index_entries(layer),
       .chosen = ChosenOf(layer, batch)});
}

// Writes a key for each position, and rotates the indexer's queries.
absl::Status Forward::WriteIndexKeys(uint32_t layer, bool chooses, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const IndexConfig& index = a.index;
  const uint32_t tokens = batch.tokens();
  if (index.weighted) {
    RETURN_IF_ERROR(queue_->Norm({index_k_, tokens, index.head_dim, w.index_k_norm, index_k_}));
  }
  for (const RopeGroup& group : RopeGroups(layer, batch)) {
    if (group.sequences.empty()) {
      continue;
    }
    RETURN_IF_ERROR(queue_->RopeKvWrite({.q = index_q_,
                                         .k = index_k_,
                                         .tokens = tokens,
                                         .heads = chooses ? index.heads : 1,  // of no use without a choice
                                         .qk_norm = index.weighted ? QkNorm::kNone : QkNorm::kPerHead,
                                         .q_norm = w.index_q_norm,
                                         .k_norm = w.index_k_norm,
                                         .rope_table = group.table,
                                         .rope_positions = options_.context,
                                         .rope_dims = group.table ? a.rope.dimensions : 0,
                                         .rope_interleaved = index.interleaved,
                                         .sequences = group.sequences,
                                         .kv = kv_.index_view(layer)}));
  }
  return absl::OkStatus();
}

// Projects each head's q and the compressed kv into q_ and latent_, and what an indexer needs.
absl::Status Forward::ProjectLatent(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const uint32_t tokens = batch.tokens();
  const uint32_t q_rank = a.latent.q_rank;
  const bool chooses = HasIndexKeys(a) && Chooses(a.index, batch);

  std::array<MatMulPart, 6> down = {
      {{w.kv_down, latent_, {}}, q_rank > 0 ? MatMulPart{w.q_down, q_low_, {}} : MatMulPart{w.q, q_, {}}}};
  size_t count = 2;
  if (a.output_gate) {
    down[count++] = {w.q_gate, gate_, {}};
  }
  if (HasIndexKeys(a)) {
    down[count++] = {w.index_k, index_k_, {}};
  }
  if (HasIndexKeys(a) && a.index.pooled) {
    down[count++] = {w.index_gates, index_gates_, {}};
  }
  if (chooses && a.index.weighted) {
    const float scale = 1 / std::sqrt(static_cast<float>(a.index.heads));
    down[count++] = {w.index_weights, index_weights_, {}, scale};
  }
  const auto parts = absl::MakeConstSpan(down.data(), count);
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, parts, {}}));
  if (q_rank == 0) {
    return absl::OkStatus();
  }
  const MatMulPart up[] = {{w.q, q_, {}}, {w.index_q, index_q_, {}}};
  return queue_->MatMul(
      {q_low_, tokens, q_rank, {}, w.q_down_norm, absl::MakeConstSpan(up, chooses ? 2 : 1), {}});
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

  RETURN_IF_ERROR(ProjectLatent(layer, x, batch));
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
  RETURN_IF_ERROR(ChooseBlocks(layer, batch));
  RETURN_IF_ERROR(queue_->Attention({.q = absorbed_,
                                     .tokens = tokens,
                                     .heads = a.heads,
                                     .scale = a.scale,
                                     .sliding_window = a.sliding_window,
                                     .chosen = ChosenOf(layer, batch),
                                     .sequences = batch.sequences(),
                                     .kv = kv_.view(layer),
                                     .out = attended_}));
  RETURN_IF_ERROR(queue_->HeadMatMul({attended_, l.kv_rank, tokens, a.heads, w.v_up, q_, l.value_dim}));
  RETURN_IF_ERROR(GateOutput(a, tokens, a.heads * l.value_dim, q_));
  return ProjectOut(layer, tokens, q_, a.heads * l.value_dim, x);
}

// Projects each head's q and the row that is key and value into q_ and k_, and what entries and index keys
// are compressed of.
absl::Status Forward::ProjectCompressed(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const uint32_t tokens = batch.tokens();
  const bool chooses = HasIndexKeys(a) && Chooses(a.index, batch);

  std::array<MatMulPart, 7> down = {{{w.k, k_, {}}, {w.q_down, q_low_, {}}}};
  size_t count = 2;
  if (a.compress.rate > 0) {
    down[count++] = {w.entry_values, entry_values_, {}};
    down[count++] = {w.entry_gates, entry_gates_, {}};
  }
  if (HasIndexKeys(a)) {
    down[count++] = {w.index_k, index_k_, {}};
    down[count++] = {w.index_gates, index_gates_, {}};
  }
  if (chooses) {
    const float scale = 1 / std::sqrt(static_cast<float>(a.index.heads));
    down[count++] = {w.index_weights, index_weights_, {}, scale};
  }
  const auto parts = absl::MakeConstSpan(down.data(), count);
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, parts, {}}));
  const MatMulPart up[] = {{w.q, q_, {}}, {w.index_q, index_q_, {}}};
  return queue_->MatMul(
      {q_low_, tokens, a.compress.q_rank, {}, w.q_down_norm, absl::MakeConstSpan(up, chooses ? 2 : 1), {}});
}

// Writes the rows' keys, which are values too, and the entries that they complete.
absl::Status Forward::CompressRows(uint32_t layer, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const BufferRef table = ropes_[rope_of_[layer]].short_texts.table();
  const uint32_t offset = a.head_dim - a.rope.dimensions;
  RETURN_IF_ERROR(queue_->RopeKvWrite({.q = q_,
                                       .k = k_,
                                       .tokens = batch.tokens(),
                                       .heads = a.heads,
                                       .qk_norm = a.qk_norm,
                                       .q_norm = w.q_norm,
                                       .k_norm = w.k_norm,
                                       .rope_table = table,
                                       .rope_positions = options_.context,
                                       .rope_dims = a.rope.dimensions,
                                       .rope_offset = offset,
                                       .rope_interleaved = a.rope.interleaved,
                                       .sequences = batch.sequences(),
                                       .kv = kv_.view(layer)}));
  if (a.compress.rate == 0) {
    return absl::OkStatus();
  }
  return queue_->Compress({.values = entry_values_,
                           .gates = entry_gates_,
                           .bias = {w.entry_bias.base, w.entry_bias.stride / sizeof(float)},
                           .tokens = batch.tokens(),
                           .overlap = a.compress.overlap,
                           .norm = w.entry_norm,
                           .rope_table = table,
                           .rope_positions = options_.context,
                           .rope_dims = a.rope.dimensions,
                           .rope_offset = offset,
                           .rope_interleaved = a.rope.interleaved,
                           .sequences = batch.sequences(),
                           .from = batch.state_from(),
                           .to = batch.state_to(),
                           .state = states_.view(layer),
                           .entries = kv_.entries(layer)});
}

// Attention over a window and compressed entries: the output's rotated values are turned back, since values
// are the rotated keys, and its heads are projected in groups before o.
absl::Status Forward::AttendCompressed(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const AttentionConfig& a = config_.layers[layer].attention;
  const CompressConfig& c = a.compress;
  const uint32_t tokens = batch.tokens();
  RETURN_IF_ERROR(ProjectCompressed(layer, x, batch));
  RETURN_IF_ERROR(CompressRows(layer, batch));
  RETURN_IF_ERROR(ChooseBlocks(layer, batch));
  RETURN_IF_ERROR(queue_->CompressedAttention({.q = q_,
                                               .tokens = tokens,
                                               .heads = a.heads,
                                               .scale = a.scale,
                                               .sliding_window = a.sliding_window,
                                               .sinks = w.sinks,
                                               .chosen = ChosenOf(layer, batch),
                                               .sequences = batch.sequences(),
                                               .kv = kv_.view(layer),
                                               .entries = kv_.entries(layer),
                                               .out = attended_}));
  RETURN_IF_ERROR(TurnHeads(layer, batch, attended_, a.heads, a.head_dim, /*back=*/true));
  const uint64_t group = uint64_t{a.heads} / c.groups * a.head_dim;
  RETURN_IF_ERROR(queue_->HeadMatMul({attended_, group, tokens, c.groups, w.o_groups, absorbed_, c.o_rank}));
  return ProjectOut(layer, tokens, absorbed_, c.groups * c.o_rank, x);
}

absl::Status Forward::AttendDelta(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const DeltaConfig& d = config_.layers[layer].attention.delta;
  const uint32_t tokens = batch.tokens();

  const bool low = d.gate_rank > 0;
  const MatMulPart gate = low ? MatMulPart{w.delta_z_down, q_low_, {}} : MatMulPart{w.delta_z, gate_, {}};
  const MatMulPart decay =
      low ? MatMulPart{w.delta_decay_down, latent_, {}} : MatMulPart{w.delta_decay, decay_, {}};
  const MatMulPart parts[] = {{w.delta_qkv, q_, {}}, gate, {w.delta_beta, beta_, {}}, decay};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, parts, {}}));
  if (low) {
    const MatMulPart z[] = {{w.delta_z, gate_, {}}};
    const MatMulPart f[] = {{w.delta_decay, decay_, {}}};
    RETURN_IF_ERROR(queue_->MatMul({q_low_, tokens, d.gate_rank, {}, {}, z, {}}));
    RETURN_IF_ERROR(queue_->MatMul({latent_, tokens, d.gate_rank, {}, {}, f, {}}));
  }
  RETURN_IF_ERROR(queue_->GatedDelta({.qkv = q_,
                                      .z = gate_,
                                      .beta = beta_,
                                      .decay = decay_,
                                      .tokens = tokens,
                                      .shape = d,
                                      .conv = {w.delta_conv.base, w.delta_conv.stride / sizeof(float)},
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

  const MatMulPart in[] = {{w.conv_in, q_, w.conv_in_bias}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, in, {}}));
  RETURN_IF_ERROR(queue_->ShortConv({.bcx = q_,
                                     .tokens = tokens,
                                     .shape = c,
                                     .conv = {w.conv_kernel.base, w.conv_kernel.stride / sizeof(float)},
                                     .bias = w.conv_bias,
                                     .sequences = batch.sequences(),
                                     .from = batch.state_from(),
                                     .to = batch.state_to(),
                                     .state = states_.view(layer),
                                     .out = attended_}));
  return ProjectOut(layer, tokens, attended_, c.width, x);
}

// The convolved channels are in k_, the time steps in v_, B in latent_ and C in absorbed_. A layer's slot has
// the convolution's rows first, then the state.
absl::Status Forward::AttendSelective(uint32_t layer, const Rows& x, const StepBatch& batch) {
  const LayerWeights& w = weights_.layer(layer);
  const SelectiveConfig& s = config_.layers[layer].attention.selective;
  const uint32_t tokens = batch.tokens();
  const uint64_t conv_bytes = uint64_t{s.conv_kernel - 1} * s.channels * sizeof(float);

  const MatMulPart in[] = {{w.selective_x, q_, {}}, {w.selective_z, gate_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, config_.hidden, {}, w.attn_norm, in, {}}));
  RETURN_IF_ERROR(queue_->ShortConv({.bcx = q_,
                                     .tokens = tokens,
                                     .shape = {.width = s.channels, .kernel = s.conv_kernel},
                                     .gated = false,
                                     .conv = {w.selective_conv.base, w.selective_conv.stride / sizeof(float)},
                                     .bias = w.selective_conv_bias,
                                     .sequences = batch.sequences(),
                                     .from = batch.state_from(),
                                     .to = batch.state_to(),
                                     .state = states_.view(layer),
                                     .out = k_}));
  const MatMulPart made[] = {
      {w.selective_step_down, q_low_, {}}, {w.selective_b, latent_, {}}, {w.selective_c, absorbed_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({k_, tokens, s.channels, {}, {}, made, {}}));
  const MatMulPart step[] = {{w.selective_step, v_, w.selective_step_bias}};
  RETURN_IF_ERROR(queue_->MatMul({q_low_, tokens, s.step_rank, {}, w.selective_step_norm, step, {}}));
  RETURN_IF_ERROR(queue_->Norm({latent_, tokens, s.state, w.selective_b_norm, latent_}));
  RETURN_IF_ERROR(queue_->Norm({absorbed_, tokens, s.state, w.selective_c_norm, absorbed_}));
  DeltaStateView state = states_.view(layer);
  state.base = state.base + conv_bytes;
  RETURN_IF_ERROR(
      queue_->SelectiveScan({.x = k_,
                             .z = gate_,
                             .step = v_,
                             .b = latent_,
                             .c = absorbed_,
                             .tokens = tokens,
                             .channels = s.channels,
                             .state_size = s.state,
                             .a_log = {w.selective_a_log.base, w.selective_a_log.stride / sizeof(float)},
                             .skip = w.selective_d,
                             .sequences = batch.sequences(),
                             .from = batch.state_from(),
                             .to = batch.state_to(),
                             .state = state,
                             .out = attended_}));
  return ProjectOut(layer, tokens, attended_, s.channels, x);
}

}  // namespace sluice::inferd
