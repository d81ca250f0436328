#include "common/model/families/hf_map_blocks.h"

#include "common/model/dense_names.h"
#include "common/status.h"

namespace sluice {

void LayerMapper::Dense(std::string_view canonical, const SourceMatrix& matrix) {
  mapper_->Dense(dense::LayerName(layer_, canonical), matrix);
}

void LayerMapper::Norms(bool plus_one) {
  const SourceMatrix attention = Vector("input_layernorm.weight", hidden());
  const SourceMatrix ffn = Vector("post_attention_layernorm.weight", hidden());
  Dense(dense::kAttnNorm, plus_one ? PlusOne(attention) : attention);
  Dense(dense::kFfnNorm, plus_one ? PlusOne(ffn) : ffn);
  if (config_.norm != NormKind::kLayer) return;
  Dense(dense::kAttnNormBias, Vector("input_layernorm.bias", hidden()));
  Dense(dense::kFfnNormBias, Vector("post_attention_layernorm.bias", hidden()));
}

void LayerMapper::GroupedAttention() {
  const AttentionConfig& a = attention();
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  Dense(dense::kQ, Matrix("self_attn.q_proj.weight", q_rows, hidden()));
  Dense(dense::kK, Matrix("self_attn.k_proj.weight", kv_rows, hidden()));
  Dense(dense::kV, Matrix("self_attn.v_proj.weight", kv_rows, hidden()));
  Dense(dense::kO, Matrix("self_attn.o_proj.weight", hidden(), q_rows));
  if (a.qkv_bias) {
    Dense(dense::kQBias, Vector("self_attn.q_proj.bias", q_rows));
    Dense(dense::kKBias, Vector("self_attn.k_proj.bias", kv_rows));
    Dense(dense::kVBias, Vector("self_attn.v_proj.bias", kv_rows));
  }
  if (a.output_bias) Dense(dense::kOBias, Vector("self_attn.o_proj.bias", hidden()));
  if (a.qk_norm == QkNorm::kPerHead || a.qk_norm == QkNorm::kAcrossHeads) {
    const bool across = a.qk_norm == QkNorm::kAcrossHeads;
    Dense(dense::kQNorm, Vector("self_attn.q_norm.weight", across ? q_rows : a.head_dim));
    Dense(dense::kKNorm, Vector("self_attn.k_norm.weight", across ? kv_rows : a.head_dim));
  }
}

// The down matrix is stored transposed, one row for each neuron: every part of a neuron is then one row,
// which can travel and be computed alone.
void LayerMapper::Ffn(const std::string& mlp, uint32_t width, std::string_view up, std::string_view gate,
                      std::string_view down) {
  Dense(gate, Matrix(mlp + "gate_proj.weight", width, hidden()));
  Dense(up, Matrix(mlp + "up_proj.weight", width, hidden()));
  Dense(down, Transposed(Matrix(mlp + "down_proj.weight", hidden(), width)));
}

void LayerMapper::DenseFfn(const std::string& mlp) {
  Ffn(mlp, moe().dense_width, dense::kDenseUp, dense::kDenseGate, dense::kDenseDown);
}

void LayerMapper::SharedExpert(const std::string& mlp) {
  Ffn(mlp, moe().shared_width, dense::kSharedUp, dense::kSharedGate, dense::kSharedDown);
}

void LayerMapper::DeepseekFfn() {
  if (moe().experts == 0) return DenseFfn("mlp.");
  Dense(dense::kRouter, Matrix("mlp.gate.weight", moe().experts, hidden()));
  if (moe().router_correction) {
    Dense(dense::kRouterCorrection, Vector("mlp.gate.e_score_correction_bias", moe().experts));
  }
  Experts("mlp.experts.", {});
  if (moe().shared_width != 0) SharedExpert("mlp.shared_experts.");
}

void LayerMapper::Experts(const std::string& experts, const ExpertNames& names) {
  if (Has(experts + "gate_up_proj")) {
    return MapStackedExperts(experts + "gate_up_proj", experts + "down_proj", this);
  }
  const uint32_t width = moe().expert_width;
  for (uint32_t e = 0; e < moe().experts && ok(); ++e) {
    const std::string base = absl::StrCat(experts, e, ".");
    ExpertSource expert;
    expert.gate = Matrix(absl::StrCat(base, names.gate, ".weight"), width, hidden());
    expert.up = Matrix(absl::StrCat(base, names.up, ".weight"), width, hidden());
    expert.down = Transposed(Matrix(absl::StrCat(base, names.down, ".weight"), hidden(), width));
    AddExpert(expert);
  }
}

void MapStackedExperts(const std::string& gate_up, const std::string& down, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t width = moe.expert_width;
  const SourceMatrix gates_ups = layer->Stack(gate_up, moe.experts, 2 * width, layer->hidden());
  const SourceMatrix downs = layer->Stack(down, moe.experts, layer->hidden(), width);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    ExpertSource expert;
    expert.gate = Rows(gates_ups, e * 2 * width, moe.expert_width);
    expert.up = Rows(gates_ups, e * 2 * width + width, moe.expert_width);
    expert.down = Transposed(Rows(downs, e * layer->hidden(), layer->hidden()));
    layer->AddExpert(expert);
  }
}

// Layers for multi-token prediction come behind the model's own and are not part of its forward pass; eh_proj
// is a tensor that only they have.
void IgnorePredictionLayers(const ModelConfig& config, TensorMapper* mapper) {
  for (size_t i = config.layers.size();; ++i) {
    const std::string base = absl::StrCat("model.layers.", i, ".");
    if (!mapper->Has(base + "eh_proj.weight")) return;
    mapper->IgnorePrefix(base);
  }
}

void MapEnds(const ModelConfig& config, const EndNames& names, TensorMapper* mapper) {
  mapper->Dense(std::string(dense::kEmbed), mapper->Tensor(names.embed, {config.vocab, config.hidden}));
  const SourceMatrix norm = mapper->Tensor(names.norm + ".weight", {config.hidden});
  mapper->Dense(std::string(dense::kFinalNorm), names.plus_one ? PlusOne(norm) : norm);
  if (config.norm == NormKind::kLayer) {
    mapper->Dense(std::string(dense::kFinalNormBias), mapper->Tensor(names.norm + ".bias", {config.hidden}));
  }
  // Some files store the head beside tied embeddings all the same.
  if (config.tied_embeddings) {
    mapper->Ignore(names.head + ".weight");
  } else {
    mapper->Dense(std::string(dense::kHead),
                  mapper->Tensor(names.head + ".weight", {config.vocab, config.hidden}));
  }
  if (config.head_bias) {
    mapper->Dense(std::string(dense::kHeadBias), mapper->Tensor(names.head + ".bias", {config.vocab}));
  }
}

}  // namespace sluice
