#include "inferd/model/model_shapes.h"

#include <algorithm>

namespace sluice::inferd {
namespace {

template <typename Of>
uint32_t Largest(const ModelConfig& config, const Of& of) {
  uint32_t largest = 0;
  for (const LayerConfig& layer : config.layers) {
    largest = std::max<uint32_t>(largest, of(layer.moe));
  }
  return largest;
}

AttentionWidths WidthsOf(const AttentionConfig& a) {
  const uint64_t heads = a.heads;
  const uint64_t q = heads * a.head_dim;
  switch (a.kind) {
    case AttentionKind::kGrouped: {
      const uint64_t attended = heads * ValueDim(a);
      return {.q = q,
              .k = uint64_t{a.kv_heads} * a.head_dim,
              .v = a.value_is_key ? 0 : uint64_t{a.kv_heads} * ValueDim(a),
              .gate = GateRows(a),
              .attended = attended};
    }
    case AttentionKind::kLatent: {
      const uint64_t row = uint64_t{a.latent.kv_rank} + a.rope.dimensions;
      return {.q = std::max(q, heads * a.latent.value_dim),
              .gate = GateRows(a),
              .q_low = a.latent.q_rank,
              .latent = row,
              .absorbed = heads * row,
              .attended = heads * a.latent.kv_rank};
    }
    case AttentionKind::kGatedDelta: {
      const uint64_t values = uint64_t{a.delta.value_heads} * a.delta.value_dim;
      return {.q = ConvCols(a.delta),
              .gate = values,
              .q_low = a.delta.gate_rank,
              .latent = a.delta.gate_rank,
              .attended = values,
              .state_heads = a.delta.value_heads * (a.delta.channel_decay ? a.delta.key_dim : 1)};
    }
    case AttentionKind::kMamba: {
      const uint64_t values = uint64_t{a.mamba.heads} * a.mamba.head_dim;
      return {.q = ConvCols(a.mamba), .gate = values, .attended = values, .state_heads = a.mamba.heads};
    }
    case AttentionKind::kShortConv:
      return {.q = 3 * uint64_t{a.conv.width}, .attended = a.conv.width};
    case AttentionKind::kSelective: {
      const uint64_t channels = a.selective.channels;
      return {.q = channels,
              .k = channels,
              .v = channels,
              .gate = channels,
              .q_low = a.selective.step_rank,
              .latent = a.selective.state,
              .absorbed = a.selective.state,
              .attended = channels};
    }
    case AttentionKind::kCompressed:
      return {.q = q,
              .k = a.head_dim,
              .q_low = a.compress.q_rank,
              .absorbed = uint64_t{a.compress.groups} * a.compress.o_rank,
              .attended = q,
              .entries = CompressedWidth(a)};
    case AttentionKind::kNone:
      break;
  }
  return {};
}

}  // namespace

uint32_t GateRows(const AttentionConfig& a) {
  const uint32_t values = a.kind == AttentionKind::kLatent ? a.latent.value_dim : ValueDim(a);
  return a.output_gate ? a.heads * (a.gate_per_head ? 1 : values) : 0;
}

bool HasCommonExpert(const MoeConfig& moe) {
  return moe.experts == 0 ? moe.dense_width > 0 : moe.shared_width > 0 && !moe.shared_apart;
}

uint32_t RanksOf(const MoeConfig& moe) {
  return (moe.experts > 0 ? moe.top_k : 0) + (HasCommonExpert(moe) ? 1 : 0);
}

uint32_t MaxExperts(const ModelConfig& config) {
  return Largest(config, [](const MoeConfig& moe) { return moe.experts; });
}

uint32_t MaxRouted(const ModelConfig& config) {
  return Largest(config, [](const MoeConfig& moe) { return moe.experts + moe.zero_experts; });
}

uint32_t LargestTopK(const ModelConfig& config) {
  return Largest(config, [](const MoeConfig& moe) { return moe.experts > 0 ? moe.top_k : 0; });
}

uint32_t MaxRanks(const ModelConfig& config) {
  return Largest(config, [](const MoeConfig& moe) { return RanksOf(moe); });
}

uint32_t WidestExpert(const ModelConfig& config) {
  return Largest(config, [](const MoeConfig& moe) {
    return moe.experts > 0 ? std::max({moe.expert_width, moe.shared_width, moe.dense_ffn_width})
                           : moe.dense_width;
  });
}

bool ScalesInputs(const MoeConfig& moe) { return moe.experts > 0 && moe.router == RouterKind::kSigmoidInput; }

bool AnyScalesInputs(const ModelConfig& config) {
  return Largest(config, [](const MoeConfig& moe) { return ScalesInputs(moe) ? 1 : 0; }) > 0;
}

// Entries of twice the positions hold a row for each of them.
uint64_t EntryStateFloats(const AttentionConfig& a) {
  return uint64_t{2} * CompressedWidth(a) * a.compress.rate * (a.compress.overlap ? 2 : 1);
}

uint64_t PooledStateFloats(const AttentionConfig& a) {
  return uint64_t{a.index.summed ? 1u : 2u} * PooledWidth(a) * a.index.block * (a.compress.overlap ? 2 : 1);
}

// A draft needs experts to wait for in the last layer and experts to request in the first. A recurrent layer
// would change its state by the draft, and if the router scales inputs the outputs cannot be summed without
// the missing experts. A parallel FFN needs the input of the attention, which a draft does not keep, and
// residual streams would need a mix of their own.
bool CanDraftTokens(const ModelConfig& config) {
  return config.layers.front().moe.experts > 0 && config.layers[ModelLayers(config) - 1].moe.experts > 0 &&
         !IsRecurrent(config.layers.front().attention.kind) && !config.layers.front().parallel &&
         !AnyScalesInputs(config) && !HasStreams(config);
}

bool NormsOutputs(const ModelConfig& config, const LayerConfig& layer) {
  return layer.post_norms || layer.layer_scale || layer.moe.dense_ffn_width > 0 || layer.moe.shared_apart ||
         layer.late_experts || HasLatent(config, layer.moe);
}

bool HasLatent(const ModelConfig& config, const MoeConfig& moe) {
  return moe.experts > 0 && config.latent_width > 0;
}

uint32_t HiddenOf(const ModelConfig& config, const MoeConfig& moe) {
  return moe.experts > 0 ? ExpertHidden(config) : config.hidden;
}

uint32_t ConvCols(const MambaConfig& mamba) {
  return mamba.heads * mamba.head_dim + 2 * mamba.groups * mamba.state;
}

uint32_t ConvCols(const DeltaConfig& delta) {
  return 2 * delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim;
}

// Returns the smallest of the layers' limits: up to it every layer uses its short factors, beyond it some use
// the long ones.
uint32_t ShortRopeLimit(const ModelConfig& config) {
  uint32_t limit = 0;
  for (const LayerConfig& layer : config.layers) {
    const RopeConfig& rope = layer.attention.rope;
    if (!IsRecurrent(layer.attention.kind) && rope.kind == RopeKind::kLongRope) {
      limit = limit == 0 ? rope.original_max_position : std::min(limit, rope.original_max_position);
    }
  }
  return limit;
}

uint64_t WidestChoice(const ModelConfig& config, uint32_t context) {
  uint64_t widest = 0;
  for (const LayerConfig& layer : config.layers) {
    const IndexConfig& index = layer.attention.index;
    if (index.heads > 0 && context > DensePositions(index)) {
      widest = std::max(widest, uint64_t{IndexLists(index)} * index.top);
    }
  }
  return widest;
}

AttentionWidths WidestAttention(const ModelConfig& config) {
  AttentionWidths widest;
  for (const LayerConfig& layer : config.layers) {
    const AttentionWidths widths = WidthsOf(layer.attention);
    widest.q = std::max(widest.q, widths.q);
    widest.k = std::max(widest.k, widths.k);
    widest.v = std::max(widest.v, widths.v);
    widest.gate = std::max(widest.gate, widths.gate);
    widest.q_low = std::max(widest.q_low, widths.q_low);
    widest.latent = std::max(widest.latent, widths.latent);
    widest.absorbed = std::max(widest.absorbed, widths.absorbed);
    widest.attended = std::max(widest.attended, widths.attended);
    widest.entries = std::max(widest.entries, widths.entries);
    const IndexConfig& index = layer.attention.index;
    if (HasIndexKeys(layer.attention)) {
      widest.index_q = std::max(widest.index_q, uint64_t{index.heads} * index.head_dim);
      widest.index_k = std::max<uint64_t>({widest.index_k, index.head_dim, PooledWidth(layer.attention)});
      widest.index_gates =
          std::max<uint64_t>(widest.index_gates, index.summed ? 0 : PooledWidth(layer.attention));
      widest.index_weights = std::max<uint64_t>(widest.index_weights, index.weighted ? index.heads : 0);
    }
    widest.state_heads = std::max(widest.state_heads, widths.state_heads);
  }
  return widest;
}

}  // namespace sluice::inferd
