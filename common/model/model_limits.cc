#include "common/model/model_limits.h"

#include <cmath>

#include "common/base/status.h"

namespace sluice {
namespace {

absl::Status CheckRange(const std::string& subject, const char* field, uint64_t value, uint64_t low,
                        uint64_t high) {
  if (value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat(subject, ": ", field, " is ", value, "; a number from ",
                                                   low, " to ", high, " is expected"));
  }
  return absl::OkStatus();
}

absl::Status InvalidConfig(const std::string& subject, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(subject, ": ", what));
}

absl::Status CheckFinite(const std::string& subject, const char* field, double value, double low) {
  if (!std::isfinite(value) || value < low) {
    return InvalidConfig(subject,
                         absl::StrCat(field, " is ", value, "; a number of at least ", low, " is expected"));
  }
  return absl::OkStatus();
}

absl::Status CheckPositive(const std::string& subject, const char* field, double value) {
  if (!std::isfinite(value) || value <= 0) {
    return InvalidConfig(subject, absl::StrCat(field, " is ", value, "; a positive number is expected"));
  }
  return absl::OkStatus();
}

// Long rope has one divisor for each rotated pair in each of its two lists; other kinds have none.
absl::Status CheckRopeFactors(const RopeConfig& rope, const std::string& subject) {
  const uint64_t expected = rope.kind == RopeKind::kLongRope ? rope.dimensions / 2 : 0;
  for (const std::vector<double>* factors : {&rope.short_factors, &rope.long_factors}) {
    if (factors->size() != expected) {
      return InvalidConfig(subject,
                           absl::StrCat("a list of ", factors->size(), " rope factors, expected ", expected));
    }
    for (const double factor : *factors) RETURN_IF_ERROR(CheckPositive(subject, "a rope factor", factor));
  }
  return absl::OkStatus();
}

absl::Status CheckRope(const RopeConfig& rope, uint32_t head_dim, const std::string& subject) {
  if (rope.kind == RopeKind::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPositive(subject, "rope theta", rope.theta));
  RETURN_IF_ERROR(CheckPositive(subject, "rope factor", rope.factor));
  RETURN_IF_ERROR(CheckPositive(subject, "rope attention factor", rope.attention_factor));
  RETURN_IF_ERROR(CheckPositive(subject, "rope long attention factor", rope.long_attention_factor));
  RETURN_IF_ERROR(CheckPositive(subject, "rope beta_fast", rope.beta_fast));
  RETURN_IF_ERROR(CheckPositive(subject, "rope beta_slow", rope.beta_slow));
  RETURN_IF_ERROR(CheckPositive(subject, "rope low_freq_factor", rope.low_freq_factor));
  RETURN_IF_ERROR(CheckPositive(subject, "rope high_freq_factor", rope.high_freq_factor));
  RETURN_IF_ERROR(CheckRange(subject, "rope dimensions", rope.dimensions, 2, head_dim));
  const bool scaled = rope.kind == RopeKind::kDynamic || rope.kind == RopeKind::kYarn ||
                      rope.kind == RopeKind::kLongRope || rope.kind == RopeKind::kLlama3;
  RETURN_IF_ERROR(CheckRange(subject, "rope original_max_position", rope.original_max_position,
                             scaled ? 1 : 0, kMaxPosition));
  RETURN_IF_ERROR(CheckRange(subject, "rope values that turn", rope.turned, 0, rope.dimensions));
  if (rope.dimensions % 2 != 0 || rope.turned % 2 != 0) {
    return InvalidConfig(subject, absl::StrCat("rope dimensions ", rope.dimensions, ", of which ",
                                               rope.turned, " turn, are odd"));
  }
  return CheckRopeFactors(rope, subject);
}

absl::Status CheckLatent(const AttentionConfig& attention, const std::string& subject) {
  const LatentConfig& latent = attention.latent;
  RETURN_IF_ERROR(CheckRange(subject, "q rank", latent.q_rank, 0, kMaxRank));
  RETURN_IF_ERROR(CheckRange(subject, "kv rank", latent.kv_rank, 1, kMaxRank));
  RETURN_IF_ERROR(CheckRange(subject, "head values without rope", latent.nope_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "values per head", latent.value_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckFinite(subject, "epsilon of the compressed norms", latent.norm_epsilon, 0));
  if ((attention.rope.kind == RopeKind::kNone) != (attention.rope.dimensions == 0) ||
      attention.head_dim != latent.nope_dim + attention.rope.dimensions ||
      attention.kv_heads != attention.heads) {
    return InvalidConfig(
        subject, absl::StrCat("latent attention of ", attention.heads, " heads of ", attention.head_dim,
                              " values (", latent.nope_dim, " without rope, ", attention.rope.dimensions,
                              " with) over ", attention.kv_heads, " key/value heads does not add up"));
  }
  return absl::OkStatus();
}

// Entries lie in pages of 32 positions, or each in one.
absl::Status CheckRate(const char* field, uint32_t rate, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, field, rate, 1, kMaxRate));
  if (32 % rate != 0 && rate % 32 != 0) {
    return InvalidConfig(subject, absl::StrCat(field, " are ", rate, ": no divisor and no multiple of 32"));
  }
  return absl::OkStatus();
}

absl::Status CheckCompressed(const AttentionConfig& attention, const std::string& subject) {
  const CompressConfig& compress = attention.compress;
  RETURN_IF_ERROR(CheckRange(subject, "q rank", compress.q_rank, 1, kMaxRank));
  RETURN_IF_ERROR(CheckRange(subject, "groups of the output", compress.groups, 1, attention.heads));
  RETURN_IF_ERROR(CheckRange(subject, "rank of the output's groups", compress.o_rank, 1, kMaxRank));
  RETURN_IF_ERROR(CheckRange(subject, "sliding window", attention.sliding_window, 1, kMaxPosition));
  if (attention.heads % compress.groups != 0 || attention.kv_heads != 1 ||
      (compress.rate == 0 && (attention.index.heads > 0 || compress.overlap))) {
    return InvalidConfig(subject, absl::StrCat("compressed attention of ", attention.heads, " heads in ",
                                               compress.groups, " groups over ", attention.kv_heads,
                                               " key/value heads, or a choice of no entries"));
  }
  return compress.rate == 0 ? absl::OkStatus() : CheckRate("positions of an entry", compress.rate, subject);
}

// A block that a query is in must be seen, or it might see nothing: with blocks of one position it always
// is one of the candidates, longer ones need a local block.
absl::Status CheckIndex(const AttentionConfig& attention, const std::string& subject) {
  const IndexConfig& index = attention.index;
  if (index.heads == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRange(subject, "index heads", index.heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange(subject, "values of an index key", index.head_dim, 2, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "chosen blocks", index.top, 1, kMaxPosition));
  RETURN_IF_ERROR(CheckRange(subject, "positions of a block", index.block, 1, kMaxPosition));
  if (index.pooled) {
    RETURN_IF_ERROR(CheckRate("positions of a pooled key", index.block, subject));
    RETURN_IF_ERROR(CheckRange(subject, "chosen blocks and the one behind them", index.top, 2, kMaxPosition));
    RETURN_IF_ERROR(CheckRange(subject, "blocks that are always seen", index.local, 0, 0));
  } else {
    RETURN_IF_ERROR(
        CheckRange(subject, "blocks that are always seen", index.local, index.block > 1 ? 1 : 0, index.top));
  }
  RETURN_IF_ERROR(
      CheckRange(subject, "positions of the chosen blocks", DensePositions(index), 1, kMaxPosition));
  RETURN_IF_ERROR(CheckFinite(subject, "epsilon of the index norms", index.norm_epsilon, 0));
  const bool latent = attention.kind == AttentionKind::kLatent;
  const bool compressed = attention.kind == AttentionKind::kCompressed;
  if (compressed ? !index.pooled || !index.weighted || index.block != attention.compress.rate || index.shared
      : index.summed
          ? attention.kind != AttentionKind::kGrouped || !index.pooled || index.weighted ||
                index.interleaved || index.shared || attention.rope.kind == RopeKind::kLongRope
          : index.pooled && (!latent || !index.weighted || attention.rope.kind != RopeKind::kNone)) {
    return InvalidConfig(subject, absl::StrCat("an indexer of keys for ", index.block,
                                               " positions in attention whose entries are of ",
                                               attention.compress.rate, ", or that rotates"));
  }
  const uint32_t lists = IndexLists(index);
  const uint32_t kv_heads = latent ? 1 : attention.kv_heads;
  if (index.head_dim % 2 != 0 ||
      (attention.rope.kind != RopeKind::kNone && attention.rope.dimensions > index.head_dim) ||
      attention.heads % lists != 0 || (lists % kv_heads != 0 && kv_heads % lists != 0) ||
      (attention.sliding_window != 0 && !compressed) || attention.chunk != 0 ||
      (latent && attention.latent.q_rank == 0)) {
    return InvalidConfig(
        subject, absl::StrCat("an indexer of ", index.heads, " heads of ", index.head_dim, " values, ",
                              attention.rope.dimensions, " of which rotate, for ", attention.heads,
                              " heads over ", kv_heads, " key/value heads, a window of ",
                              attention.sliding_window, " positions and chunks of ", attention.chunk));
  }
  return absl::OkStatus();
}

absl::Status CheckDelta(const AttentionConfig& attention, const std::string& subject) {
  const DeltaConfig& delta = attention.delta;
  RETURN_IF_ERROR(CheckRange(subject, "delta key heads", delta.key_heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange(subject, "delta value heads", delta.value_heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange(subject, "delta key dim", delta.key_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "delta value dim", delta.value_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "delta convolution kernel", delta.conv_kernel, 1, kMaxConvKernel));
  RETURN_IF_ERROR(CheckRange(subject, "rank of delta's decay and gate", delta.gate_rank, 0, kMaxRank));
  if (!std::isfinite(delta.decay_floor) || delta.decay_floor > 0) {
    return InvalidConfig(subject, absl::StrCat("delta's lowest log decay is ", delta.decay_floor));
  }
  if (delta.gate_rank > 0 && !delta.channel_decay) {
    return InvalidConfig(subject, "decay and gate of a rank need a decay for each channel");
  }
  if (delta.value_heads % delta.key_heads != 0) {
    return InvalidConfig(subject, absl::StrCat(delta.key_heads, " delta key heads do not divide ",
                                               delta.value_heads, " value heads"));
  }
  return absl::OkStatus();
}

absl::Status CheckMamba(const AttentionConfig& attention, const std::string& subject) {
  const MambaConfig& mamba = attention.mamba;
  RETURN_IF_ERROR(CheckRange(subject, "mamba heads", mamba.heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange(subject, "mamba head dim", mamba.head_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "mamba groups", mamba.groups, 1, mamba.heads));
  RETURN_IF_ERROR(CheckRange(subject, "mamba state", mamba.state, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "mamba convolution kernel", mamba.conv_kernel, 1, kMaxConvKernel));
  RETURN_IF_ERROR(CheckFinite(subject, "mamba's smallest time step", mamba.min_step, 0));
  RETURN_IF_ERROR(CheckFinite(subject, "mamba's largest time step", mamba.max_step, 0));
  if (mamba.heads % mamba.groups != 0) {
    return InvalidConfig(subject,
                         absl::StrCat(mamba.groups, " mamba groups do not divide ", mamba.heads, " heads"));
  }
  return absl::OkStatus();
}

absl::Status CheckSelective(const SelectiveConfig& selective, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, "selective channels", selective.channels, 1, kMaxHidden));
  RETURN_IF_ERROR(CheckRange(subject, "selective state", selective.state, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "rank of the time steps", selective.step_rank, 1, kMaxRank));
  return CheckRange(subject, "selective convolution kernel", selective.conv_kernel, 2, kMaxConvKernel);
}

// Checks attention kinds with a recurrent state or no attention at all.
absl::Status CheckHeadless(const AttentionConfig& attention, const std::string& subject) {
  if (attention.heads != 0 || attention.kv_heads != 0 || attention.head_dim != 0 ||
      attention.index.heads != 0) {
    return InvalidConfig(subject,
                         "a layer that keeps nothing in the cache has no attention heads or indexer");
  }
  switch (attention.kind) {
    case AttentionKind::kGatedDelta:
      return CheckDelta(attention, subject);
    case AttentionKind::kMamba:
      return CheckMamba(attention, subject);
    case AttentionKind::kShortConv:
      RETURN_IF_ERROR(CheckRange(subject, "convolution width", attention.conv.width, 1, kMaxHidden));
      return CheckRange(subject, "convolution kernel", attention.conv.kernel, 1, kMaxConvKernel);
    case AttentionKind::kSelective:
      return CheckSelective(attention.selective, subject);
    default:
      return absl::OkStatus();
  }
}

// Limits apply equally to every source of a configuration, config.json or manifest: sizes that pass here may
// be multiplied and allocated without further checks.
absl::Status CheckAttention(const AttentionConfig& attention, const std::string& subject) {
  if (IsRecurrent(attention.kind) || attention.kind == AttentionKind::kNone) {
    return CheckHeadless(attention, subject);
  }
  RETURN_IF_ERROR(CheckRange(subject, "attention heads", attention.heads, 1, kMaxHeads));
  RETURN_IF_ERROR(CheckRange(subject, "key/value heads", attention.kv_heads, 1, attention.heads));
  RETURN_IF_ERROR(CheckRange(subject, "head_dim", attention.head_dim, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "sliding window", attention.sliding_window, 0, kMaxPosition));
  RETURN_IF_ERROR(CheckRange(subject, "attention chunk", attention.chunk, 0, kMaxPosition));
  if (attention.heads % attention.kv_heads != 0) {
    return InvalidConfig(subject, absl::StrCat(attention.kv_heads, " key/value heads do not divide ",
                                               attention.heads, " attention heads"));
  }
  RETURN_IF_ERROR(CheckPositive(subject, "attention scale", attention.scale));
  RETURN_IF_ERROR(CheckRange(subject, "values of a head of v", attention.value_dim, 0, attention.head_dim));
  RETURN_IF_ERROR(CheckPositive(subject, "factor of v", attention.value_scale));
  RETURN_IF_ERROR(CheckFinite(subject, "clip of q, k and v", attention.clip_qkv, 0));
  RETURN_IF_ERROR(CheckFinite(subject, "attention temperature scale", attention.temperature_scale, 0));
  if (attention.temperature_scale > 0 && attention.temperature_floor == 0) {
    return InvalidConfig(subject, "attention temperature without its floor");
  }
  RETURN_IF_ERROR(CheckRope(attention.rope, attention.head_dim, subject));
  if (attention.kind == AttentionKind::kLatent) RETURN_IF_ERROR(CheckLatent(attention, subject));
  if (attention.kind == AttentionKind::kCompressed) {
    RETURN_IF_ERROR(CheckCompressed(attention, subject));
  } else if (attention.compress != CompressConfig()) {
    return InvalidConfig(subject, "entries of attention that has none");
  }
  return CheckIndex(attention, subject);
}

absl::Status CheckGroups(const MoeConfig& moe, const std::string& subject) {
  if (moe.groups == 0 && moe.top_groups == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRange(subject, "expert groups", moe.groups, 1, moe.experts));
  RETURN_IF_ERROR(CheckRange(subject, "expert groups that take part", moe.top_groups, 1, moe.groups));
  const uint32_t size = moe.experts / moe.groups;
  if (moe.experts % moe.groups != 0 || moe.top_k > size * moe.top_groups ||
      (moe.group_score == GroupScore::kTopTwoSum && size < 2)) {
    return InvalidConfig(
        subject, absl::StrCat(moe.experts, " experts in ", moe.groups, " groups, of which ", moe.top_groups,
                              " take part, cannot give ", moe.top_k, " a token"));
  }
  return absl::OkStatus();
}

absl::Status CheckMoe(const MoeConfig& moe, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, "experts", moe.experts, 0, kMaxExperts));
  RETURN_IF_ERROR(CheckRange(subject, "shared width", moe.shared_width, 0, kMaxWidth));
  RETURN_IF_ERROR(CheckFinite(subject, "activation alpha", moe.activation_alpha, 0));
  RETURN_IF_ERROR(CheckFinite(subject, "activation limit", moe.activation_limit, 0));
  RETURN_IF_ERROR(CheckFinite(subject, "limit of the shared expert", moe.shared_limit, 0));
  RETURN_IF_ERROR(CheckPositive(subject, "factor of the MoE block", moe.output_scale));
  RETURN_IF_ERROR(CheckFinite(subject, "router cap", moe.router_cap, 0));
  RETURN_IF_ERROR(CheckRange(subject, "experts that return their input", moe.zero_experts, 0, kMaxExperts));
  RETURN_IF_ERROR(CheckFinite(subject, "router jitter", moe.router_jitter, 0));
  if (!std::isfinite(moe.routed_scale)) {
    return InvalidConfig(subject, absl::StrCat("routed scale is ", moe.routed_scale));
  }
  RETURN_IF_ERROR(CheckFinite(subject, "epsilon of the router's sum", moe.norm_epsilon, 0));
  RETURN_IF_ERROR(CheckRange(subject, "width beside the experts", moe.dense_ffn_width, 0, kMaxWidth));
  if (moe.experts == 0) {
    return CheckRange(subject, "dense width", moe.dense_width, 0, kMaxWidth);
  }
  if (moe.shared_apart &&
      (moe.shared_width == 0 || moe.shared_gate || moe.router == RouterKind::kSigmoidInput)) {
    return InvalidConfig(subject, absl::StrCat("a shared expert apart of ", moe.shared_width,
                                               " neurons, with a gate or a router that scales inputs"));
  }
  if (moe.zero_experts > 0 && (moe.groups > 0 || (moe.shared_width > 0 && !moe.shared_apart) ||
                               moe.expert_scale || moe.router == RouterKind::kSigmoidInput)) {
    return InvalidConfig(subject,
                         "experts that return their input beside groups, a shared expert among them or a "
                         "scale of each");
  }
  if (moe.token_experts && moe.router != RouterKind::kSqrtSoftplusTopK) {
    return InvalidConfig(subject, "experts that tokens name, with a router of another kind");
  }
  if (moe.dense_ffn_width > 0 && (moe.shared_width > 0 || moe.router == RouterKind::kSigmoidInput)) {
    return InvalidConfig(subject, absl::StrCat("an FFN of ", moe.dense_ffn_width,
                                               " neurons beside the experts and a shared one of ",
                                               moe.shared_width, ", or a router that scales inputs"));
  }
  RETURN_IF_ERROR(CheckRange(subject, "experts per token", moe.top_k, 1, moe.experts + moe.zero_experts));
  RETURN_IF_ERROR(CheckRange(subject, "expert width", moe.expert_width, 1, kMaxWidth));
  return CheckGroups(moe, subject);
}

absl::Status CheckIds(const std::vector<int32_t>& ids, const char* field, size_t max_count, uint32_t vocab,
                      const std::string& subject) {
  if (ids.size() > max_count) {
    return InvalidConfig(subject, absl::StrCat(ids.size(), " ", field, " ids, more than ", max_count));
  }
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= vocab) {
      return InvalidConfig(subject,
                           absl::StrCat(field, " token id ", id, " is outside the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

// Hashed n-grams are added to several streams, before a layer whose state has room for those of the
// convolution.
absl::Status CheckNgrams(const ModelConfig& config, const LayerConfig& layer, const std::string& subject) {
  const NgramConfig& ngrams = layer.ngrams;
  if (!HasNgrams(layer)) {
    return ngrams == NgramConfig() ? absl::OkStatus() : InvalidConfig(subject, "n-grams of no tokens");
  }
  RETURN_IF_ERROR(CheckRange(subject, "tokens of an n-gram", ngrams.size, 2, kMaxNgram));
  RETURN_IF_ERROR(CheckRange(subject, "rows of an n-gram", ngrams.heads, 1, kMaxNgramHeads / ngrams.size));
  RETURN_IF_ERROR(CheckRange(subject, "values of an n-gram's row", ngrams.width, 1, kMaxHeadDim));
  RETURN_IF_ERROR(CheckRange(subject, "rows of n-grams", ngrams.rows, 1, kMaxNgramRows));
  RETURN_IF_ERROR(CheckRange(subject, "base of the n-grams' hash", ngrams.base, 2, kMaxNgramBase));
  RETURN_IF_ERROR(CheckRange(subject, "number of a layer with n-grams", ngrams.layer, 0, kMaxLayers));
  RETURN_IF_ERROR(CheckRange(subject, "token that ends n-grams", ngrams.end, 0, config.vocab - 1));
  RETURN_IF_ERROR(CheckRange(subject, "convolution kernel of n-grams", ngrams.kernel, 2, kMaxConvKernel));
  RETURN_IF_ERROR(CheckRange(subject, "rows of a token in all layers up to this one",
                             (uint64_t{ngrams.layer} + 1) * NgramHeads(ngrams), 1, kMaxNgramHeads));
  if (config.streams.rank == 0) return InvalidConfig(subject, "n-grams without gated residual streams");
  return absl::OkStatus();
}

// True if a dense layer's output is not only added.
bool NeedsSums(const LayerConfig& layer) {
  return !HasFfn(layer) || layer.post_norms || layer.layer_scale || layer.late_experts;
}

// Checks how a layer's parts fit together, and the layers around it.
absl::Status CheckStructure(const ModelConfig& config, size_t i, const std::string& subject) {
  const LayerConfig& layer = config.layers[i];
  const MoeConfig& moe = layer.moe;
  RETURN_IF_ERROR(CheckNgrams(config, layer, subject));
  if (config.streams.rank > 0 && (layer.pre_norms || config.mtp_layers > 0)) {
    return InvalidConfig(subject, "norms behind gated residual streams, or MTP layers");
  }
  if (layer.attention.index.shared) {
    const IndexConfig* made = nullptr;
    for (size_t j = 0; j < i; ++j) {
      if (HasIndexKeys(config.layers[j].attention)) made = &config.layers[j].attention.index;
    }
    IndexConfig taken = layer.attention.index;
    taken.shared = false;
    if (made == nullptr || *made != taken) {
      return InvalidConfig(subject,
                           "takes the choice of an indexer before it that does not exist, or differs");
    }
  }
  if (layer.parallel && (!HasAttention(layer) || !HasFfn(layer) || layer.post_norms || !layer.pre_norms)) {
    return InvalidConfig(subject, "an FFN beside attention needs both, with one norm before them");
  }
  if (config.latent_width > 0 && moe.experts > 0 &&
      ((moe.shared_width > 0 && !moe.shared_apart) || moe.dense_ffn_width > 0 || moe.zero_experts > 0 ||
       moe.expert_bias || moe.router == RouterKind::kSigmoidInput)) {
    return InvalidConfig(subject, absl::StrCat("experts of ", config.latent_width,
                                               " values with a shared expert among them, a dense FFN, biases "
                                               "or a router that scales inputs"));
  }
  if (IsMtpLayer(config, static_cast<uint32_t>(i)) &&
      (!HasAttention(layer) || IsRecurrent(layer.attention.kind) || layer.attention.index.shared ||
       layer.late_experts || layer.parallel || config.norm != NormKind::kRms)) {
    return InvalidConfig(subject, "an MTP layer needs attention of its own, an FFN behind it and RMS norms");
  }
  if (layer.late_experts &&
      (!moe.shared_apart || layer.post_norms || layer.layer_scale || i + 1 == ModelLayers(config) ||
       config.layers[i + 1].moe.experts > 0 || NeedsSums(config.layers[i + 1]))) {
    return InvalidConfig(subject,
                         "experts that are added late need a shared expert apart and a dense layer behind");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateModelConfig(const ModelConfig& config, const std::string& subject) {
  RETURN_IF_ERROR(CheckRange(subject, "vocabulary", config.vocab, 1, kMaxVocab));
  RETURN_IF_ERROR(CheckRange(subject, "hidden size", config.hidden, 1, kMaxHidden));
  RETURN_IF_ERROR(CheckRange(subject, "maximum position", config.max_position, 1, kMaxPosition));
  RETURN_IF_ERROR(CheckRange(subject, "layers", config.layers.size(), 1, kMaxLayers));
  RETURN_IF_ERROR(CheckRange(subject, "MTP layers", config.mtp_layers, 0,
                             std::min<size_t>(kMaxMtpLayers, config.layers.size() - 1)));
  RETURN_IF_ERROR(CheckRange(subject, "width of routed experts' inputs", config.latent_width, 0, kMaxHidden));
  const StreamConfig& streams = config.streams;
  RETURN_IF_ERROR(CheckRange(subject, "residual streams", streams.count, 1, kMaxStreamCount));
  RETURN_IF_ERROR(
      CheckRange(subject, "rank of the streams' gates", streams.rank, 0, streams.count > 1 ? kMaxHidden : 0));
  RETURN_IF_ERROR(CheckRange(subject, "iterations of the streams' mix", streams.iterations,
                             streams.count > 1 && streams.rank == 0 ? 1 : 0,
                             streams.rank == 0 ? kMaxIterations : 0));
  RETURN_IF_ERROR(CheckFinite(subject, "epsilon of the streams' mix", streams.epsilon, 0));
  RETURN_IF_ERROR(
      CheckRange(subject, "values of all streams", uint64_t{streams.count} * config.hidden, 1, kMaxHidden));
  if (!std::isfinite(config.norm_epsilon) || config.norm_epsilon < 0 || config.norm_epsilon > 1) {
    return InvalidConfig(subject, absl::StrCat("norm epsilon is ", config.norm_epsilon));
  }
  RETURN_IF_ERROR(CheckPositive(subject, "embedding scale", config.embedding_scale));
  RETURN_IF_ERROR(CheckPositive(subject, "residual scale", config.residual_scale));
  RETURN_IF_ERROR(CheckPositive(subject, "logit scale", config.logit_scale));
  RETURN_IF_ERROR(CheckFinite(subject, "logit cap", config.logit_cap, 0));
  // Limits on each layer do not bound their sum: the number of all experts sizes tables of the pack and of
  // weightd.
  uint64_t experts = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const std::string layer = absl::StrCat(subject, ": layer ", i);
    RETURN_IF_ERROR(CheckAttention(config.layers[i].attention, layer));
    RETURN_IF_ERROR(CheckMoe(config.layers[i].moe, layer));
    if (!HasAttention(config.layers[i]) && !HasFfn(config.layers[i])) {
      return InvalidConfig(layer, "neither attention nor an FFN");
    }
    RETURN_IF_ERROR(CheckStructure(config, i, layer));
    if (config.layers[i].post_norms && config.norm != NormKind::kRms) {
      return InvalidConfig(layer, "norms of what attention and mixture give are RMS norms only");
    }
    experts += config.layers[i].moe.experts;
  }
  RETURN_IF_ERROR(CheckRange(subject, "experts of all layers", experts, 0, kMaxExpertsTotal));
  RETURN_IF_ERROR(CheckIds(config.bos_ids, "bos", 1, config.vocab, subject));
  return CheckIds(config.eos_ids, "eos", kMaxEndIds, config.vocab, subject);
}

}  // namespace sluice
