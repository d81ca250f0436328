#include "common/model/gguf_views.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/model/model_limits.h"

namespace sluice {
namespace {

constexpr char kMixtralExperts[] = "block_sparse_moe.experts.";
constexpr char kMixtralGate[] = "block_sparse_moe.gate";

constexpr GgufModule kHunyuanModules[] = {{"attn_q_norm", "self_attn.query_layernorm"},
                                          {"attn_k_norm", "self_attn.key_layernorm"}};
constexpr GgufModule kAfmoeModules[] = {{"attn_gate", "self_attn.gate_proj"},
                                        {"post_attention_norm", "post_attention_layernorm"},
                                        {"ffn_norm", "pre_mlp_layernorm"},
                                        {"post_ffw_norm", "post_mlp_layernorm"}};
constexpr GgufModule kLfm2Modules[] = {{"attn_norm", "operator_norm"},
                                       {"ffn_norm", "ffn_norm"},
                                       {"attn_q_norm", "self_attn.q_layernorm"},
                                       {"attn_k_norm", "self_attn.k_layernorm"},
                                       {"attn_output", "self_attn.out_proj"},
                                       {"shortconv.in_proj", "conv.in_proj"},
                                       {"shortconv.conv", "conv.conv", GgufTransform::kSqueezed},
                                       {"shortconv.out_proj", "conv.out_proj"}};

// Tensors of linear attention. Qwen3.5 stores its value heads and both of its gates separately; Qwen3-Next's
// files have either the hub's fused projection, as the first ones did, or separate q, k and v and z.
constexpr GgufModule kQwenLinearModules[] = {{"ssm_in", "linear_attn.in_proj_qkvz"},
                                             {"attn_qkv", "linear_attn.in_proj_qkv"},
                                             {"attn_gate", "linear_attn.in_proj_z"},
                                             {"ssm_beta", "linear_attn.in_proj_b"},
                                             {"ssm_alpha", "linear_attn.in_proj_a"},
                                             {"ssm_conv1d", "linear_attn.conv1d", GgufTransform::kSqueezed},
                                             {"ssm_norm", "linear_attn.norm"},
                                             {"ssm_out", "linear_attn.out_proj"},
                                             {"ssm_a", "linear_attn.A_log", GgufTransform::kDecay},
                                             {"ssm_dt.bias", "linear_attn.dt_bias"}};
constexpr GgufModule kGraniteHybridModules[] = {{"ssm_in", "mamba.in_proj"},
                                                {"ssm_conv1d", "mamba.conv1d", GgufTransform::kSqueezed},
                                                {"ssm_norm", "mamba.norm", GgufTransform::kUnsqueezed},
                                                {"ssm_out", "mamba.out_proj"},
                                                {"ssm_a", "mamba.A_log", GgufTransform::kDecay},
                                                {"ssm_d", "mamba.D", GgufTransform::kUnsqueezed},
                                                {"ssm_dt.bias", "mamba.dt_bias"}};
constexpr GgufModule kNemotronModules[] = {{"attn_norm", "norm"},
                                           {"attn_q", "mixer.q_proj"},
                                           {"attn_k", "mixer.k_proj"},
                                           {"attn_v", "mixer.v_proj"},
                                           {"attn_output", "mixer.o_proj"},
                                           {"ssm_in", "mixer.in_proj"},
                                           {"ssm_conv1d", "mixer.conv1d", GgufTransform::kSqueezed},
                                           {"ssm_norm", "mixer.norm", GgufTransform::kUnsqueezed},
                                           {"ssm_out", "mixer.out_proj"},
                                           {"ssm_a", "mixer.A_log", GgufTransform::kDecay},
                                           {"ssm_d", "mixer.D", GgufTransform::kUnsqueezed},
                                           {"ssm_dt.bias", "mixer.dt_bias"}};
constexpr GgufModule kGemma4Modules[] = {{"post_attention_norm", "post_attention_layernorm"},
                                         {"ffn_norm", "pre_feedforward_layernorm"},
                                         {"post_ffw_norm", "post_feedforward_layernorm"},
                                         {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                         {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                         {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                                         {"ffn_gate_inp.scale", "router.scale"},
                                         {"ffn_down_exps.scale", "router.per_expert_scale"},
                                         {"layer_output_scale.weight", "layer_scalar"}};

// The names are those of llama.cpp's converter, which keeps the projection in one piece.
constexpr GgufModule kMtpModules[] = {{"nextn.eh_proj", "eh_proj"},
                                      {"nextn.enorm", "enorm"},
                                      {"nextn.hnorm", "hnorm"},
                                      {"nextn.embed_tokens", "embed_tokens"},
                                      {"nextn.shared_head_head", "shared_head.head"},
                                      {"nextn.shared_head_norm", "shared_head.norm"}};
constexpr GgufModule kQwenMtpModules[] = {{"nextn.eh_proj", "fc"},
                                          {"nextn.enorm", "pre_fc_norm_embedding"},
                                          {"nextn.hnorm", "pre_fc_norm_hidden"},
                                          {"nextn.embed_tokens", "embed_tokens"},
                                          {"nextn.shared_head_head", "shared_head.head"},
                                          {"nextn.shared_head_norm", "norm"}};

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .router = kMixtralGate,
     .experts = kMixtralExperts,
     .gate = "w1",
     .up = "w3",
     .down = "w2",
     .permuted = true},
    {.name = "qwen2moe"},
    {.name = "qwen3moe"},
    {.name = "qwen3vlmoe"},
    {.name = "olmoe"},
    {.name = "granitemoe", .router = "block_sparse_moe.router", .experts = kMixtralExperts, .permuted = true},
    {.name = "phimoe",
     .router = kMixtralGate,
     .experts = kMixtralExperts,
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "glm4moe",
     .correction = "mlp.gate.e_score_correction_bias",
     .shared = "mlp.shared_experts.",
     .mtp_modules = kMtpModules,
     .norm_after_attention = true},
    {.name = "deepseek", .shared = "mlp.shared_experts.", .permuted = true},
    {.name = "deepseek2",
     .correction = "mlp.gate.e_score_correction_bias",
     .shared = "mlp.shared_experts.",
     .mtp_modules = kMtpModules},
    {.name = "gpt-oss", .router = "mlp.router", .norm_after_attention = true},
    {.name = "llama4",
     .mlp = "feed_forward.",
     .router = "feed_forward.router",
     .experts = "feed_forward.experts.",
     .shared = "feed_forward.shared_expert."},
    {.name = "minimax-m2",
     .router = kMixtralGate,
     .correction = "block_sparse_moe.e_score_correction_bias",
     .experts = kMixtralExperts,
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "dots1", .correction = "mlp.gate.e_score_correction_bias", .shared = "mlp.shared_experts."},
    {.name = "ernie4_5-moe",
     .correction = "mlp.moe_statics.e_score_correction_bias",
     .shared = "mlp.shared_experts.",
     .correction_is_row = true},
    {.name = "hunyuan-moe", .router = "mlp.gate.wg", .shared = "mlp.shared_mlp.", .modules = kHunyuanModules},
    {.name = "afmoe",
     .router = "mlp.router.gate",
     .correction = "mlp.expert_bias",
     .shared = "mlp.shared_experts.",
     .modules = kAfmoeModules},
    {.name = "mistral4", .shared = "mlp.shared_experts."},
    {.name = "lfm2moe",
     .mlp = "feed_forward.",
     .router = "feed_forward.gate",
     .correction = "feed_forward.expert_bias",
     .experts = "feed_forward.experts.",
     .gate = "w1",
     .up = "w3",
     .down = "w2",
     .modules = kLfm2Modules,
     .final_norm = "model.embedding_norm",
     .dense_as_experts = true},
    {.name = "qwen3next",
     .modules = kQwenLinearModules,
     .mtp_modules = kQwenMtpModules,
     .mtp_layers = "mtp.layers.",
     .mtp_parts = "mtp.",
     .plus_one = true,
     .norm_after_attention = true},
    {.name = "qwen35moe",
     .modules = kQwenLinearModules,
     .mtp_modules = kQwenMtpModules,
     .mtp_layers = "mtp.layers.",
     .mtp_parts = "mtp.",
     .plus_one = true,
     .tiled_values = true,
     .norm_after_attention = true},
    {.name = "granitehybrid",
     .mlp = "shared_mlp.",
     .router = "block_sparse_moe.router",
     .experts = kMixtralExperts,
     .shared = "shared_mlp.",
     .modules = kGraniteHybridModules,
     .permuted = true},
    // The converter permuted q and k alike, and without rope the scores are the same.
    {.name = "nemotron_h_moe",
     .layers = "backbone.layers.",
     .embed = "backbone.embeddings.weight",
     .mlp = "mixer.",
     .router = "mixer.gate",
     .correction = "mixer.gate.e_score_correction_bias",
     .experts = "mixer.experts.",
     .shared = "mixer.shared_experts.",
     .modules = kNemotronModules,
     .final_norm = "backbone.norm_f"},
    {.name = "gemma4", .router = "router.proj", .experts = "experts.", .modules = kGemma4Modules},
};

}  // namespace

const GgufArchitecture* FindGgufArchitecture(std::string_view name) {
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (name == architecture.name) return &architecture;
  }
  return nullptr;
}

std::string GgufArchitectureNames() {
  std::string names;
  for (const GgufArchitecture& architecture : kArchitectures) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", architecture.name);
  }
  return names;
}

namespace {

// Tensors of the whole model.
constexpr GgufModule kModelNames[] = {
    {"output.weight", "lm_head.weight"},
    {"output.bias", "lm_head.bias"},
};

// Tensors of rotary positions; they belong to the config.
constexpr const char* kConfigTensors[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                          "rope_factors_short.weight"};

// Modules of a layer; the same for weight and bias.
constexpr GgufModule kLayerModules[] = {
    {"attn_norm", "input_layernorm"},     {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},       {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},  {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},  {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_b", "self_attn.q_b_proj"},   {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"}, {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_k_b", "self_attn.k_b_proj"},   {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_v_b", "self_attn.v_b_proj"},
};

std::vector<uint64_t> HubShape(const GgufTensorInfo& tensor) {
  std::vector<uint64_t> shape(tensor.dims.rbegin(), tensor.dims.rend());
  return shape;
}

uint64_t LinesOf(const GgufTensorInfo& tensor) {
  uint64_t lines = 1;
  for (size_t i = 1; i < tensor.dims.size(); ++i) lines *= tensor.dims[i];
  return lines;
}

class ViewMaker {
 public:
  ViewMaker(const GgufFiles& files, const GgufArchitecture& architecture, const GgufShape& shape,
            bool mtp_layers)
      : files_(files),
        architecture_(architecture),
        shape_(shape),
        mtp_layers_(mtp_layers && !architecture.mtp_modules.empty()) {}

  std::vector<GgufView> Make() {
    for (const GgufTensorInfo& tensor : files_.tensors()) {
      if (IsConfigTensor(tensor.name) || IsFactor(tensor.name)) continue;
      if (AddOfModel(tensor) || AddOfLayer(tensor)) continue;
      Add(tensor.name, tensor);
    }
    return std::move(views_);
  }

 private:
  static bool IsConfigTensor(const std::string& name) {
    return std::find(std::begin(kConfigTensors), std::end(kConfigTensors), name) != std::end(kConfigTensors);
  }

  // True for the factors of another tensor's values, which its views name, and for those of activations,
  // which are not rounded by them here.
  bool IsFactor(absl::string_view name) const {
    const bool of_activations = absl::ConsumeSuffix(&name, ".input_scale");
    if (!of_activations && !absl::ConsumeSuffix(&name, ".scale")) return false;
    absl::ConsumeSuffix(&name, ".weight");
    const GgufTensorInfo* const weight = files_.Find(absl::StrCat(std::string(name), ".weight"));
    if (weight == nullptr) return false;
    return of_activations || (weight->format->id == kGgufNvfp4 && FactorsOf(*weight) != nullptr);
  }

  // Finds the factors of an NVFP4 tensor; null if there are none.
  const GgufTensorInfo* FactorsOf(const GgufTensorInfo& weight) const {
    if (weight.format->id != kGgufNvfp4) return nullptr;
    const std::string base(absl::StripSuffix(weight.name, ".weight"));
    const std::string name = base + ".scale";
    // A family that has such a tensor anyway multiplies with it itself.
    for (const GgufModule& module : architecture_.modules) {
      if (absl::EndsWith(name, absl::StrCat(".", module.gguf))) return nullptr;
    }
    const GgufTensorInfo* const factors = files_.Find(name);
    return factors != nullptr ? factors : files_.Find(base + ".weight.scale");
  }

  bool has_pairs() const { return shape_.head_dim >= 2 && shape_.head_dim % 2 == 0; }

  GgufView& Add(const std::string& name, const GgufTensorInfo& tensor) {
    return views_.emplace_back(
        GgufView{.name = name, .shape = HubShape(tensor), .source = &tensor, .factors = FactorsOf(tensor)});
  }

  // Adds `count` lines of the tensor as a matrix.
  void AddLines(const std::string& name, const GgufTensorInfo& tensor, uint64_t first, uint64_t count) {
    GgufView& view = Add(name, tensor);
    view.shape = {count, tensor.dims[0]};
    view.first_line = first;
  }

  bool AddOfModel(const GgufTensorInfo& tensor) {
    // In the first files of one family the last norm was stored beside the embedding, and it kept that name.
    for (const char* suffix : {".weight", ".bias"}) {
      if (tensor.name != absl::StrCat("output_norm", suffix) &&
          tensor.name != absl::StrCat("token_embd_norm", suffix)) {
        continue;
      }
      Add(absl::StrCat(architecture_.final_norm, suffix), tensor).minus_one = architecture_.plus_one;
      return true;
    }
    if (tensor.name == "token_embd.weight") {
      Add(architecture_.embed, tensor);
      return true;
    }
    for (const GgufModule& name : kModelNames) {
      if (tensor.name != name.gguf) continue;
      Add(name.hub, tensor);
      return true;
    }
    return false;
  }

  bool AddOfLayer(const GgufTensorInfo& tensor) {
    absl::string_view rest = tensor.name;
    if (!absl::ConsumePrefix(&rest, "blk.")) return false;
    const size_t dot = rest.find('.');
    uint32_t layer = 0;
    if (dot == rest.npos || !absl::SimpleAtoi(rest.substr(0, dot), &layer)) return false;
    if (layer >= shape_.blocks) return false;
    if (layer >= shape_.layers && !mtp_layers_) return true;
    rest.remove_prefix(dot + 1);
    const std::string base = BaseOf(layer);
    if (layer >= shape_.layers && absl::StartsWith(rest, "nextn.")) {
      AddMtp(tensor, rest, layer, base);
      return true;
    }
    for (const GgufModule& name : architecture_.modules) {
      if (rest != name.gguf) continue;
      Change(name, tensor, base + name.hub);
      return true;
    }
    const bool is_bias = absl::ConsumeSuffix(&rest, ".bias");
    if (!is_bias && !absl::ConsumeSuffix(&rest, ".weight")) return false;
    const std::string module(rest);
    const std::string suffix = is_bias ? ".bias" : ".weight";
    return AddModule(tensor, module, base, suffix) || AddAttention(tensor, module, base, suffix) ||
           AddExperts(tensor, module, base, is_bias) || AddMixture(tensor, module, base, suffix);
  }

  // Returns the start of the hub's names of a layer.
  std::string BaseOf(uint32_t layer) const {
    if (layer < shape_.layers || architecture_.mtp_layers == nullptr) {
      return absl::StrCat(architecture_.layers, layer, ".");
    }
    return absl::StrCat(architecture_.mtp_layers, layer - shape_.layers, ".");
  }

  // Adds what an MTP layer has beside its decoder layer; `rest`: the name behind the layer's number. Parts of
  // all layers are those of the first. An unknown tensor is refused later, with the layer.
  void AddMtp(const GgufTensorInfo& tensor, absl::string_view rest, uint32_t layer, const std::string& base) {
    const std::string whole(rest);
    absl::ConsumeSuffix(&rest, ".weight");
    const bool shares = architecture_.mtp_parts != nullptr;
    if (shares && layer > shape_.layers) return;
    for (const GgufModule& name : architecture_.mtp_modules) {
      if (rest != name.gguf) continue;
      Add(absl::StrCat(shares ? architecture_.mtp_parts : base, name.hub, ".weight"), tensor).minus_one =
          architecture_.plus_one && absl::StrContains(rest, "norm");
      return;
    }
    Add(base + whole, tensor);
  }

  bool AddModule(const GgufTensorInfo& tensor, const std::string& module, const std::string& base,
                 const std::string& suffix) {
    for (const GgufModule& name : architecture_.modules) {
      if (module != name.gguf) continue;
      Change(name, tensor, absl::StrCat(base, name.hub, suffix));
      return true;
    }
    if (module == (architecture_.norm_after_attention ? "post_attention_norm" : "ffn_norm")) {
      Add(absl::StrCat(base, "post_attention_layernorm", suffix), tensor).minus_one = architecture_.plus_one;
      return true;
    }
    if (module == "ssm_ba") return AddGates(tensor, base);
    for (const GgufModule& name : kLayerModules) {
      if (module != name.gguf) continue;
      const bool paired = architecture_.permuted && (module == "attn_q" || module == "attn_k");
      // Paired values of a bias lie along its line; no family with such rows has a bias.
      if (paired && tensor.dims.size() != 2) return false;
      GgufView& view = Add(absl::StrCat(base, name.hub, suffix), tensor);
      view.minus_one = architecture_.plus_one && absl::EndsWith(module, "_norm");
      if (paired && has_pairs() && LinesOf(tensor) % shape_.head_dim == 0) view.paired_head = shape_.head_dim;
      // Stacked heads are one matrix.
      if (view.shape.size() == 3) view.shape = {view.shape[0] * view.shape[1], view.shape[2]};
      return true;
    }
    return false;
  }

  // Adds the tensor under its hub name, with the converter's change to be undone.
  void Change(const GgufModule& module, const GgufTensorInfo& tensor, const std::string& name) {
    GgufView& view = Add(name, tensor);
    if (module.change == GgufTransform::kSqueezed && view.shape.size() == 2) {
      view.shape.insert(view.shape.begin() + 1, 1);
    }
    if (module.change >= GgufTransform::kUnsqueezed && view.shape.size() == 2) {
      view.shape = {view.shape[0] * view.shape[1]};
    }
    view.is_decay = module.change == GgufTransform::kDecay;
    if (architecture_.tiled_values) view.tiles = TilesOf(module.gguf, view.shape);
  }

  // Returns the tile layout of the value heads in a tensor of linear attention.
  GgufHeadTiles TilesOf(absl::string_view module, const std::vector<uint64_t>& shape) const {
    const uint32_t heads = shape_.linear_keys * shape_.linear_sharers;
    GgufHeadTiles tiles{.keys = shape_.linear_keys, .sharers = shape_.linear_sharers};
    const uint64_t values = uint64_t{heads} * shape_.linear_values;
    uint64_t size = shape[0];
    if (module == "attn_qkv" || module == "ssm_conv1d") {
      tiles.length = shape_.linear_values;
      tiles.first = size < values ? 0 : size - values;  // after q and k
    } else if (module == "attn_gate" || module == "ssm_out") {
      tiles.length = shape_.linear_values;
      tiles.columns = module == "ssm_out";
      if (tiles.columns) size = shape.back();
    } else if (module == "ssm_beta" || module == "ssm_alpha") {
      tiles.length = 1;
    } else if (module == "ssm_a" || module == "ssm_dt.bias") {
      tiles.length = 1;
      tiles.columns = true;
    } else {
      return {};
    }
    // Tensors of another shape are refused later, by the family's map.
    return size == tiles.first + uint64_t{heads} * tiles.length ? tiles : GgufHeadTiles();
  }

  // Qwen3-Next's gates: each key head has its lines of beta, then those of decay. In files with fused
  // projections they are the hub's own tensor.
  bool AddGates(const GgufTensorInfo& tensor, const std::string& base) {
    const std::string fused = absl::StrReplaceAll(tensor.name, {{"ssm_ba", "ssm_in"}});
    if (files_.Find(fused) != nullptr) {
      Add(base + "linear_attn.in_proj_ba.weight", tensor);
      return true;
    }
    const uint64_t lines = uint64_t{shape_.linear_keys} * shape_.linear_sharers;
    if (lines == 0 || tensor.dims.size() != 2 || tensor.dims[1] != 2 * lines) return false;
    for (uint32_t i = 0; i < 2; ++i) {
      AddLines(absl::StrCat(base, "linear_attn.in_proj_", i == 0 ? "b" : "a", ".weight"), tensor,
               i * shape_.linear_sharers, lines);
      views_.back().run = shape_.linear_sharers;
    }
    return true;
  }

  bool AddAttention(const GgufTensorInfo& tensor, const std::string& module, const std::string& base,
                    const std::string& suffix) {
    if (module == "attn_sinks") {
      Add(base + "self_attn.sinks", tensor);
      return true;
    }
    if (module != "attn_qkv") return false;
    const uint64_t rows[] = {shape_.q_rows, shape_.kv_rows, shape_.kv_rows};
    const bool is_bias = tensor.dims.size() == 1;
    if ((is_bias && architecture_.permuted) || tensor.dims.size() > 2 ||
        tensor.dims.back() != rows[0] + 2 * rows[1]) {
      return false;
    }
    uint64_t first = 0;
    for (int i = 0; i < 3; ++i) {
      GgufView& view = Add(absl::StrCat(base, "self_attn.",
                                        i == 0   ? "q"
                                        : i == 1 ? "k"
                                                 : "v",
                                        "_proj", suffix),
                           tensor);
      view.shape[0] = rows[i];
      (is_bias ? view.first_column : view.first_line) = first;
      if (architecture_.permuted && has_pairs() && i < 2) view.paired_head = shape_.head_dim;
      first += rows[i];
    }
    return true;
  }

  const char* PartName(absl::string_view part) const {
    return part == "gate" ? architecture_.gate : part == "up" ? architecture_.up : architecture_.down;
  }

  // Adds ffn_{gate,up,down,gate_up}_exps of all experts, or ffn_{gate,up,down}.E of one.
  bool AddExperts(const GgufTensorInfo& tensor, const std::string& module, const std::string& base,
                  bool is_bias) {
    absl::string_view part = module;
    if (!absl::ConsumePrefix(&part, "ffn_")) return false;
    const std::string experts = base + architecture_.experts;
    if (!absl::ConsumeSuffix(&part, "_exps")) {
      const size_t dot = part.find('.');
      uint32_t expert = 0;
      if (is_bias || dot == part.npos || !absl::SimpleAtoi(part.substr(dot + 1), &expert)) return false;
      const absl::string_view name = part.substr(0, dot);
      if (name != "gate" && name != "up" && name != "down") return false;
      Add(absl::StrCat(experts, expert, ".", PartName(name), ".weight"), tensor);
      return true;
    }
    if (is_bias) {
      Add(absl::StrCat(experts, std::string(part), "_proj_bias"), tensor);
      return true;
    }
    // One expert's stack has no third dimension (GgufTensorInfo::dims).
    const uint64_t count = tensor.dims.size() == 3 ? tensor.dims[2] : 1;
    if (tensor.dims.size() < 2 || tensor.dims.size() > 3 || count > kMaxExperts) return false;
    const uint64_t lines = tensor.dims[1];
    const bool both = part == "gate_up";
    for (uint64_t e = 0; e < count; ++e) {
      const size_t first_view = views_.size();
      const std::string expert = absl::StrCat(experts, e, ".");
      if (both) {
        AddLines(absl::StrCat(expert, architecture_.gate, ".weight"), tensor, e * lines, lines / 2);
        AddLines(absl::StrCat(expert, architecture_.up, ".weight"), tensor, e * lines + lines / 2, lines / 2);
      } else {
        AddLines(absl::StrCat(expert, PartName(part), ".weight"), tensor, e * lines, lines);
      }
      for (size_t i = first_view; i < views_.size(); ++i) views_[i].expert = static_cast<uint32_t>(e);
    }
    return true;
  }

  // Adds router, shared and dense FFNs.
  bool AddMixture(const GgufTensorInfo& tensor, const std::string& module, const std::string& base,
                  const std::string& suffix) {
    if (module == "ffn_gate_inp") {
      Add(absl::StrCat(base, architecture_.router, suffix), tensor);
    } else if (module == "exp_probs_b" && architecture_.correction[0] != '\0') {
      GgufView& view = Add(base + architecture_.correction, tensor);
      if (architecture_.correction_is_row && view.shape.size() == 1) view.shape.insert(view.shape.begin(), 1);
    } else if (module == "ffn_gate_inp_shexp" && tensor.dims.size() == 1) {
      Add(absl::StrCat(base, "mlp.shared_expert_gate.weight"), tensor).shape = {1, tensor.dims[0]};
    } else if (module == "ffn_gate_shexp" || module == "ffn_up_shexp" || module == "ffn_down_shexp") {
      Add(absl::StrCat(base, architecture_.shared, module.substr(4, module.size() - 10), "_proj", suffix),
          tensor);
    } else if (module == "ffn_gate" || module == "ffn_up" || module == "ffn_down") {
      const std::string part = module.substr(4);
      Add(absl::StrCat(base, architecture_.mlp,
                       architecture_.dense_as_experts ? PartName(part) : part + "_proj", suffix),
          tensor);
    } else {
      return false;
    }
    return true;
  }

  const GgufFiles& files_;
  const GgufArchitecture& architecture_;
  const GgufShape& shape_;
  const bool mtp_layers_;
  std::vector<GgufView> views_;
};

}  // namespace

std::vector<GgufView> GgufViews(const GgufFiles& files, const GgufArchitecture& architecture,
                                const GgufShape& shape, bool mtp_layers) {
  return ViewMaker(files, architecture, shape, mtp_layers).Make();
}

}  // namespace sluice
