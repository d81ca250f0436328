#include "inferd/model/dense_weights.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/model_shapes.h"

namespace sluice::inferd {
namespace {

// Looks up every tensor of the architecture, checks its shape and records the field that gets its address
// once the extents are leased. A pack was checked when it was opened; this ties names to the fields that the
// forward pass reads.
class Finder {
 public:
  Finder(const Pack& pack, DenseTensors* tensors)
      : pack_(pack), config_(pack.config()), hidden_(config_.hidden), tensors_(tensors) {}

  absl::Status FindAll();

 private:
  absl::StatusOr<const DenseTensor*> Find(std::string_view name, uint32_t rows, uint32_t cols);
  absl::Status Matrix(std::string_view name, uint32_t rows, uint32_t cols, WeightView* view);
  absl::Status Table(std::string_view name, uint32_t rows, uint32_t cols, WeightView* view);
  absl::Status Vector(std::string_view name, uint32_t cols, BufferRef* place);
  absl::Status Norm(std::string_view weight, std::string_view bias, NormSpec* norm);

  absl::Status Layer(const LayerConfig& layer, LayerWeights* w);
  absl::Status Grouped(const AttentionConfig& a, LayerWeights* w);
  absl::Status Latent(const AttentionConfig& a, LayerWeights* w);
  absl::Status Compressed(const AttentionConfig& a, LayerWeights* w);
  absl::Status Streams(uint32_t rows, uint32_t scales, std::string_view matrix, std::string_view base,
                       std::string_view scale, StreamWeights* streams);
  absl::Status GatedStreams(std::string_view norm, std::string_view down, std::string_view up,
                            std::string_view add, StreamWeights* streams);
  absl::Status Ngrams(const NgramConfig& ngrams, NgramWeights* w);
  absl::Status Indexer(const AttentionConfig& a, LayerWeights* w);
  absl::Status Delta(const DeltaConfig& d, LayerWeights* w);
  absl::Status Mamba(const MambaConfig& m, LayerWeights* w);
  absl::Status ShortConv(const AttentionConfig& a, LayerWeights* w);
  absl::Status Selective(const SelectiveConfig& s, LayerWeights* w);
  absl::Status Attention(const AttentionConfig& a, LayerWeights* w);
  absl::Status Ffn(uint32_t width, Activation activation, std::string_view up, std::string_view gate,
                   std::string_view down, DenseExpert* expert);
  absl::Status FfnBiases(uint32_t width, const MoeConfig& moe, std::string_view up, std::string_view gate,
                         std::string_view down, DenseExpert* expert);
  absl::Status Beside(const MoeConfig& moe, LayerWeights* w);
  absl::Status RmsNorm(std::string_view weight, NormSpec* norm);
  absl::Status Mixture(const MoeConfig& moe, LayerWeights* w);
  absl::Status Mtp(LayerWeights* w);

  const Pack& pack_;
  const ModelConfig& config_;
  const uint32_t hidden_;
  DenseTensors* const tensors_;
  std::string prefix_;  // name prefix of the current layer
};

absl::StatusOr<const DenseTensor*> Finder::Find(std::string_view name, uint32_t rows, uint32_t cols) {
  const std::string full = prefix_ + std::string(name);
  const DenseTensor* tensor = pack_.FindDense(full);
  if (tensor == nullptr) {
    return absl::DataLossError(absl::StrCat("tensor ", full, " is missing"));
  }
  if (tensor->rows != rows || tensor->cols != cols) {
    return absl::DataLossError(absl::StrCat("tensor ", full, " is [", tensor->rows, ", ", tensor->cols,
                                            "], the configuration says [", rows, ", ", cols, "]"));
  }
  // Decoding reads each dense tensor once a step; the bench compares the step time with the time of this
  // read.
  tensors_->bytes_per_step += uint64_t{rows} * tensor->stride;
  return tensor;
}

absl::Status Finder::Matrix(std::string_view name, uint32_t rows, uint32_t cols, WeightView* view) {
  ASSIGN_OR_RETURN(const DenseTensor* tensor, Find(name, rows, cols));
  *view = {tensor->encoding, {}, tensor->stride, rows, cols};
  tensors_->placed.push_back({tensor, &view->base});
  return absl::OkStatus();
}

absl::Status Finder::Table(std::string_view name, uint32_t rows, uint32_t cols, WeightView* view) {
  RETURN_IF_ERROR(Matrix(name, rows, cols, view));
  if (view->encoding.encoding != Encoding::kF32) {
    return absl::DataLossError(absl::StrCat("tensor ", prefix_, std::string(name), " is not f32"));
  }
  return absl::OkStatus();
}

absl::Status Finder::Vector(std::string_view name, uint32_t cols, BufferRef* place) {
  ASSIGN_OR_RETURN(const DenseTensor* tensor, Find(name, 1, cols));
  if (tensor->encoding.encoding != Encoding::kF32) {
    return absl::DataLossError(
        absl::StrCat("tensor ", prefix_, std::string(name), " is a vector but not f32"));
  }
  tensors_->placed.push_back({tensor, place});
  return absl::OkStatus();
}

absl::Status Finder::Norm(std::string_view weight, std::string_view bias, NormSpec* norm) {
  norm->epsilon = config_.norm_epsilon;
  norm->kind = config_.norm;
  RETURN_IF_ERROR(Vector(weight, hidden_, &norm->weight));
  return HasNormBias(config_) ? Vector(bias, hidden_, &norm->bias) : absl::OkStatus();
}

absl::Status Finder::RmsNorm(std::string_view weight, NormSpec* norm) {
  norm->epsilon = config_.norm_epsilon;
  return Vector(weight, hidden_, &norm->weight);
}

absl::Status Finder::FindAll() {
  RETURN_IF_ERROR(Matrix(dense::kEmbed, config_.vocab, hidden_, &tensors_->embed));
  RETURN_IF_ERROR(Matrix(config_.tied_embeddings ? dense::kEmbed : dense::kHead, config_.vocab, hidden_,
                         &tensors_->head));
  tensors_->bytes_per_step -=
      uint64_t{config_.vocab} * tensors_->embed.stride;  // only the tokens' rows are read
  if (config_.head_bias) {
    RETURN_IF_ERROR(Vector(dense::kHeadBias, config_.vocab, &tensors_->head_bias));
  }
  if (config_.streams.rank > 0) {
    RETURN_IF_ERROR(GatedStreams(dense::kHeadStreamsNorm, dense::kHeadStreamsDown, dense::kHeadStreamsUp, {},
                                 &tensors_->head_streams));
  } else if (!config_.streams.mean_output) {
    RETURN_IF_ERROR(Streams(config_.streams.count, 1, dense::kHeadStreams, dense::kHeadStreamsBase,
                            dense::kHeadStreamsScale, &tensors_->head_streams));
  }
  if (HasFinalNorm(config_)) {
    RETURN_IF_ERROR(Norm(dense::kFinalNorm, dense::kFinalNormBias, &tensors_->final_norm));
  }
  tensors_->layers.resize(config_.layers.size());
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    prefix_ = dense::LayerName(layer, "");
    bytes = layer == ModelLayers(config_) ? tensors_->bytes_per_step : bytes;
    RETURN_IF_ERROR(Layer(config_.layers[layer], &tensors_->layers[layer]));
    if (IsMtpLayer(config_, layer)) {
      RETURN_IF_ERROR(Mtp(&tensors_->layers[layer]));
    }
  }
  tensors_->bytes_per_step = config_.mtp_layers > 0 ? bytes : tensors_->bytes_per_step;
  return absl::OkStatus();
}

absl::Status Finder::Mtp(LayerWeights* w) {
  RETURN_IF_ERROR(Matrix(dense::kMtpEmbed, hidden_, hidden_, &w->mtp_embed));
  RETURN_IF_ERROR(Matrix(dense::kMtpHidden, hidden_, hidden_, &w->mtp_hidden));
  RETURN_IF_ERROR(RmsNorm(dense::kMtpEmbedNorm, &w->mtp_embed_norm));
  RETURN_IF_ERROR(RmsNorm(dense::kMtpHiddenNorm, &w->mtp_hidden_norm));
  return RmsNorm(dense::kMtpNorm, &w->mtp_norm);
}

absl::Status Finder::Layer(const LayerConfig& layer, LayerWeights* w) {
  if (layer.layer_scale) {
    RETURN_IF_ERROR(Vector(dense::kLayerScale, 1, &w->layer_scale));
  }
  if (HasNgrams(layer)) {
    RETURN_IF_ERROR(Ngrams(layer.ngrams, &w->ngrams));
  }
  if (HasAttention(layer)) {
    RETURN_IF_ERROR(Streams(StreamRaws(config_.streams), 3, dense::kAttnStreams, dense::kAttnStreamsBase,
                            dense::kAttnStreamsScale, &w->attn_streams));
    RETURN_IF_ERROR(GatedStreams(dense::kAttnStreamsNorm, dense::kAttnStreamsDown, dense::kAttnStreamsUp,
                                 dense::kAttnStreamsAdd, &w->attn_streams));
    if (layer.pre_norms) {
      RETURN_IF_ERROR(Norm(dense::kAttnNorm, dense::kAttnNormBias, &w->attn_norm));
    }
    RETURN_IF_ERROR(Attention(layer.attention, w));
  }
  if (HasAttention(layer) && layer.post_norms) {
    RETURN_IF_ERROR(RmsNorm(dense::kAttnPostNorm, &w->attn_post_norm));
  }
  if (!HasFfn(layer)) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Streams(StreamRaws(config_.streams), 3, dense::kFfnStreams, dense::kFfnStreamsBase,
                          dense::kFfnStreamsScale, &w->ffn_streams));
  RETURN_IF_ERROR(GatedStreams(dense::kFfnStreamsNorm, dense::kFfnStreamsDown, dense::kFfnStreamsUp,
                               dense::kFfnStreamsAdd, &w->ffn_streams));
  if (HasFfnNorm(layer)) {
    RETURN_IF_ERROR(Norm(dense::kFfnNorm, dense::kFfnNormBias, &w->ffn_norm));
  } else if (layer.pre_norms) {
    RETURN_IF_ERROR(Norm(dense::kAttnNorm, dense::kAttnNormBias, &w->ffn_norm));
  }
  if (layer.post_norms) {
    RETURN_IF_ERROR(RmsNorm(dense::kFfnPostNorm, &w->ffn_post_norm));
  }
  return Mixture(layer.moe, w);
}

absl::Status Finder::Streams(uint32_t rows, uint32_t scales, std::string_view matrix, std::string_view base,
                             std::string_view scale, StreamWeights* streams) {
  if (!HasStreams(config_) || config_.streams.rank > 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Matrix(matrix, rows, config_.streams.count * hidden_, &streams->projection));
  RETURN_IF_ERROR(Vector(base, rows, &streams->base));
  return Vector(scale, scales, &streams->scale);
}

// The gates of a mix of streams; `add` is empty at the end.
absl::Status Finder::GatedStreams(std::string_view norm, std::string_view down, std::string_view up,
                                  std::string_view add, StreamWeights* streams) {
  const uint32_t rank = config_.streams.rank;
  const uint32_t all = config_.streams.count * hidden_;
  if (rank == 0) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Vector(norm, all, &streams->norm));
  RETURN_IF_ERROR(Matrix(down, rank, all, &streams->down));
  RETURN_IF_ERROR(Matrix(up, all, rank, &streams->up));
  return add.empty() ? absl::OkStatus() : Matrix(add, config_.streams.count, all, &streams->add);
}

absl::Status Finder::Ngrams(const NgramConfig& ngrams, NgramWeights* w) {
  const uint32_t all = config_.streams.count * hidden_;
  RETURN_IF_ERROR(Matrix(dense::kNgramKey, all, NgramWidth(ngrams), &w->key));
  RETURN_IF_ERROR(Matrix(dense::kNgramValue, hidden_, NgramWidth(ngrams), &w->value));
  RETURN_IF_ERROR(Vector(dense::kNgramKeyNorm, all, &w->key_norm));
  RETURN_IF_ERROR(Vector(dense::kNgramQueryNorm, all, &w->query_norm));
  RETURN_IF_ERROR(Vector(dense::kNgramConvNorm, all, &w->conv_norm));
  return Table(dense::kNgramConv, ngrams.kernel, all, &w->conv);
}

absl::Status Finder::Attention(const AttentionConfig& a, LayerWeights* w) {
  RETURN_IF_ERROR(Indexer(a, w));
  switch (a.kind) {
    case AttentionKind::kGrouped:
      return Grouped(a, w);
    case AttentionKind::kLatent:
      return Latent(a, w);
    case AttentionKind::kGatedDelta:
      return Delta(a.delta, w);
    case AttentionKind::kMamba:
      return Mamba(a.mamba, w);
    case AttentionKind::kShortConv:
      return ShortConv(a, w);
    case AttentionKind::kSelective:
      return Selective(a.selective, w);
    case AttentionKind::kCompressed:
      return Compressed(a, w);
    case AttentionKind::kNone:
      break;
  }
  return absl::OkStatus();
}

absl::Status Finder::Grouped(const AttentionConfig& a, LayerWeights* w) {
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  const uint32_t v_rows = a.kv_heads * ValueDim(a);
  RETURN_IF_ERROR(Matrix(dense::kQ, q_rows, hidden_, &w->q));
  RETURN_IF_ERROR(Matrix(dense::kK, kv_rows, hidden_, &w->k));
  if (!a.value_is_key) {
    RETURN_IF_ERROR(Matrix(dense::kV, v_rows, hidden_, &w->v));
  }
  RETURN_IF_ERROR(Matrix(dense::kO, hidden_, a.heads * ValueDim(a), &w->o));
  if (a.output_gate) {
    RETURN_IF_ERROR(Matrix(dense::kQGate, GateRows(a), hidden_, &w->q_gate));
  }
  if (a.qkv_bias) {
    RETURN_IF_ERROR(Vector(dense::kQBias, q_rows, &w->q_bias));
    RETURN_IF_ERROR(Vector(dense::kKBias, kv_rows, &w->k_bias));
    RETURN_IF_ERROR(Vector(dense::kVBias, v_rows, &w->v_bias));
  }
  if (a.output_bias) {
    RETURN_IF_ERROR(Vector(dense::kOBias, hidden_, &w->o_bias));
  }
  if (a.sinks) {
    RETURN_IF_ERROR(Vector(dense::kSinks, a.heads, &w->sinks));
  }
  w->q_norm.epsilon = w->k_norm.epsilon = config_.norm_epsilon;
  if (a.qk_norm == QkNorm::kPerHead || a.qk_norm == QkNorm::kAcrossHeads ||
      a.qk_norm == QkNorm::kWeightedAfterRope) {
    const bool across = a.qk_norm == QkNorm::kAcrossHeads;
    RETURN_IF_ERROR(Vector(dense::kQNorm, across ? q_rows : a.head_dim, &w->q_norm.weight));
    RETURN_IF_ERROR(Vector(dense::kKNorm, across ? kv_rows : a.head_dim, &w->k_norm.weight));
  }
  return absl::OkStatus();
}

absl::Status Finder::Latent(const AttentionConfig& a, LayerWeights* w) {
  const LatentConfig& l = a.latent;
  if (l.q_rank > 0) {
    w->q_down_norm.epsilon = l.norm_epsilon;
    RETURN_IF_ERROR(Matrix(dense::kQDown, l.q_rank, hidden_, &w->q_down));
    RETURN_IF_ERROR(Vector(dense::kQDownNorm, l.q_rank, &w->q_down_norm.weight));
  }
  w->kv_down_norm.epsilon = l.norm_epsilon;
  RETURN_IF_ERROR(Matrix(dense::kQ, a.heads * a.head_dim, l.q_rank > 0 ? l.q_rank : hidden_, &w->q));
  RETURN_IF_ERROR(Matrix(dense::kKvDown, l.kv_rank + a.rope.dimensions, hidden_, &w->kv_down));
  RETURN_IF_ERROR(Vector(dense::kKvDownNorm, l.kv_rank, &w->kv_down_norm.weight));
  RETURN_IF_ERROR(Matrix(dense::kKUpT, a.heads * l.kv_rank, l.nope_dim, &w->k_up_t));
  RETURN_IF_ERROR(Matrix(dense::kVUp, a.heads * l.value_dim, l.kv_rank, &w->v_up));
  if (a.output_gate) {
    RETURN_IF_ERROR(Matrix(dense::kQGate, GateRows(a), hidden_, &w->q_gate));
  }
  return Matrix(dense::kO, hidden_, a.heads * l.value_dim, &w->o);
}

absl::Status Finder::Indexer(const AttentionConfig& a, LayerWeights* w) {
  const IndexConfig& index = a.index;
  if (!HasIndexKeys(a)) {
    return absl::OkStatus();
  }
  w->index_q_norm.epsilon = w->index_k_norm.epsilon = index.norm_epsilon;
  RETURN_IF_ERROR(
      Matrix(dense::kIndexQ, index.heads * index.head_dim, IndexQueryWidth(a, hidden_), &w->index_q));
  RETURN_IF_ERROR(
      Matrix(dense::kIndexK, index.pooled ? PooledWidth(a) : index.head_dim, hidden_, &w->index_k));
  if (index.pooled && !index.summed) {
    RETURN_IF_ERROR(Matrix(dense::kIndexGates, PooledWidth(a), hidden_, &w->index_gates));
    RETURN_IF_ERROR(Table(dense::kIndexBias, index.block, PooledWidth(a), &w->index_bias));
  }
  RETURN_IF_ERROR(Vector(dense::kIndexKNorm, index.head_dim, &w->index_k_norm.weight));
  if (!index.weighted) {
    return Vector(dense::kIndexQNorm, index.head_dim, &w->index_q_norm.weight);
  }
  if (HasIndexNormBias(a)) {
    w->index_k_norm.kind = NormKind::kLayer;
    RETURN_IF_ERROR(Vector(dense::kIndexKNormBias, index.head_dim, &w->index_k_norm.bias));
  }
  return Matrix(dense::kIndexWeights, index.heads, hidden_, &w->index_weights);
}

absl::Status Finder::Compressed(const AttentionConfig& a, LayerWeights* w) {
  const CompressConfig& c = a.compress;
  for (NormSpec* norm : {&w->q_down_norm, &w->q_norm, &w->k_norm, &w->entry_norm}) {
    norm->epsilon = config_.norm_epsilon;
  }
  RETURN_IF_ERROR(Matrix(dense::kQDown, c.q_rank, hidden_, &w->q_down));
  RETURN_IF_ERROR(Vector(dense::kQDownNorm, c.q_rank, &w->q_down_norm.weight));
  RETURN_IF_ERROR(Matrix(dense::kQ, a.heads * a.head_dim, c.q_rank, &w->q));
  RETURN_IF_ERROR(Matrix(dense::kK, a.head_dim, hidden_, &w->k));
  RETURN_IF_ERROR(Vector(dense::kKNorm, a.head_dim, &w->k_norm.weight));
  if (a.sinks) {
    RETURN_IF_ERROR(Vector(dense::kSinks, a.heads, &w->sinks));
  }
  RETURN_IF_ERROR(
      Matrix(dense::kOGroups, c.groups * c.o_rank, a.heads / c.groups * a.head_dim, &w->o_groups));
  RETURN_IF_ERROR(Matrix(dense::kO, hidden_, c.groups * c.o_rank, &w->o));
  if (c.rate == 0) {
    return absl::OkStatus();
  }
  const uint32_t width = CompressedWidth(a);
  RETURN_IF_ERROR(Matrix(dense::kEntryValues, width, hidden_, &w->entry_values));
  RETURN_IF_ERROR(Matrix(dense::kEntryGates, width, hidden_, &w->entry_gates));
  RETURN_IF_ERROR(Table(dense::kEntryBias, c.rate, width, &w->entry_bias));
  return Vector(dense::kEntryNorm, a.head_dim, &w->entry_norm.weight);
}

absl::Status Finder::Delta(const DeltaConfig& d, LayerWeights* w) {
  const uint32_t values = d.value_heads * d.value_dim;
  const uint32_t conv_cols = 2 * d.key_heads * d.key_dim + values;
  w->delta_norm.epsilon = config_.norm_epsilon;
  RETURN_IF_ERROR(Matrix(dense::kDeltaQkv, conv_cols, hidden_, &w->delta_qkv));
  const uint32_t gate_cols = d.gate_rank > 0 ? d.gate_rank : hidden_;
  const uint32_t decays = d.value_heads * (d.channel_decay ? d.key_dim : 1);
  if (d.gate_rank > 0) {
    RETURN_IF_ERROR(Matrix(dense::kDeltaZDown, d.gate_rank, hidden_, &w->delta_z_down));
    RETURN_IF_ERROR(Matrix(dense::kDeltaDecayDown, d.gate_rank, hidden_, &w->delta_decay_down));
  }
  RETURN_IF_ERROR(Matrix(dense::kDeltaZ, values, gate_cols, &w->delta_z));
  RETURN_IF_ERROR(Matrix(dense::kDeltaBeta, d.value_heads, hidden_, &w->delta_beta));
  RETURN_IF_ERROR(Matrix(dense::kDeltaDecay, decays, gate_cols, &w->delta_decay));
  RETURN_IF_ERROR(Table(dense::kDeltaConv, conv_cols, d.conv_kernel, &w->delta_conv));
  RETURN_IF_ERROR(Vector(dense::kDeltaALog, d.value_heads, &w->delta_a_log));
  RETURN_IF_ERROR(Vector(dense::kDeltaDtBias, decays, &w->delta_dt_bias));
  RETURN_IF_ERROR(Vector(dense::kDeltaNorm, d.value_dim, &w->delta_norm.weight));
  return Matrix(dense::kO, hidden_, values, &w->o);
}

absl::Status Finder::Mamba(const MambaConfig& m, LayerWeights* w) {
  const uint32_t values = m.heads * m.head_dim;
  const uint32_t conv_cols = values + 2 * m.groups * m.state;
  w->mamba_norm.epsilon = config_.norm_epsilon;
  RETURN_IF_ERROR(Matrix(dense::kMambaZ, values, hidden_, &w->mamba_z));
  RETURN_IF_ERROR(Matrix(dense::kMambaXbc, conv_cols, hidden_, &w->mamba_xbc));
  RETURN_IF_ERROR(Matrix(dense::kMambaDt, m.heads, hidden_, &w->mamba_dt));
  RETURN_IF_ERROR(Table(dense::kMambaConv, m.conv_kernel, conv_cols, &w->mamba_conv));
  RETURN_IF_ERROR(Vector(dense::kMambaConvBias, conv_cols, &w->mamba_conv_bias));
  RETURN_IF_ERROR(Vector(dense::kMambaALog, m.heads, &w->mamba_a_log));
  RETURN_IF_ERROR(Vector(dense::kMambaDtBias, m.heads, &w->mamba_dt_bias));
  RETURN_IF_ERROR(Vector(dense::kMambaD, m.heads, &w->mamba_d));
  RETURN_IF_ERROR(Vector(dense::kMambaNorm, values, &w->mamba_norm.weight));
  return Matrix(dense::kO, hidden_, values, &w->o);
}

absl::Status Finder::Selective(const SelectiveConfig& s, LayerWeights* w) {
  for (NormSpec* norm : {&w->selective_step_norm, &w->selective_b_norm, &w->selective_c_norm}) {
    norm->epsilon = config_.norm_epsilon;
  }
  RETURN_IF_ERROR(Matrix(dense::kSelectiveX, s.channels, hidden_, &w->selective_x));
  RETURN_IF_ERROR(Matrix(dense::kSelectiveZ, s.channels, hidden_, &w->selective_z));
  RETURN_IF_ERROR(Table(dense::kSelectiveConv, s.conv_kernel, s.channels, &w->selective_conv));
  RETURN_IF_ERROR(Vector(dense::kSelectiveConvBias, s.channels, &w->selective_conv_bias));
  RETURN_IF_ERROR(Matrix(dense::kSelectiveStepDown, s.step_rank, s.channels, &w->selective_step_down));
  RETURN_IF_ERROR(Matrix(dense::kSelectiveB, s.state, s.channels, &w->selective_b));
  RETURN_IF_ERROR(Matrix(dense::kSelectiveC, s.state, s.channels, &w->selective_c));
  RETURN_IF_ERROR(Vector(dense::kSelectiveStepNorm, s.step_rank, &w->selective_step_norm.weight));
  RETURN_IF_ERROR(Vector(dense::kSelectiveBNorm, s.state, &w->selective_b_norm.weight));
  RETURN_IF_ERROR(Vector(dense::kSelectiveCNorm, s.state, &w->selective_c_norm.weight));
  RETURN_IF_ERROR(Matrix(dense::kSelectiveStep, s.channels, s.step_rank, &w->selective_step));
  RETURN_IF_ERROR(Vector(dense::kSelectiveStepBias, s.channels, &w->selective_step_bias));
  RETURN_IF_ERROR(Table(dense::kSelectiveALog, s.state, s.channels, &w->selective_a_log));
  RETURN_IF_ERROR(Vector(dense::kSelectiveD, s.channels, &w->selective_d));
  return Matrix(dense::kO, hidden_, s.channels, &w->o);
}

absl::Status Finder::ShortConv(const AttentionConfig& a, LayerWeights* w) {
  const ShortConvConfig& c = a.conv;
  if (c.bias) {
    RETURN_IF_ERROR(Vector(dense::kConvInBias, 3 * c.width, &w->conv_in_bias));
    RETURN_IF_ERROR(Vector(dense::kConvBias, c.width, &w->conv_bias));
  }
  if (a.output_bias) {
    RETURN_IF_ERROR(Vector(dense::kOBias, hidden_, &w->o_bias));
  }
  RETURN_IF_ERROR(Matrix(dense::kConvIn, 3 * c.width, hidden_, &w->conv_in));
  RETURN_IF_ERROR(Table(dense::kConvKernel, c.kernel, c.width, &w->conv_kernel));
  return Matrix(dense::kO, hidden_, c.width, &w->o);
}

absl::Status Finder::Ffn(uint32_t width, Activation activation, std::string_view up, std::string_view gate,
                         std::string_view down, DenseExpert* expert) {
  RETURN_IF_ERROR(Matrix(up, width, hidden_, &expert->up));
  if (HasGates(activation)) {
    RETURN_IF_ERROR(Matrix(gate, width, hidden_, &expert->gate));
  }
  return pack_.by_outputs() ? Matrix(down, hidden_, width, &expert->down)
                            : Matrix(down, width, hidden_, &expert->down);
}

absl::Status Finder::FfnBiases(uint32_t width, const MoeConfig& moe, std::string_view up,
                               std::string_view gate, std::string_view down, DenseExpert* expert) {
  if (!moe.ffn_bias) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Vector(up, width, &expert->up_bias));
  if (HasGates(moe.activation)) {
    RETURN_IF_ERROR(Vector(gate, width, &expert->gate_bias));
  }
  return Vector(down, hidden_, &expert->down_bias);
}

absl::Status Finder::Beside(const MoeConfig& moe, LayerWeights* w) {
  RETURN_IF_ERROR(RmsNorm(dense::kRouterNorm, &w->router_norm));
  RETURN_IF_ERROR(RmsNorm(dense::kExpertsNorm, &w->experts_norm));
  RETURN_IF_ERROR(RmsNorm(dense::kExpertsPostNorm, &w->experts_post_norm));
  RETURN_IF_ERROR(RmsNorm(dense::kParallelPostNorm, &w->beside_post_norm));
  return Ffn(moe.dense_ffn_width, moe.activation, dense::kParallelUp, dense::kParallelGate,
             dense::kParallelDown, &w->beside);
}

absl::Status Finder::Mixture(const MoeConfig& moe, LayerWeights* w) {
  if (moe.experts == 0) {
    RETURN_IF_ERROR(Ffn(moe.dense_width, moe.activation, dense::kDenseUp, dense::kDenseGate,
                        dense::kDenseDown, &w->common));
    return FfnBiases(moe.dense_width, moe, dense::kDenseUpBias, dense::kDenseGateBias, dense::kDenseDownBias,
                     &w->common);
  }
  if (config_.latent_width > 0) {
    RETURN_IF_ERROR(Matrix(dense::kLatentDown, config_.latent_width, hidden_, &w->latent_down));
    RETURN_IF_ERROR(Matrix(dense::kLatentUp, hidden_, config_.latent_width, &w->latent_up));
  }
  const uint32_t routed = moe.experts + moe.zero_experts;
  if (moe.dense_ffn_width > 0) {
    RETURN_IF_ERROR(Beside(moe, w));
  }
  if (moe.expert_scale) {
    RETURN_IF_ERROR(Vector(dense::kExpertScale, moe.experts, &w->expert_scale));
  }
  RETURN_IF_ERROR(Matrix(dense::kRouter, routed, hidden_, &w->router));
  if (moe.router_bias) {
    RETURN_IF_ERROR(Vector(dense::kRouterBias, routed, &w->router_bias));
  }
  if (moe.router_correction) {
    RETURN_IF_ERROR(Vector(dense::kRouterCorrection, routed, &w->router_correction));
  }
  if (moe.token_experts) {
    RETURN_IF_ERROR(Table(dense::kTokenExperts, config_.vocab, moe.top_k, &w->token_experts));
  }
  if (moe.expert_bias) {
    RETURN_IF_ERROR(Table(dense::kExpertsUpBias, moe.experts, moe.expert_width, &w->up_biases));
    RETURN_IF_ERROR(Table(dense::kExpertsGateBias, moe.experts, moe.expert_width, &w->gate_biases));
    RETURN_IF_ERROR(Table(dense::kExpertsDownBias, moe.experts, hidden_, &w->down_biases));
  }
  if (moe.shared_width > 0) {
    DenseExpert* shared = moe.shared_apart ? &w->beside : &w->common;
    RETURN_IF_ERROR(Ffn(moe.shared_width, moe.activation, dense::kSharedUp, dense::kSharedGate,
                        dense::kSharedDown, shared));
    RETURN_IF_ERROR(FfnBiases(moe.shared_width, moe, dense::kSharedUpBias, dense::kSharedGateBias,
                              dense::kSharedDownBias, shared));
  }
  if (moe.shared_gate) {
    RETURN_IF_ERROR(Matrix(dense::kSharedRouter, 1, hidden_, &w->shared_router));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FindDenseTensors(const Pack& pack, DenseTensors* tensors) {
  return Finder(pack, tensors).FindAll();
}

namespace {

// Pause before a retry after weightd had no room: other sessions release some meanwhile.
constexpr absl::Duration kRetryPace = absl::Milliseconds(10);

}  // namespace

DenseWeights::DenseWeights(WeightClient* client, FetchQueue* fetches, const SegmentBuffers* segments)
    : client_(client),
      fetches_(fetches),
      segments_(segments),
      pack_(client->pack()),
      extents_(pack_.dense_extent_count(), Extent::kAbsent),
      leases_(pack_.dense_extent_count()) {}

uint64_t DenseWeights::DeviceBytes(const Pack& pack) {
  uint64_t bytes = 0;
  for (uint32_t extent = 0; extent < pack.dense_extent_count(); ++extent) {
    bytes += pack.extents()[extent].length;
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<DenseWeights>> DenseWeights::Create(WeightClient* client, FetchQueue* fetches,
                                                                   const SegmentBuffers* segments,
                                                                   Backend* device) {
  std::unique_ptr<DenseWeights> weights(new DenseWeights(client, fetches, segments));
  RETURN_IF_ERROR(Annotate(FindDenseTensors(client->pack(), &weights->tensors_),
                           absl::StrCat("pack ", client->pack().dir())));
  if (device != nullptr) {
    // Extents are placed back to back: their lengths are multiples of every view's alignment.
    uint64_t bytes = 0;
    for (uint32_t extent = 0; extent < weights->extents_.size(); ++extent) {
      weights->offsets_.push_back(bytes);
      bytes += weights->pack_.extents()[extent].length;
    }
    ASSIGN_OR_RETURN(weights->slab_, DeviceSlab::Create(bytes, device));
  }
  return weights;
}

absl::Status DenseWeights::Acquire(absl::Duration stall_limit) {
  absl::Status status = HoldAll(stall_limit);
  if (status.ok()) {
    status = Resolve();
  }
  if (!status.ok()) {
    Release();
    return status;
  }
  acquired_ = true;
  return absl::OkStatus();
}

void DenseWeights::Hold(uint32_t extent) {
  extents_[extent] = Extent::kHeld;
  ++held_;
}

bool DenseWeights::TryLease(uint32_t extent) {
  if (slab_ != nullptr || extents_[extent] == Extent::kHeld || !client_->TryLease(extent, &leases_[extent])) {
    return false;
  }
  Hold(extent);
  return true;
}

bool DenseWeights::OnFetched(uint32_t extent) {
  if (slab_ == nullptr) {
    return TryLease(extent);
  }
  Hold(extent);
  return true;
}

absl::Status DenseWeights::Fetch(uint32_t extent) {
  if (slab_ == nullptr) {
    return fetches_->FetchDense(extent);
  }
  TransferTarget target;
  target.slab = slab_->number();
  target.base[0] = offsets_[extent];
  return fetches_->FetchDense(extent, &target);
}

absl::Status DenseWeights::HoldAll(absl::Duration stall_limit) {
  if (slab_ != nullptr && held_ < extents_.size()) {
    // No modelled link: it models only the cost of experts that are fetched while tokens wait.
    RETURN_IF_ERROR(slab_->Offer(/*link_gbps=*/0, /*link_latency_us=*/0, client_));
  }
  const absl::Duration silence_limit = stall_limit + SlowestRead();
  StallLimit stall(silence_limit);
  stall.Restart(SteadyNow());
  absl::Time retry_at = absl::InfinitePast();
  uint64_t refusals = 0;
  absl::Status trouble;
  // A completion is a hint that the extent is resident; only a lease guarantees that it stays. An extent
  // evicted in between is requested again.
  const auto handle = [&](const FetchKey& key, const FetchCompletion& completion) {
    if (!key.dense() || extents_[key.extent] != Extent::kRequested) {
      return;
    }
    extents_[key.extent] = Extent::kAbsent;
    if (completion.code == absl::StatusCode::kDataLoss) {
      trouble = ReasonError(absl::StatusCode::kDataLoss, "WEIGHT_CORRUPT",
                            absl::StrCat(pack_.ExtentName(key.extent), " is damaged"));
    } else if (completion.code == absl::StatusCode::kOk && OnFetched(key.extent)) {
      stall.Restart(SteadyNow());
      stall.set_limit(silence_limit);
    } else if (completion.code == absl::StatusCode::kResourceExhausted) {
      ++refusals;
      retry_at = SteadyNow() + kRetryPace;
      stall.set_limit(stall_limit);
    } else if (completion.code == absl::StatusCode::kDeadlineExceeded) {
      stall.set_limit(stall_limit);
    }
  };
  for (;;) {
    for (uint32_t extent = 0; extent < extents_.size() && SteadyNow() >= retry_at; ++extent) {
      if (extents_[extent] != Extent::kAbsent || TryLease(extent)) {
        continue;
      }
      const absl::Status status = Fetch(extent);
      if (absl::IsResourceExhausted(status)) {
        break;  // the ring is full: completions make room
      }
      RETURN_IF_ERROR(status);
      extents_[extent] = Extent::kRequested;
    }
    if (held_ == extents_.size()) {
      return absl::OkStatus();
    }
    if (stall.Exceeded(SteadyNow())) {
      // The two causes have different remedies: a budget that is too small, or a disk or weightd that does
      // not respond.
      return refusals > 0 ? NoRoomError() : StallError(stall.limit());
    }
    RETURN_IF_ERROR(client_->Wait(
        stall.EndOfWait(SteadyNow(), SteadyNow() < retry_at ? retry_at : absl::InfiniteFuture())));
    fetches_->Poll(handle);
    RETURN_IF_ERROR(trouble);
  }
}

// Returns the time that the largest extent takes from the slowest disk that is worth waiting for. Meanwhile
// weightd is silent; it says itself when the disk is.
absl::Duration DenseWeights::SlowestRead() const {
  constexpr double kSlowestDisk = 8 << 20;  // bytes a second
  uint64_t largest = 0;
  for (uint32_t extent = 0; extent < extents_.size(); ++extent) {
    largest = std::max<uint64_t>(largest, pack_.extents()[extent].length);
  }
  return absl::Seconds(static_cast<double>(largest) / kSlowestDisk);
}

absl::Status DenseWeights::NoRoomError() const {
  return ReasonError(
      absl::StatusCode::kResourceExhausted, "DRAM_TOO_SMALL",
      absl::StrCat("weightd gave ", held_, " of ", extents_.size(), " dense extents; all ",
                   pack_.dense_bytes(), " bytes of them must fit its DRAM budget beside the experts"));
}

absl::Status DenseWeights::StallError(absl::Duration stall_limit) const {
  return absl::ResourceExhaustedError(absl::StrCat("weightd gave ", held_, " of ", extents_.size(),
                                                   " dense extents; the others did not come for ",
                                                   absl::FormatDuration(stall_limit)));
}

absl::Status DenseWeights::Resolve() {
  for (const DenseTensors::Placed& placed : tensors_.placed) {
    const uint32_t extent = placed.tensor->extent;
    if (slab_ != nullptr) {
      *placed.place = BufferRef{slab_->buffer(), offsets_[extent] + placed.tensor->offset};
      continue;
    }
    const ExtentLease& lease = leases_[extent];
    const BufferRef place = segments_->Place(lease);
    if (!place) {
      return absl::InternalError(absl::StrCat(pack_.ExtentName(placed.tensor->extent),
                                              " is leased in segment ", lease.segment,
                                              ", which was never announced"));
    }
    *placed.place = place + placed.tensor->offset;
  }
  return absl::OkStatus();
}

void DenseWeights::Release() {
  for (uint32_t extent = 0; extent < extents_.size(); ++extent) {
    if (extents_[extent] == Extent::kHeld && slab_ != nullptr) {
      continue;
    }
    if (extents_[extent] == Extent::kHeld) {
      client_->Release(extent, 0);
      --held_;
    }
    extents_[extent] = Extent::kAbsent;
  }
  acquired_ = false;
}

}  // namespace sluice::inferd
