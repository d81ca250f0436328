#include "tests/support/gguf_of_folder.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "tests/common/model/gguf/gguf_builder.h"
#include "tests/support/tensor_file.h"

namespace sluice {
namespace {

constexpr uint32_t kGgufTypeF32 = 0;
constexpr uint32_t kGgufTypeBf16 = 30;

using Names = std::vector<std::pair<const char*, const char*>>;

// The hub's module and the file's, behind the number of the layer.
const Names& ModuleNames() {
  static const auto* const names = new Names{{"input_layernorm", "attn_norm"},
                                             {"self_attn.q_proj", "attn_q"},
                                             {"self_attn.k_proj", "attn_k"},
                                             {"self_attn.v_proj", "attn_v"},
                                             {"self_attn.o_proj", "attn_output"},
                                             {"self_attn.q_norm", "attn_q_norm"},
                                             {"self_attn.k_norm", "attn_k_norm"},
                                             {"self_attn.q_a_proj", "attn_q_a"},
                                             {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                                             {"self_attn.q_b_proj", "attn_q_b"},
                                             {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                             {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                                             {"self_attn.kv_b_proj", "attn_kv_b"},
                                             {"linear_attn.in_proj_qkvz", "ssm_in"},
                                             {"linear_attn.in_proj_ba", "ssm_ba"},
                                             {"linear_attn.conv1d", "ssm_conv1d"},
                                             {"linear_attn.norm", "ssm_norm"},
                                             {"linear_attn.out_proj", "ssm_out"},
                                             {"mlp.gate", "ffn_gate_inp"},
                                             {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                                             {"linear_attn.A_log", "ssm_a"},
                                             {"linear_attn.dt_bias", "ssm_dt.bias"},
                                             {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                                             {"eh_proj", "nextn.eh_proj"},
                                             {"enorm", "nextn.enorm"},
                                             {"hnorm", "nextn.hnorm"},
                                             {"embed_tokens", "nextn.embed_tokens"},
                                             {"shared_head.head", "nextn.shared_head_head"},
                                             {"shared_head.norm", "nextn.shared_head_norm"}};
  return *names;
}

class GgufConverter {
 public:
  GgufConverter(nlohmann::json config, TensorFile file) : config_(std::move(config)), file_(std::move(file)) {
    model_layers_ = config_["num_hidden_layers"];
    const std::string type = config_["model_type"];
    architecture_ = type == "deepseek_v3" ? "deepseek2" : type == "glm4_moe" ? "glm4moe" : "qwen3next";
    qwen_ = architecture_ == "qwen3next";
  }

  std::string Convert() {
    for (const auto& [name, info] : file_.header().items()) {
      if (name != "__metadata__") AddTensor(name);
    }
    for (const auto& [name, parts] : stacks_) {
      const auto& shape = file_.header()[parts.begin()->second]["shape"];
      std::string data;
      for (const auto& [expert, tensor] : parts) data += file_.Bytes(tensor);
      builder_.Tensor(name, {shape[1], shape[0], parts.size()}, kGgufTypeBf16, data);
    }
    AddKeys();
    return builder_.File();
  }

 private:
  void U32(const char* key, uint64_t value) {
    builder_.U32(absl::StrCat(architecture_, ".", key), static_cast<uint32_t>(value));
  }
  void IntOf(const char* key, const char* member) {
    if (config_.contains(member) && config_[member].is_number()) U32(key, config_[member]);
  }
  void RealOf(const char* key, const nlohmann::json& value) {
    if (value.is_number()) builder_.F32(absl::StrCat(architecture_, ".", key), value.get<float>());
  }

  void AddKeys() {
    builder_.Word("general.architecture", architecture_);
    U32("block_count", model_layers_ + mtp_layers_);
    U32("nextn_predict_layers", mtp_layers_);
    for (const auto& [key, member] :
         Names{{"context_length", "max_position_embeddings"},
               {"embedding_length", "hidden_size"},
               {"feed_forward_length", "intermediate_size"},
               {"attention.head_count", "num_attention_heads"},
               {"attention.head_count_kv", "num_key_value_heads"},
               {"expert_count", qwen_ ? "num_experts" : "n_routed_experts"},
               {"expert_used_count", "num_experts_per_tok"},
               {"expert_feed_forward_length", "moe_intermediate_size"},
               {"expert_shared_count", "n_shared_experts"},
               {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
               {"expert_group_count", "n_group"},
               {"expert_group_used_count", "topk_group"},
               {"attention.kv_lora_rank", "kv_lora_rank"},
               {"attention.q_lora_rank", "q_lora_rank"},
               {"ssm.conv_kernel", "linear_conv_kernel_dim"},
               {"ssm.state_size", "linear_key_head_dim"},
               {"ssm.group_count", "linear_num_key_heads"},
               {"ssm.time_step_rank", "linear_num_value_heads"}}) {
      IntOf(key, member);
    }
    RealOf("attention.layer_norm_rms_epsilon", config_["rms_norm_eps"]);
    const nlohmann::json rope = config_.value("rope_parameters", config_);
    RealOf("rope.freq_base", rope["rope_theta"]);
    if (!qwen_) {
      RealOf("expert_weights_scale", config_["routed_scaling_factor"]);
      U32("expert_gating_func", 2);
      U32("expert_weights_norm", config_["norm_topk_prob"].get<bool>() ? 1 : 0);
    } else {
      U32("ssm.inner_size", config_["linear_num_value_heads"].get<uint64_t>() *
                                config_["linear_value_head_dim"].get<uint64_t>());
    }
    if (architecture_ == "deepseek2") {
      U32("attention.key_length", config_["qk_head_dim"]);
      U32("attention.value_length", config_["v_head_dim"]);
      U32("rope.dimension_count", config_["qk_rope_head_dim"]);
      return;
    }
    const uint64_t head = config_["head_dim"];
    U32("attention.key_length", head);
    U32("attention.value_length", head);
    U32("rope.dimension_count",
        static_cast<uint64_t>(static_cast<double>(head) * rope.value("partial_rotary_factor", 1.0)));
  }

  // Renames an MTP tensor of Qwen as the converter does, before anything else.
  std::string InLayers(const std::string& name) const {
    const std::string base = absl::StrCat("model.layers.", model_layers_, ".");
    constexpr absl::string_view kLayer = "mtp.layers.0.";
    if (absl::StartsWith(name, kLayer)) return base + name.substr(kLayer.size());
    for (const auto& [from, to] : Names{{"mtp.fc.", "eh_proj."},
                                        {"mtp.pre_fc_norm_embedding.", "enorm."},
                                        {"mtp.pre_fc_norm_hidden.", "hnorm."},
                                        {"mtp.norm.", "shared_head.norm."}}) {
      if (absl::StartsWith(name, from)) return absl::StrCat(base, to, name.substr(std::string(from).size()));
    }
    return name;
  }

  void AddTensor(const std::string& hub) {
    const std::string name = InLayers(hub);
    if (name == "lm_head.weight") return Put("output.weight", hub);
    if (name == "model.embed_tokens.weight") return Put("token_embd.weight", hub);
    if (name == "model.norm.weight") return Put("output_norm.weight", hub);
    const std::vector<std::string> words = absl::StrSplit(name, absl::MaxSplits('.', 3));
    uint64_t layer = 0;
    if (words.size() < 4 || !absl::SimpleAtoi(words[2], &layer)) return;
    mtp_layers_ = std::max<uint64_t>(mtp_layers_, layer < model_layers_ ? 0 : layer + 1 - model_layers_);
    const std::string base = absl::StrCat("blk.", layer, ".");
    if (absl::StrContains(words[3], ".experts.")) {
      const std::vector<std::string> parts = absl::StrSplit(words[3], '.');  // mlp experts N part weight
      const std::string part = parts[3].substr(0, parts[3].size() - 5);      // without _proj
      stacks_[absl::StrCat(base, "ffn_", part, "_exps.weight")][std::stoul(parts[2])] = hub;
      return;
    }
    Put(base + OfLayer(words[3]), hub);
  }

  std::string OfLayer(const std::string& name) const {
    for (const auto& [module, gguf] : ModuleNames()) {
      if (name == module) return gguf;
      for (const char* suffix : {".weight", ".bias"}) {
        if (name == absl::StrCat(module, suffix)) return absl::StrCat(gguf, suffix);
      }
    }
    if (name == "post_attention_layernorm.weight") {
      return architecture_ == "deepseek2" ? "ffn_norm.weight" : "post_attention_norm.weight";
    }
    const std::vector<std::string> words = absl::StrSplit(name, '.');  // mlp [shared_expert[s]] part weight
    const std::string part = words[words.size() - 2];
    return absl::StrCat("ffn_", part.substr(0, part.size() - 5), words.size() > 3 ? "_shexp" : "", ".weight");
  }

  std::vector<float> FloatsOf(const std::string& hub) const {
    if (file_.header()[hub]["dtype"] == "F32") return file_.Values<float>(hub);
    std::vector<float> values;
    for (const uint16_t bits : file_.Values<uint16_t>(hub)) {
      const uint32_t wide = uint32_t{bits} << 16;
      std::memcpy(&values.emplace_back(), &wide, sizeof(wide));
    }
    return values;
  }

  // Matrices keep their type; vectors and convolutions become float32.
  void Put(const std::string& gguf, const std::string& hub) {
    std::vector<uint64_t> shape = file_.header()[hub]["shape"];
    const bool conv = absl::StrContains(hub, "conv1d");
    if (conv) shape.erase(shape.begin() + 1);
    if (absl::StrContains(hub, "shared_expert_gate")) shape.erase(shape.begin());
    const std::vector<uint64_t> dims(shape.rbegin(), shape.rend());
    if (dims.size() == 2 && !conv) {
      const bool wide = file_.header()[hub]["dtype"] == "F32";
      builder_.Tensor(gguf, dims, wide ? kGgufTypeF32 : kGgufTypeBf16, std::string(file_.Bytes(hub)));
      return;
    }
    std::string data;
    const bool norm = qwen_ && absl::StrContains(hub, "norm") && !absl::StrContains(hub, "linear_attn.norm");
    for (float value : FloatsOf(hub)) {
      value = norm ? value + 1 : absl::StrContains(hub, "A_log") ? -std::exp(value) : value;
      data += GgufBuilder::Bytes(value);
    }
    builder_.Tensor(gguf, dims, kGgufTypeF32, data);
  }

  nlohmann::json config_;
  const TensorFile file_;
  std::string architecture_;
  bool qwen_ = false;
  uint64_t model_layers_ = 0;
  uint64_t mtp_layers_ = 0;
  std::map<std::string, std::map<size_t, std::string>> stacks_;  // the experts' tensors by their stack's name
  GgufBuilder builder_;
};

}  // namespace

absl::Status WriteGgufOfFolder(const std::string& folder, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string config, ReadFile(absl::StrCat(folder, "/config.json"), 1 << 20));
  GgufConverter converter(nlohmann::json::parse(config),
                          TensorFile(absl::StrCat(folder, "/model.safetensors")));
  return WriteFileDurably(path, converter.Convert());
}

}  // namespace sluice
