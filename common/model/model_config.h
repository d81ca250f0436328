// What a model is: one description of a layer, independent of the family it came from.
//
// A family's config reader (hf_config.h) turns a config.json into this; everything behind it (pack, forward
// pass, planner) sees only these fields and no model name. A field that a family needs and that is not here
// is added here, with the default that leaves the other families unchanged. The forward pass refuses, by
// name, a value that it does not implement.
//
// Thread safety: plain values.
#ifndef SLUICE_COMMON_MODEL_MODEL_CONFIG_H_
#define SLUICE_COMMON_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

enum class AttentionKind : uint8_t { kGrouped = 0, kLatent = 1, kGatedDelta = 2 };
enum class NormKind : uint8_t { kRms = 0, kLayer = 1 };
enum class Activation : uint8_t { kSilu = 0, kGeluTanh = 1, kGelu = 2, kClampedSwiglu = 3 };
enum class RopeKind : uint8_t {
  kNone = 0,
  kDefault = 1,
  kLinear = 2,
  kDynamic = 3,
  kYarn = 4,
  kLongRope = 5,
  kLlama3 = 6
};

// How router logits become experts and weights.
enum class RouterKind : uint8_t {
  kSoftmaxTopK =
      0,  // softmax over all routed experts, best K, renormalised if norm_topk_prob (Mixtral, Qwen, OLMoE)
  kTopKSoftmax = 1,   // best K logits, softmax over them (Granite, GPT-OSS)
  kSigmoidTopK = 2,   // sigmoid scores, selection with a correction bias (DeepSeek-V3, GLM-4)
  kSparseMixer = 3,   // Phi-3.5-MoE
  kSigmoidInput = 4,  // top-1, the score scales the expert's input (Llama-4)
};

// Position encoding of the rotated dimensions. theta > 0 unless kind is kNone.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                 // linear, dynamic, yarn
  uint32_t original_max_position = 0;  // dynamic, yarn, long
  uint32_t dimensions = 0;             // rotated values per head; head_dim unless partial
  bool interleaved = false;            // pairs (2i, 2i+1) instead of (i, i + dimensions/2)
  bool operator==(const RopeConfig&) const = default;
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kGrouped;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;        // heads % kv_heads == 0
  uint32_t head_dim = 0;        // per head, of q, k and v
  uint32_t sliding_window = 0;  // positions visible including the own one; 0: all
  float scale = 0;              // of q.k; 1/sqrt(head_dim) unless the family says otherwise
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;  // RMS norm on each q and k head before rope
  RopeConfig rope;
  bool operator==(const AttentionConfig&) const = default;
};

// The mixture of a layer; experts == 0 means a dense FFN of `dense_width` neurons.
struct MoeConfig {
  uint32_t experts = 0;       // routed, N
  uint32_t top_k = 0;         // K, 1..experts
  uint32_t expert_width = 0;  // neurons per routed expert, n_ff
  uint32_t shared_width = 0;  // neurons of the shared expert, 0: none
  uint32_t dense_width = 0;
  RouterKind router = RouterKind::kSoftmaxTopK;
  bool norm_topk_prob = true;
  float routed_scale = 1.0f;
  bool shared_gate = false;
  Activation activation = Activation::kSilu;
  bool operator==(const MoeConfig&) const = default;
};

struct LayerConfig {
  AttentionConfig attention;
  MoeConfig moe;
  bool operator==(const LayerConfig&) const = default;
};

struct ModelConfig {
  std::string family;  // "mixtral", ...; for people and error messages, no code branches on it
  uint32_t vocab = 0;
  uint32_t hidden = 0;
  uint32_t max_position = 0;  // positions the model was trained for
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;  // the head is the embedding matrix
  std::vector<LayerConfig> layers;
  // Token ids by config.json / generation_config.json; absent when empty.
  std::vector<int32_t> bos_ids;  // at most one entry
  std::vector<int32_t> eos_ids;
  bool operator==(const ModelConfig&) const = default;
};

// What generation_config.json asks for; absent fields were not there.
struct GenerationDefaults {
  std::optional<bool> do_sample;  // false: greedy, whatever the rest says
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint32_t> top_k;  // 0: off
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  bool operator==(const GenerationDefaults&) const = default;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_MODEL_MODEL_CONFIG_H_
