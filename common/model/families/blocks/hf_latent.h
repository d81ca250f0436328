// Latent attention as DeepSeek's configs and checkpoints spell it, and those after them.
//
// Private to common/model. Thread safety: free functions; fields and mapper are used by one thread.
#pragma once

#include <cstdint>

#include "common/model/families/blocks/hf_fields.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/model_config.h"

namespace sluice {

// q_lora_rank (null: none), kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, rope; of a family
// with `temperature` also llama_4_scaling_beta.
struct LatentDefaults {
  uint32_t q_rank = 1536;
  uint32_t kv_rank = 512;
  uint32_t nope_dim = 128;
  uint32_t value_dim = 128;
  bool interleaved = true;
  bool temperature = false;
};
AttentionConfig ReadLatent(const LatentDefaults& defaults, const ModelConfig& model, HfFields* fields);

// self_attn.{q_a,q_b or q,kv_a,kv_b,o}_proj and the norms between them.
void MapLatent(LayerMapper* layer);

}  // namespace sluice
