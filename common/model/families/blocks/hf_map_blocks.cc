#include "common/model/families/blocks/hf_map_blocks.h"

#include "common/model/dense_names.h"

namespace sluice {

void LayerMapper::Dense(std::string_view canonical, const SourceMatrix& matrix) {
  mapper_->Dense(dense::LayerName(layer_, canonical), matrix);
}

void LayerMapper::Norms(const LayerNormNames& names) {
  struct Norm {
    const char* name;
    std::string_view weight;
    std::string_view bias;
  };
  const Norm norms[] = {{names.attention, dense::kAttnNorm, dense::kAttnNormBias},
                        {names.ffn, dense::kFfnNorm, dense::kFfnNormBias},
                        {names.attention_post, dense::kAttnPostNorm, {}},
                        {names.ffn_post, dense::kFfnPostNorm, {}}};
  for (const Norm& norm : norms) {
    if (norm.name == nullptr) continue;
    const SourceMatrix weight = Vector(absl::StrCat(norm.name, ".weight"), hidden());
    Dense(norm.weight, names.plus_one ? PlusOne(weight) : weight);
    if (config_.norm != NormKind::kLayer) continue;
    Dense(norm.bias, Vector(absl::StrCat(norm.name, ".bias"), hidden()));
  }
}

void LayerMapper::GroupedAttention(const AttentionNames& names) {
  const AttentionConfig& a = attention();
  const std::string& base = names.base;
  const uint32_t q_rows = a.heads * a.head_dim;
  const uint32_t kv_rows = a.kv_heads * a.head_dim;
  Dense(dense::kQ, Matrix(base + "q_proj.weight", q_rows, hidden()));
  Dense(dense::kK, Matrix(base + "k_proj.weight", kv_rows, hidden()));
  if (!a.value_is_key) Dense(dense::kV, Matrix(base + "v_proj.weight", kv_rows, hidden()));
  Dense(dense::kO, Matrix(base + names.o + ".weight", hidden(), q_rows));
  if (a.qkv_bias) {
    Dense(dense::kQBias, Vector(base + "q_proj.bias", q_rows));
    Dense(dense::kKBias, Vector(base + "k_proj.bias", kv_rows));
    Dense(dense::kVBias, Vector(base + "v_proj.bias", kv_rows));
  }
  if (a.output_bias) Dense(dense::kOBias, Vector(base + names.o + ".bias", hidden()));
  if (a.qk_norm == QkNorm::kPerHead || a.qk_norm == QkNorm::kAcrossHeads ||
      a.qk_norm == QkNorm::kWeightedAfterRope) {
    const bool across = a.qk_norm == QkNorm::kAcrossHeads;
    Dense(dense::kQNorm, Vector(base + names.q_norm + ".weight", across ? q_rows : a.head_dim));
    Dense(dense::kKNorm, Vector(base + names.k_norm + ".weight", across ? kv_rows : a.head_dim));
  }
}

void LayerMapper::Mamba(const std::string& base) {
  const MambaConfig& m = attention().mamba;
  const uint32_t values = m.heads * m.head_dim;
  const uint32_t conv_cols = values + 2 * m.groups * m.state;
  // Rows of in_proj: z, then the convolved values, then the time steps.
  const SourceMatrix in = Matrix(base + "in_proj.weight", uint64_t{values} + conv_cols + m.heads, hidden());
  Dense(dense::kMambaZ, Rows(in, 0, values));
  Dense(dense::kMambaXbc, Rows(in, values, conv_cols));
  Dense(dense::kMambaDt, Rows(in, uint64_t{values} + conv_cols, m.heads));
  // Depthwise convolution: [channels, 1, kernel].
  Dense(dense::kMambaConv, Transposed(Stack(base + "conv1d.weight", conv_cols, 1, m.conv_kernel)));
  Dense(dense::kMambaConvBias, Vector(base + "conv1d.bias", conv_cols));
  Dense(dense::kMambaALog, Vector(base + "A_log", m.heads));
  Dense(dense::kMambaDtBias, Vector(base + "dt_bias", m.heads));
  Dense(dense::kMambaD, Vector(base + "D", m.heads));
  Dense(dense::kMambaNorm, Vector(base + "norm.weight", values));
  Dense(dense::kO, Matrix(base + "out_proj.weight", hidden(), values));
}

// The down matrix is stored transposed, one row for each neuron: every part of a neuron is then one row that
// can be transferred and computed alone.
void LayerMapper::Ffn(const std::string& mlp, const FfnNames& names, uint32_t width, std::string_view up,
                      std::string_view gate, std::string_view down) {
  const auto name = [&mlp](const char* part) { return absl::StrCat(mlp, part, ".weight"); };
  if (HasGates(moe().activation)) Dense(gate, Matrix(name(names.gate), width, hidden()));
  Dense(up, Matrix(name(names.up), width, hidden()));
  Dense(down, Transposed(Matrix(name(names.down), hidden(), width)));
}

void LayerMapper::DenseFfn(const std::string& mlp, const FfnNames& names) {
  Ffn(mlp, names, moe().dense_width, dense::kDenseUp, dense::kDenseGate, dense::kDenseDown);
}

void LayerMapper::SharedExpert(const std::string& mlp, const FfnNames& names) {
  Ffn(mlp, names, moe().shared_width, dense::kSharedUp, dense::kSharedGate, dense::kSharedDown);
}

void LayerMapper::ParallelFfn(const std::string& mlp) {
  Ffn(mlp, {}, moe().dense_ffn_width, dense::kParallelUp, dense::kParallelGate, dense::kParallelDown);
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

void LayerMapper::Experts(const std::string& experts, const FfnNames& names) {
  if (Has(experts + "gate_up_proj")) {
    return MapStackedExperts(experts + "gate_up_proj", experts + "down_proj", this);
  }
  const uint32_t width = moe().expert_width;
  for (uint32_t e = 0; e < moe().experts && ok(); ++e) {
    const std::string base = absl::StrCat(experts, e, ".");
    ExpertSource expert;
    if (HasGates(moe().activation)) {
      expert.gate = Matrix(absl::StrCat(base, names.gate, ".weight"), width, hidden());
    }
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

void MapStackedInputs(const std::string& gate_up, const std::string& down, LayerMapper* layer) {
  const MoeConfig& moe = layer->moe();
  const uint64_t hidden = layer->hidden();
  const uint32_t width = moe.expert_width;
  const SourceMatrix gates_ups = layer->Stack(gate_up, moe.experts, hidden, uint64_t{2} * width);
  const SourceMatrix downs = layer->Stack(down, moe.experts, width, hidden);
  for (uint64_t e = 0; e < moe.experts && layer->ok(); ++e) {
    const SourceMatrix both = Rows(gates_ups, e * hidden, layer->hidden());
    layer->AddExpert({.up = Transposed(Columns(both, width, width)),
                      .gate = Transposed(Columns(both, 0, width)),
                      .down = Rows(downs, e * width, width)});
  }
}

// Layers for multi-token prediction follow the model's own layers and are not part of its forward pass; only
// they have a tensor eh_proj.
void IgnorePredictionLayers(const ModelConfig& config, TensorMapper* mapper) {
  for (size_t i = config.layers.size();; ++i) {
    const std::string base = absl::StrCat("model.layers.", i, ".");
    if (!mapper->Has(base + "eh_proj.weight")) return;
    mapper->IgnorePrefix(base);
  }
}

void MapEmbeddingAndHead(const ModelConfig& config, const EmbeddingAndHeadNames& names,
                         TensorMapper* mapper) {
  mapper->Dense(std::string(dense::kEmbed), mapper->Tensor(names.embed, {config.vocab, config.hidden}));
  const SourceMatrix norm = mapper->Tensor(names.norm + ".weight", {config.hidden});
  mapper->Dense(std::string(dense::kFinalNorm), names.plus_one ? PlusOne(norm) : norm);
  if (config.norm == NormKind::kLayer) {
    mapper->Dense(std::string(dense::kFinalNormBias), mapper->Tensor(names.norm + ".bias", {config.hidden}));
  }
  // Some files store the head in spite of tied embeddings.
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
