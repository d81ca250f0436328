#include "inferd/model/dense_tensors.h"

#include <string>
#include <string_view>

#include "common/model/dense_names.h"
#include "common/status.h"

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
  absl::Status Delta(const DeltaConfig& d, LayerWeights* w);
  absl::Status Mamba(const MambaConfig& m, LayerWeights* w);
  absl::Status ShortConv(const ShortConvConfig& c, LayerWeights* w);
  absl::Status Attention(const AttentionConfig& a, LayerWeights* w);
  absl::Status Ffn(uint32_t width, Activation activation, std::string_view up, std::string_view gate,
                   std::string_view down, DenseExpert* expert);
  absl::Status Beside(const MoeConfig& moe, LayerWeights* w);
  absl::Status RmsNorm(std::string_view weight, NormSpec* norm);
  absl::Status Mixture(const MoeConfig& moe, LayerWeights* w);

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
  return config_.norm == NormKind::kLayer ? Vector(bias, hidden_, &norm->bias) : absl::OkStatus();
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
  RETURN_IF_ERROR(Norm(dense::kFinalNorm, dense::kFinalNormBias, &tensors_->final_norm));
  tensors_->layers.resize(config_.layers.size());
  for (uint32_t layer = 0; layer < config_.layers.size(); ++layer) {
    prefix_ = dense::LayerName(layer, "");
    RETURN_IF_ERROR(Layer(config_.layers[layer], &tensors_->layers[layer]));
  }
  return absl::OkStatus();
}

absl::Status Finder::Layer(const LayerConfig& layer, LayerWeights* w) {
  if (layer.layer_scale) {
    RETURN_IF_ERROR(Vector(dense::kLayerScale, 1, &w->layer_scale));
  }
  if (HasAttention(layer)) {
    RETURN_IF_ERROR(Norm(dense::kAttnNorm, dense::kAttnNormBias, &w->attn_norm));
    RETURN_IF_ERROR(Attention(layer.attention, w));
  }
  if (HasAttention(layer) && layer.post_norms) {
    RETURN_IF_ERROR(RmsNorm(dense::kAttnPostNorm, &w->attn_post_norm));
  }
  if (!HasFfn(layer)) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Norm(dense::kFfnNorm, dense::kFfnNormBias, &w->ffn_norm));
  if (layer.post_norms) {
    RETURN_IF_ERROR(RmsNorm(dense::kFfnPostNorm, &w->ffn_post_norm));
  }
  return Mixture(layer.moe, w);
}

absl::Status Finder::Attention(const AttentionConfig& a, LayerWeights* w) {
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
      return ShortConv(a.conv, w);
    case AttentionKind::kNone:
      break;
  }
  return absl::OkStatus();
}

absl::Status Finder::Grouped(const AttentionConfig& a, LayerWeights* w) {
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  RETURN_IF_ERROR(Matrix(dense::kQ, q_rows, hidden_, &w->q));
  RETURN_IF_ERROR(Matrix(dense::kK, kv_rows, hidden_, &w->k));
  if (!a.value_is_key) {
    RETURN_IF_ERROR(Matrix(dense::kV, kv_rows, hidden_, &w->v));
  }
  RETURN_IF_ERROR(Matrix(dense::kO, hidden_, q_rows, &w->o));
  if (a.output_gate) {
    RETURN_IF_ERROR(Matrix(dense::kQGate, q_rows, hidden_, &w->q_gate));
  }
  if (a.qkv_bias) {
    RETURN_IF_ERROR(Vector(dense::kQBias, q_rows, &w->q_bias));
    RETURN_IF_ERROR(Vector(dense::kKBias, kv_rows, &w->k_bias));
    RETURN_IF_ERROR(Vector(dense::kVBias, kv_rows, &w->v_bias));
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
  return Matrix(dense::kO, hidden_, a.heads * l.value_dim, &w->o);
}

absl::Status Finder::Delta(const DeltaConfig& d, LayerWeights* w) {
  const uint32_t values = d.value_heads * d.value_dim;
  const uint32_t conv_cols = 2 * d.key_heads * d.key_dim + values;
  w->delta_norm.epsilon = config_.norm_epsilon;
  RETURN_IF_ERROR(Matrix(dense::kDeltaQkv, conv_cols, hidden_, &w->delta_qkv));
  RETURN_IF_ERROR(Matrix(dense::kDeltaZ, values, hidden_, &w->delta_z));
  RETURN_IF_ERROR(Matrix(dense::kDeltaBeta, d.value_heads, hidden_, &w->delta_beta));
  RETURN_IF_ERROR(Matrix(dense::kDeltaDecay, d.value_heads, hidden_, &w->delta_decay));
  RETURN_IF_ERROR(Table(dense::kDeltaConv, conv_cols, d.conv_kernel, &w->delta_conv));
  RETURN_IF_ERROR(Vector(dense::kDeltaALog, d.value_heads, &w->delta_a_log));
  RETURN_IF_ERROR(Vector(dense::kDeltaDtBias, d.value_heads, &w->delta_dt_bias));
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

absl::Status Finder::ShortConv(const ShortConvConfig& c, LayerWeights* w) {
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
  return Matrix(down, width, hidden_, &expert->down);
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
    return Ffn(moe.dense_width, moe.activation, dense::kDenseUp, dense::kDenseGate, dense::kDenseDown,
               &w->common);
  }
  if (moe.dense_ffn_width > 0) {
    RETURN_IF_ERROR(Beside(moe, w));
  }
  if (moe.expert_scale) {
    RETURN_IF_ERROR(Vector(dense::kExpertScale, moe.experts, &w->expert_scale));
  }
  RETURN_IF_ERROR(Matrix(dense::kRouter, moe.experts, hidden_, &w->router));
  if (moe.router_bias) {
    RETURN_IF_ERROR(Vector(dense::kRouterBias, moe.experts, &w->router_bias));
  }
  if (moe.router_correction) {
    RETURN_IF_ERROR(Vector(dense::kRouterCorrection, moe.experts, &w->router_correction));
  }
  if (moe.expert_bias) {
    RETURN_IF_ERROR(Table(dense::kExpertsUpBias, moe.experts, moe.expert_width, &w->up_biases));
    RETURN_IF_ERROR(Table(dense::kExpertsGateBias, moe.experts, moe.expert_width, &w->gate_biases));
    RETURN_IF_ERROR(Table(dense::kExpertsDownBias, moe.experts, hidden_, &w->down_biases));
  }
  if (moe.shared_width > 0) {
    RETURN_IF_ERROR(Ffn(moe.shared_width, moe.activation, dense::kSharedUp, dense::kSharedGate,
                        dense::kSharedDown, &w->common));
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

}  // namespace sluice::inferd
