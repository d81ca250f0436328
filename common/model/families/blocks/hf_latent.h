// Latent attention of DeepSeek's configs and checkpoints, and of later models that use the same layout.
//
// Private to common/model. Thread safety: free functions; fields and mapper are used by one thread.
#pragma once

#include <cstdint>

#include "common/model/families/blocks/hf_fields.h"
#include "common/model/families/blocks/hf_map_blocks.h"
#include "common/model/model_config.h"

namespace sluice {

// Reads q_lora_rank (null: none), kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, rope; also
// llama_4_scaling_beta if the family has `temperature`.
struct LatentDefaults {
  uint32_t q_rank = 1536;
  uint32_t kv_rank = 512;
  uint32_t nope_dim = 128;
  uint32_t value_dim = 128;
  bool interleaved = true;
  bool temperature = false;
};
AttentionConfig ReadLatent(const LatentDefaults& defaults, const ModelConfig& model, HfFields* fields);

// Maps self_attn.{q_a,q_b or q,kv_a,kv_b,o}_proj and the norms between them.
void MapLatent(LayerMapper* layer);

}  // namespace sluice
