// Residual streams of the forward pass, and the hashed n-grams that are added to them.

#include "common/base/status.h"
#include "inferd/forward/forward.h"

namespace sluice::inferd {

// Every stream begins as the embedding.
absl::Status Forward::EmbedRows(const StepBatch& batch, const Rows& x) {
  if (!HasStreams(config_)) {
    return queue_->Embed({batch.ids(), weights_.embed(), config_.embedding_scale, x});
  }
  RETURN_IF_ERROR(queue_->Embed({batch.ids(), weights_.embed(), config_.embedding_scale, block_in_}));
  return queue_->ScaleRows(
      {block_in_, {}, batch.tokens(), config_.streams.count, config_.hidden, {x.base, config_.hidden}});
}

// Computes block_in_ = the mix of the streams x that a block takes, and the factors for its output; the final
// mix has no factors.
absl::Status Forward::MixStreams(const StreamWeights& weights, const Rows& x, uint32_t tokens,
                                 const Rows& factors) {
  const StreamConfig& streams = config_.streams;
  if (streams.rank > 0) {
    return MixGatedStreams(weights, x, tokens, factors);
  }
  const MatMulPart projection[] = {{weights.projection, stream_raws_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({x, tokens, streams.count * config_.hidden, {}, {}, projection, {}}));
  return queue_->StreamMix({.x = x,
                            .raw = stream_raws_,
                            .scale = weights.scale,
                            .base = weights.base,
                            .tokens = tokens,
                            .streams = streams.count,
                            .hidden = config_.hidden,
                            .norm_epsilon = config_.norm_epsilon,
                            .epsilon = streams.epsilon,
                            .iterations = factors.base ? streams.iterations : 0,
                            .y = block_in_,
                            .factors = factors});
}

// Adds a block's output, in sums_, to the streams x.
absl::Status Forward::WriteStreams(const Rows& x, uint32_t tokens, const Rows& factors, const Rows& to) {
  if (config_.streams.rank > 0) {
    return queue_->StreamAdd({x, sums_, factors, 2.0f, tokens, config_.streams.count, config_.hidden, to});
  }
  return queue_->StreamWrite({x, sums_, factors, tokens, config_.streams.count, config_.hidden, to});
}

// Computes block_in_ = what the final norm takes, or the head without one.
absl::Status Forward::JoinStreams(const Rows& x, uint32_t tokens) {
  const StreamConfig& streams = config_.streams;
  if (!streams.mean_output) {
    return MixStreams(weights_.head_streams(), x, tokens, {});
  }
  const float share = 1.0f / static_cast<float>(streams.count);
  return queue_->Combine(
      {{x.base, config_.hidden}, {}, tokens, streams.count, config_.hidden, {}, block_in_, share});
}

// Norms each stream apart, by its own weights: to = norm(x).
absl::Status Forward::NormStreams(BufferRef weight, const Rows& x, uint32_t tokens, const Rows& to) {
  for (uint32_t i = 0; i < config_.streams.count; ++i) {
    const uint64_t first = uint64_t{i} * config_.hidden * sizeof(float);
    const NormSpec norm = {.weight = weight + first, .epsilon = config_.norm_epsilon};
    RETURN_IF_ERROR(queue_->Norm(
        {{x.base + first, x.stride}, tokens, config_.hidden, norm, {to.base + first, to.stride}}));
  }
  return absl::OkStatus();
}

// Computes block_in_ = the mean of the normed streams, each value gated by a projection of low rank of all of
// them, and the factors for the block's output.
absl::Status Forward::MixGatedStreams(const StreamWeights& weights, const Rows& x, uint32_t tokens,
                                      const Rows& factors) {
  const StreamConfig& streams = config_.streams;
  const uint32_t all = streams.count * config_.hidden;
  const float share = 1.0f / static_cast<float>(streams.count);
  RETURN_IF_ERROR(NormStreams(weights.norm, x, tokens, streams_normed_));
  const MatMulPart parts[] = {{weights.down, stream_raws_, {}, share}, {weights.add, factors, {}, share}};
  const auto down = absl::MakeConstSpan(parts, factors.base ? 2 : 1);
  RETURN_IF_ERROR(queue_->MatMul({streams_normed_, tokens, all, {}, {}, down, {}}));
  RETURN_IF_ERROR(queue_->OutputGate({.x = stream_raws_, .tokens = tokens, .cols = streams.rank}));
  const MatMulPart up[] = {{weights.up, stream_gates_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({stream_raws_, tokens, streams.rank, {}, {}, up, {}}));
  return queue_->StreamMean(
      {streams_normed_, stream_gates_, tokens, streams.count, config_.hidden, block_in_});
}

// Queues ngram_values_ = the rows that hashes of the tokens name, those of a token one behind the other.
absl::Status Forward::GatherNgrams(uint32_t layer, const StepBatch& batch) {
  if (row_source_ == nullptr) {
    return absl::InternalError(absl::StrCat("layer ", layer, " has n-grams, but there is no source of rows"));
  }
  ASSIGN_OR_RETURN(const WeightView values, row_source_->Await(layer));
  const auto ids = absl::MakeConstSpan(ngram_ids_).first(batch.tokens());
  return queue_->Embed({ids, values, 1.0f, ngram_values_});
}

// Adds the tokens' n-grams to the streams x: a key made of their rows gates their value for each stream, and
// a dilated convolution of that over the text is added to it.
absl::Status Forward::AddNgrams(uint32_t layer, const Rows& x, const StepBatch& batch) {
  if (!HasNgrams(config_.layers[layer])) {
    return absl::OkStatus();
  }
  const NgramConfig& ngrams = config_.layers[layer].ngrams;
  const NgramWeights& w = weights_.layer(layer).ngrams;
  const uint32_t tokens = batch.tokens();
  const uint32_t streams = config_.streams.count;
  const uint32_t hidden = config_.hidden;
  const uint32_t all = streams * hidden;
  // The values, and behind them the convolved ones, of each token.
  const Rows values = {ngram_terms_.base, 2 * uint64_t{all}};
  const Rows convolved = {ngram_terms_.base + uint64_t{all} * sizeof(float), 2 * uint64_t{all}};
  RETURN_IF_ERROR(GatherNgrams(layer, batch));
  const MatMulPart parts[] = {{w.key, stream_gates_, {}}, {w.value, block_in_, {}}};
  RETURN_IF_ERROR(queue_->MatMul({ngram_values_, tokens, NgramWidth(ngrams), {}, {}, parts, {}}));
  RETURN_IF_ERROR(NormStreams(w.key_norm, stream_gates_, tokens, stream_gates_));
  RETURN_IF_ERROR(NormStreams(w.query_norm, x, tokens, streams_normed_));
  RETURN_IF_ERROR(
      queue_->StreamMatch({streams_normed_, stream_gates_, tokens, streams, hidden, attn_factors_}));
  RETURN_IF_ERROR(queue_->StreamAdd({{}, block_in_, attn_factors_, 1.0f, tokens, streams, hidden, values}));
  RETURN_IF_ERROR(NormStreams(w.conv_norm, values, tokens, streams_normed_));
  DeltaStateView state = states_.view(layer);
  state.base = state.base + AttentionStateFloats(config_.layers[layer].attention) * sizeof(float);
  RETURN_IF_ERROR(queue_->ShortConv({.bcx = streams_normed_,
                                     .tokens = tokens,
                                     .shape = {.width = all, .kernel = ngrams.kernel},
                                     .dilation = ngrams.size,
                                     .gated = false,
                                     .conv = {w.conv.base, w.conv.stride / sizeof(float)},
                                     .sequences = batch.sequences(),
                                     .from = batch.state_from(),
                                     .to = batch.state_to(),
                                     .state = state,
                                     .out = convolved}));
  for (uint32_t i = 0; i < streams; ++i) {
    const uint64_t first = uint64_t{i} * hidden * sizeof(float);
    const Rows stream = {x.base + first, x.stride};
    RETURN_IF_ERROR(
        queue_->Combine({{ngram_terms_.base + first, all}, {}, tokens, 2, hidden, stream, stream}));
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
