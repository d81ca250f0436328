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
    for (const GgufModule& name : architecture_.model_modules) {
      if (tensor.name != name.gguf) continue;
      Change(name, tensor, name.hub);
      return true;
    }
    // In the first files of one family the last norm was stored beside the embedding, and it kept that name.
    for (const char* suffix : {".weight", ".bias"}) {
      if (tensor.name != absl::StrCat("output_norm", suffix) &&
          tensor.name != absl::StrCat("token_embd_norm", suffix)) {
        continue;
      }
      Add(absl::StrCat(architecture_.final_norm, suffix), tensor).undo = UndoOfNorm();
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
    // One family's correction of its router has no suffix.
    if (!is_bias && !absl::ConsumeSuffix(&rest, ".weight") && rest != "exp_probs_b") return false;
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
      Add(absl::StrCat(shares ? architecture_.mtp_parts : base, name.hub, ".weight"), tensor).undo =
          UndoOfNorm(absl::StrContains(rest, "norm"));
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
      Add(absl::StrCat(base, "post_attention_layernorm", suffix), tensor).undo = UndoOfNorm();
      return true;
    }
    if (module == "ssm_ba") return AddGates(tensor, base);
    for (const GgufModule& name : kLayerModules) {
      if (module != name.gguf) continue;
      const bool paired = architecture_.permuted && (module == "attn_q" || module == "attn_k");
      // Paired values of a bias lie along its line; no family with such rows has a bias.
      if (paired && tensor.dims.size() != 2) return false;
      GgufView& view = Add(absl::StrCat(base, name.hub, suffix), tensor);
      view.undo = UndoOfNorm(absl::EndsWith(module, "_norm"));
      if (paired && has_pairs() && LinesOf(tensor) % shape_.head_dim == 0) view.paired_head = shape_.head_dim;
      // Stacked heads are one matrix.
      if (view.shape.size() == 3) view.shape = {view.shape[0] * view.shape[1], view.shape[2]};
      return true;
    }
    return false;
  }

  static GgufUndo UndoOf(GgufTransform change) {
    switch (change) {
      case GgufTransform::kDecay:
      case GgufTransform::kDecayMatrix:
        return GgufUndo::kLogOfNegative;
      case GgufTransform::kExp:
        return GgufUndo::kLog;
      case GgufTransform::kPlusOne:
        return GgufUndo::kMinusOne;
      default:
        return GgufUndo::kNone;
    }
  }

  GgufUndo UndoOfNorm(bool is_norm = true) const {
    return architecture_.plus_one && is_norm ? GgufUndo::kMinusOne : GgufUndo::kNone;
  }

  // Adds the tensor under its hub name, with the converter's change to be undone.
  void Change(const GgufModule& module, const GgufTensorInfo& tensor, const std::string& name) {
    GgufView& view = Add(name, tensor);
    if (module.change == GgufTransform::kSqueezed && view.shape.size() == 2) {
      view.shape.insert(view.shape.begin() + 1, 1);
    }
    const bool flattened = module.change == GgufTransform::kUnsqueezed ||
                           module.change == GgufTransform::kDecay || module.change == GgufTransform::kExp;
    if (flattened && view.shape.size() == 2) view.shape = {view.shape[0] * view.shape[1]};
    // Stacked heads are one matrix.
    if (module.change == GgufTransform::kNone && view.shape.size() == 3) {
      view.shape = {view.shape[0] * view.shape[1], view.shape[2]};
    }
    view.undo = UndoOf(module.change);
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
      const std::string part = module.substr(4, module.size() - 10);
      Add(absl::StrCat(base, architecture_.shared,
                       architecture_.shared_as_experts ? PartName(part) : part + "_proj", suffix),
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
