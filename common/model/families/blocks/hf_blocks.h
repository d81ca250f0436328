// Config reading that the families share: base dimensions, grouped attention, position encoding, MoE blocks
// and the choice of dense layers. A family passes its defaults: those of transformers for absent members.
//
// Private to common/model. Thread safety: free functions; the HfFields is used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/families/blocks/hf_fields.h"
#include "common/model/model_config.h"

namespace sluice {

// Base dimensions: vocab_size, hidden_size, num_hidden_layers, max_position_embeddings, rms_norm_eps,
// tie_word_embeddings. Every layer starts as a default one.
struct BaseDefaults {
  uint32_t max_position = 0;
  double epsilon = 1e-6;
};
ModelConfig ReadBaseConfig(const std::string& family, const BaseDefaults& defaults, HfFields* fields);

// Position encoding: rope_theta and rope_scaling of older files, rope_parameters of newer ones; types
// default, linear, yarn, longrope and llama3 with the attention factors of transformers.
struct RopeDefaults {
  double theta = 10000.0;
  double partial = 1.0;         // partial_rotary_factor, if the family has one
  bool may_be_partial = false;  // otherwise the factor must be 1
  bool mscales = false;         // longrope: short_mscale and long_mscale are the attention factors
  bool temperature = false;     // llama_4_scaling_beta, if the family has it
  bool alpha = false;           // dynamic: alpha stretches theta once and for all
};
struct RopeFields {
  RopeConfig rope;
  double mscale_all_dim = 0;  // yarn; 0: absent
  double temperature = 0;     // llama_4_scaling_beta; 0: absent
};
RopeFields ReadRope(const RopeDefaults& defaults, uint32_t head_dim, uint32_t max_position, HfFields* fields);
// Returns yarn's attention factor for a context `scale` times as long.
double YarnMscale(double scale, double mscale);

// Grouped attention: num_attention_heads, num_key_value_heads (absent: `kv_heads`, or the heads if that is 0;
// null: the heads), head_dim (absent: `head_dim`, or hidden / heads if that is 0); rope; scale
// 1/sqrt(head_dim).
struct GroupedDefaults {
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  RopeDefaults rope;
};
AttentionConfig ReadGrouped(const GroupedDefaults& defaults, const ModelConfig& model, HfFields* fields);

// Reads hidden_act or the member `key`: silu, swish, gelu, gelu_new, gelu_pytorch_tanh.
Activation ReadActivation(HfFields* fields, const char* key = "hidden_act", const char* fallback = "silu");

// Reads the number of routed experts under the first of `keys` that is present, and num_experts_per_tok.
void ReadExperts(const std::vector<const char*>& keys, MoeConfig* moe, HfFields* fields);

// Returns the dense FFN of layers without experts.
MoeConfig DenseFfn(uint32_t width, Activation activation);

// Reads the MoE members that DeepSeek's and GLM-4's configs use: n_routed_experts, num_experts_per_tok,
// moe_intermediate_size, n_shared_experts (one FFN of that many expert widths), norm_topk_prob.
MoeConfig ReadDeepseekMixture(uint32_t shared, bool norm_topk_prob, HfFields* fields);
// Reads n_group and topk_group; one group counts as none.
void ReadGroups(uint32_t groups, uint32_t top_groups, MoeConfig* moe, HfFields* fields);
// Sets the layers below first_k_dense_replace, and those that moe_layer_freq leaves out, to dense FFNs of
// intermediate_size neurons, the other layers to `moe`.
void SetDeepseekFfns(uint32_t first_dense, const MoeConfig& moe, ModelConfig* model, HfFields* fields);

// Reads time_step_limit if it is present.
void ReadTimeSteps(MambaConfig* mamba, HfFields* fields);

// Applies Qwen's rule: layers of mlp_only_layers, and all but every decoder_sparse_step-th layer, are dense
// FFNs of intermediate_size neurons; the others are `moe`.
void SetQwenFfns(const MoeConfig& moe, ModelConfig* model, HfFields* fields);

// Reads layer_types or the member `key`: one of `words` for each layer. Empty if the member is absent; the
// error is kept in `fields`.
std::vector<std::string> ReadLayerTypes(const std::vector<std::string>& words, size_t layers,
                                        HfFields* fields, const char* key = "layer_types");

}  // namespace sluice
