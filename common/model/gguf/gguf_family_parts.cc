#include <utility>

#include "common/model/gguf/gguf_families.h"

namespace sluice {
namespace {

using nlohmann::json;

void AddYarn(double mscale_all_dim, GgufKeyReader* q, json* rope) {
  (*rope)["rope_type"] = "yarn";
  (*rope)["factor"] = q->Real("rope.scaling.factor", 1);
  (*rope)["beta_fast"] = q->Real("rope.scaling.yarn_beta_fast", 32);
  (*rope)["beta_slow"] = q->Real("rope.scaling.yarn_beta_slow", 1);
  if (q->Real("rope.scaling.yarn_ext_factor", 1) != 1)
    q->Refuse("rope.scaling.yarn_ext_factor", "other than 1");
  if (q->Has("rope.scaling.attn_factor") || q->Has("rope.scaling.yarn_attn_factor")) {
    const double own = q->Real("rope.scaling.attn_factor", q->Real("rope.scaling.yarn_attn_factor", 1));
    const double factor = (*rope)["factor"].get<double>();
    (*rope)["attention_factor"] = own * (factor > 1 ? 1 + 0.1 * std::log(factor) : 1);
  }
  if (mscale_all_dim == 0) return;
  // The file holds only the product; both factors are equal in all models that have them.
  (*rope)["mscale"] = mscale_all_dim;
  (*rope)["mscale_all_dim"] = mscale_all_dim;
}

// Divisors of the frequencies, one set for short sequences and one for long ones.
void AddDivisors(std::vector<double> shorts, std::vector<double> longs, bool mscales,
                 const GgufBaseConfig& base, GgufKeyReader* q, json* rope) {
  (*rope)["rope_type"] = "longrope";
  const double original = (*rope)["original_max_position_embeddings"].get<double>();
  const double stretch = static_cast<double>(base.context) / original;
  const double factor =
      q->Real("rope.scaling.attn_factor",
              stretch <= 1 || original < 2 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(original)));
  if (mscales) {
    (*rope)["short_mscale"] = factor;
    (*rope)["long_mscale"] = factor;
  } else {
    (*rope)["attention_factor"] = factor;
  }
  (*rope)["short_factor"] = std::move(shorts);
  (*rope)["long_factor"] = std::move(longs);
}

}  // namespace

json GgufRopeScaling(const GgufBaseConfig& base, double mscale_all_dim, bool mscales, GgufKeyReader* q) {
  json rope = json::object();
  const uint64_t original = q->IntOr("rope.scaling.original_context_length", base.context, 1);
  rope["original_max_position_embeddings"] = original;
  std::vector<double> shorts = q->Values("rope_factors_short.weight");
  std::vector<double> longs = q->Values("rope_factors_long.weight");
  if (!shorts.empty() || !longs.empty()) {
    AddDivisors(std::move(shorts), std::move(longs), mscales, base, q, &rope);
    return rope;
  }
  std::vector<double> divisors = q->Values("rope_freqs.weight");
  if (std::any_of(divisors.begin(), divisors.end(), [](double d) { return d != 1; })) {
    AddDivisors(divisors, divisors, mscales, base, q, &rope);
    return rope;
  }
  const std::string type = q->Word("rope.scaling.type", "none");
  const double linear =
      q->Real("rope.scale_linear", type == "linear" ? q->Real("rope.scaling.factor", 1) : 1);
  if (type == "yarn") {
    AddYarn(mscale_all_dim, q, &rope);
    return rope;
  }
  if (type != "none" && type != "linear") q->Refuse("rope.scaling.type", type.substr(0, 40));
  if (linear == 1) return nullptr;
  return {{"rope_type", "linear"}, {"factor", linear}};
}

json GgufBaseJson(const char* model_type, const char* architecture, const GgufBaseConfig& base,
                  GgufKeyReader* q) {
  json config = {{"model_type", model_type}, {"architectures", {architecture}}};
  const GgufTensorInfo* embed = q->files().Find("token_embd.weight");
  if (embed == nullptr || embed->dims.size() != 2) {
    q->Keep(absl::InvalidArgumentError(absl::StrCat(q->files().path(), ": has no matrix token_embd.weight")));
  } else {
    config["vocab_size"] = embed->dims[1];
  }
  config["hidden_size"] = base.hidden;
  config["num_hidden_layers"] = base.layers;
  config["max_position_embeddings"] = base.context;
  config["rms_norm_eps"] = q->Real("attention.layer_norm_rms_epsilon", 1e-5);
  config["num_attention_heads"] = base.heads;
  config["tie_word_embeddings"] = !q->HasTensor("output.weight");
  config["rope_theta"] = q->Real("rope.freq_base", 10000);
  return config;
}

void AddGgufHeads(const GgufBaseConfig& base, uint64_t kv_heads, bool mscales, GgufKeyReader* q,
                  json* config) {
  (*config)["num_key_value_heads"] = kv_heads;
  (*config)["head_dim"] = base.head_dim;
  if (q->IntOr("attention.value_length", base.head_dim) != base.head_dim) {
    q->Refuse("attention.value_length", "other than attention.key_length");
  }
  const json rope = GgufRopeScaling(base, 0, mscales, q);
  if (!rope.is_null()) (*config)["rope_scaling"] = rope;
}

void AddGgufGrouped(const GgufBaseConfig& base, bool mscales, GgufKeyReader* q, json* config) {
  AddGgufHeads(base, q->UniformInt("attention.head_count_kv", base.heads), mscales, q, config);
}

void RequireWholeHeadRope(const GgufBaseConfig& base, GgufKeyReader* q) {
  if (q->IntOr("rope.dimension_count", base.head_dim) != base.head_dim) {
    q->Refuse("rope.dimension_count", "other than a whole head");
  }
}

uint64_t GgufExpertWidth(const GgufBaseConfig& base, GgufKeyReader* q) {
  // Old files lack this key; one tensor per expert is an even older layout.
  uint64_t width = q->DimOf("ffn_up_exps.weight", 1, base.layers);
  if (width == 0) width = q->DimOf("ffn_up.0.weight", 1, base.layers);
  if (width == 0) width = q->DimOf("ffn_gate_up_exps.weight", 1, base.layers) / 2;
  return q->IntOr("expert_feed_forward_length", width, 1);
}

void AddGgufExperts(const char* count_name, const char* width_name, const GgufBaseConfig& base,
                    GgufKeyReader* q, json* config) {
  (*config)[count_name] = q->RequiredInt("expert_count");
  (*config)["num_experts_per_tok"] = q->RequiredInt("expert_used_count");
  (*config)[width_name] = GgufExpertWidth(base, q);
}

void RequireGgufGating(uint64_t function, GgufKeyReader* q) {
  const uint64_t said = q->IntOr("expert_gating_func", function);
  if (said != function) q->Refuse("expert_gating_func", absl::StrCat(said));
}

uint64_t GgufHeadsOfSomeLayers(const GgufBaseConfig& base, GgufKeyReader* q) {
  const std::vector<int64_t> kv_heads = q->IntList("attention.head_count_kv");
  int64_t heads = 0;
  for (const int64_t of_layer : kv_heads) {
    if (of_layer < 0 || (heads != 0 && of_layer != 0 && of_layer != heads)) {
      q->Refuse("attention.head_count_kv", "with other numbers than one and zeros");
    }
    if (of_layer > 0) heads = of_layer;
  }
  if (kv_heads.size() < base.layers || heads == 0) {
    q->Refuse("attention.head_count_kv",
              absl::StrCat("of ", kv_heads.size(), " numbers for ", base.layers, " layers, or of zeros"));
  }
  return static_cast<uint64_t>(std::max<int64_t>(heads, 1));
}

json GgufDenseLayers(const GgufBaseConfig& base, const GgufKeyReader& q) {
  json layers = json::array();
  for (uint64_t i = 0; i < base.layers; ++i) {
    if (q.LayerHas(i, "ffn_up.weight") && !q.LayerHas(i, "ffn_gate_inp.weight")) layers.push_back(i);
  }
  return layers;
}

uint64_t GgufLeadingDenseLayers(const GgufBaseConfig& base, GgufKeyReader* q) {
  const json dense = GgufDenseLayers(base, *q);
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != i) q->Refuse("leading_dense_block_count", "with dense layers elsewhere");
  }
  return dense.size();
}

}  // namespace sluice
