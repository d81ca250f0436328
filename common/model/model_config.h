// ModelConfig: one description of a model and its layers, independent of the model family.
//
// A family's config reader (hf_config.h) turns a config.json into this; the code behind it (pack, forward
// pass, planner) sees only these fields and no model name. A new family adds its missing fields here, with
// defaults that leave the other families unchanged. The forward pass refuses, by name, a value that it does
// not implement.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

enum class AttentionKind : uint8_t {
  kGrouped = 0,
  kLatent = 1,
  kGatedDelta = 2,
  kMamba = 3,      // Mamba-2
  kShortConv = 4,  // a gated short convolution (LFM2)
  kNone = 5,       // the layer is only its FFN
  kSelective = 6,  // Mamba-1
  kCompressed = 7  // one KV head that is key and value at once, a window and compressed entries (DeepSeek-V4)
};
// True if the layer has a recurrent state, which each token replaces, and no entries in the KV cache.
inline bool IsRecurrent(AttentionKind kind) {
  return kind == AttentionKind::kGatedDelta || kind == AttentionKind::kMamba ||
         kind == AttentionKind::kShortConv || kind == AttentionKind::kSelective;
}
enum class NormKind : uint8_t { kRms = 0, kLayer = 1 };
enum class Activation : uint8_t {
  kSilu = 0,
  kGeluTanh = 1,
  kGelu = 2,
  kClampedSwiglu = 3,
  kRelu2 = 4,        // relu(up)^2: an FFN without gates
  kClampedSilu = 5,  // min(silu(gate), limit) * clamp(up, -limit, limit)
  kLimitedSilu = 6   // silu(min(gate, limit)) * clamp(up, -limit, limit)
};
inline bool HasGates(Activation activation) { return activation != Activation::kRelu2; }
// The function of an attention's output gate.
enum class GateActivation : uint8_t { kSigmoid = 0, kSoftplus = 1 };
enum class RopeKind : uint8_t {
  kNone = 0,
  kDefault = 1,
  kLinear = 2,
  kDynamic = 3,
  kYarn = 4,
  kLongRope = 5,
  kLlama3 = 6,
  kProportional = 7  // only the first pairs rotate (Gemma-4)
};

// Rule that turns router logits into experts and weights.
enum class RouterKind : uint8_t {
  kSoftmaxTopK =
      0,  // softmax over all routed experts, best K, renormalised if norm_topk_prob (Mixtral, Qwen, OLMoE)
  kTopKSoftmax = 1,       // best K logits, softmax over them (Granite, GPT-OSS)
  kSigmoidTopK = 2,       // sigmoid scores, selection with a correction bias (DeepSeek-V3, GLM-4)
  kSparseMixer = 3,       // Phi-3.5-MoE
  kSigmoidInput = 4,      // top-1, the score scales the expert's input (Llama-4)
  kSqrtSoftplusTopK = 5,  // as kSigmoidTopK with scores sqrt(softplus(logit)) (DeepSeek-V4)
};

// Score of a router's group of experts; the best groups are chosen by it.
enum class GroupScore : uint8_t {
  kMax = 0,       // the group's best score (DeepSeek-V2)
  kTopTwoSum = 1  // the sum of its two best corrected scores (DeepSeek-V3)
};

// Norms on q and k before attention scores.
enum class QkNorm : uint8_t {
  kNone = 0,
  kPerHead = 1,            // RMS norm with weights on each head, before rope (Qwen3, GLM-4)
  kAcrossHeads = 2,        // RMS norm with weights over all heads' values at once, before rope (OLMoE)
  kPerHeadAfterRope = 3,   // RMS norm without weights on each head, after rope, in layers with rope (Llama-4)
  kWeightedAfterRope = 4,  // RMS norm with weights on each head, after rope (Hunyuan)
  kWeightedKey = 5         // RMS norm on each head before rope, with weights on k alone (DeepSeek-V4)
};

// Position encoding of the rotated dimensions. theta > 0 unless kind is kNone.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                 // linear, dynamic, yarn, llama3
  uint32_t original_max_position = 0;  // dynamic, yarn, long, llama3
  uint32_t dimensions = 0;             // rotated values per head; head_dim unless partial
  bool interleaved = false;            // pairs (2i, 2i+1) instead of (i, i + dimensions/2)
  double attention_factor = 1.0;       // multiplies cos and sin (yarn, long: of short sequences)
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn: correction range rounded to whole pairs
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  uint32_t turned = 0;                 // proportional: number of rotated values of `dimensions`, even
  // long: divisors of the dimensions/2 frequencies, for sequences up to original_max_position and for longer
  // ones.
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  double long_attention_factor = 1.0;  // long: attention_factor of longer sequences
  bool operator==(const RopeConfig&) const = default;
};

// Latent attention (DeepSeek-V2): q and k heads of nope_dim + rope.dimensions values; the cache holds kv_rank
// + rope.dimensions values per token, shared by all heads.
struct LatentConfig {
  uint32_t q_rank = 0;  // 0: q is projected directly
  uint32_t kv_rank = 0;
  uint32_t nope_dim = 0;
  uint32_t value_dim = 0;      // per head
  float norm_epsilon = 1e-6f;  // of the norms on the compressed q and kv
  bool operator==(const LatentConfig&) const = default;
};

// Gated DeltaNet (Qwen3.5): a recurrent state [value_heads][key_dim][value_dim] and the last
// conv_kernel - 1 inputs of the convolution per sequence.
struct DeltaConfig {
  uint32_t key_heads = 0;
  uint32_t value_heads = 0;  // value_heads % key_heads == 0
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  uint32_t conv_kernel = 0;
  // The decay has a value for each channel of the key (Kimi Delta Attention), else one for each head.
  bool channel_decay = false;
  uint32_t gate_rank = 0;     // > 0: decay and gate are made of projections to this many values
  float decay_floor = 0;      // < 0: log decays are this * sigmoid(..), else made with softplus
  bool sigmoid_gate = false;  // the output's gate is sigmoid(z), else silu(z)
  bool operator==(const DeltaConfig&) const = default;
};

// Mamba-2: a recurrent state [heads][state][head_dim] and the last conv_kernel - 1 inputs of the convolution
// per sequence.
struct MambaConfig {
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t groups = 0;  // heads % groups == 0: a group's heads share B and C
  uint32_t state = 0;   // values of B and of C per group
  uint32_t conv_kernel = 0;
  float min_step = 0;  // the time step is clamped to these
  float max_step = 0;  // 0: no limit
  bool operator==(const MambaConfig&) const = default;
};

// Mamba-1: a recurrent state [channels][state] and the last conv_kernel - 1 inputs of the convolution per
// sequence. Time step, B and C of a token are made of its convolved channels, and normed.
struct SelectiveConfig {
  uint32_t channels = 0;
  uint32_t state = 0;      // values per channel
  uint32_t step_rank = 0;  // values that the channels' time steps are made of
  uint32_t conv_kernel = 0;
  bool operator==(const SelectiveConfig&) const = default;
};

// A gated short convolution: the last kernel - 1 inputs of the convolution per sequence.
struct ShortConvConfig {
  uint32_t width = 0;  // channels
  uint32_t kernel = 0;
  bool bias = false;  // of the convolution and of the projection before it
  bool operator==(const ShortConvConfig&) const = default;
};

// The indexer of a layer with sparse attention: heads of its own score every earlier position by a cached
// index key, and attention sees the blocks with the best scores only.
struct IndexConfig {
  uint32_t heads = 0;     // 0: no indexer, attention sees every position
  uint32_t head_dim = 0;  // of an index key; its first rope.dimensions values rotate
  uint32_t top = 0;       // blocks that a query sees
  uint32_t block = 1;     // positions of a block, counted from position 0
  uint32_t local = 0;     // last blocks, the query's own among them, that are always seen; >= 1 if block > 1
  // One choice for all query heads, by the sum over index heads of weight(x) * relu(q . k), with a layer norm
  // of the keys (DeepSeek-V3.2). Else each index head chooses by q . k for its share of the query heads, with
  // RMS norms of q and k (MiniMax-M3).
  bool weighted = false;
  bool interleaved = false;  // of the rotated pairs, as in RopeConfig
  bool shared = false;       // takes the choice of the nearest layer before it that makes one
  // A block has one key, compressed of those of its positions by learned gates (GLM-5.3): only blocks that
  // end at or before a query take part in its choice of `top` - 1 of them, and the positions behind the last
  // one are always seen. `block` divides 32 or is a multiple of it.
  bool pooled = false;
  // One choice as with `weighted`, but each index head counts once, and the key of a block is the mean of its
  // positions' keys, normed and rotated behind that (Qwen3.8). Implies `pooled`.
  bool summed = false;
  float norm_epsilon = 1e-6f;  // of the norms on q and k
  bool operator==(const IndexConfig&) const = default;
};

// Attention of DeepSeek-V4 beside its window: every `rate` positions are compressed to an entry.
struct CompressConfig {
  uint32_t rate = 0;     // 0: no entries; divides 32 or is a multiple of it
  bool overlap = false;  // an entry is made of the `rate` positions before its own too
  uint32_t q_rank = 0;
  uint32_t groups = 1;  // the output's heads are projected in groups of equal size ..
  uint32_t o_rank = 0;  // .. to this many values each
  bool operator==(const CompressConfig&) const = default;
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kGrouped;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;        // heads % kv_heads == 0
  uint32_t head_dim = 0;        // per head, of q, k and v
  uint32_t value_dim = 0;       // per head, of v where it is narrower than head_dim; 0: head_dim
  float value_scale = 1;        // multiplies v
  uint32_t sliding_window = 0;  // positions visible including the own one; 0: all
  float scale = 0;              // of q.k; 1/sqrt(head_dim) unless the family overrides it
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  uint32_t chunk = 0;          // p attends from the start of its chunk of this many positions; 0: from 0
  bool sinks = false;          // a learned score per head that takes part in the softmax and has no value
  float clip_qkv = 0;          // q, k and v are clamped to +- this after norms; 0: no clamp
  bool output_gate = false;    // the output is multiplied by a function of a projection of the layer's input
  bool gate_per_head = false;  // the gate has one value for each head, else one for each value
  GateActivation gate_activation = GateActivation::kSigmoid;
  bool value_norm = false;    // RMS norm without weights on each head of v
  bool value_is_key = false;  // v is the output of k's projection, before norm and rope
  // > 0: q is scaled by 1 + this * log(floor((p + temperature_offset) / temperature_floor) + 1)
  float temperature_scale = 0;
  uint32_t temperature_floor = 0;
  uint32_t temperature_offset = 1;
  RopeConfig rope;
  LatentConfig latent;        // kLatent; head_dim is then nope_dim + rope.dimensions and kv_heads == heads
  DeltaConfig delta;          // kGatedDelta; for this and the next two, heads, kv_heads and head_dim are 0
  MambaConfig mamba;          // kMamba
  ShortConvConfig conv;       // kShortConv
  SelectiveConfig selective;  // kSelective; heads etc. are 0
  IndexConfig index;          // kGrouped, kLatent: sparse attention; kCompressed: choice of entries
  CompressConfig compress;    // kCompressed; kv_heads is 1, rope turns the last values of a head
  bool operator==(const AttentionConfig&) const = default;
};

// MoE block of a layer; experts == 0 means a dense FFN of `dense_width` neurons, or none if that is 0 too.
struct MoeConfig {
  uint32_t experts = 0;       // routed, N
  uint32_t top_k = 0;         // K, 1..experts
  uint32_t expert_width = 0;  // neurons per routed expert, n_ff
  uint32_t shared_width = 0;  // neurons of the shared expert, 0: none
  uint32_t dense_width = 0;
  RouterKind router = RouterKind::kSoftmaxTopK;
  bool norm_topk_prob = true;
  float norm_epsilon = 1e-20f;  // kSigmoidTopK: added to the sum that norm_topk_prob divides by
  float routed_scale = 1.0f;
  // The shared expert is computed apart from the routed ones: it may have another width of input, or limit.
  bool shared_apart = false;
  bool shared_gate = false;        // the shared expert is weighted by sigmoid(x . shared_router), else by 1
  bool router_bias = false;        // added to the router's logits
  bool router_correction = false;  // added to scores for the choice only
  float router_cap = 0;            // > 0: logits become cap * tanh(logit / cap)
  // Experts behind the others that return their input; the router chooses among all.
  uint32_t zero_experts = 0;
  float router_jitter = 0;  // kSparseMixer: the mask's relative threshold is twice this
  uint32_t groups = 0;      // routed experts in groups of equal size; only the best groups are used
  uint32_t top_groups = 0;  // 1..groups; 0 with groups == 0
  GroupScore group_score = GroupScore::kMax;
  bool expert_scale = false;  // a learned factor of each routed expert's weight
  // > 0: width of a dense FFN parallel to the experts. It uses the layer's norm; the experts have a norm of
  // their own and the router another, all on the same residual. The outputs of FFN and experts are each
  // normalized before they are added (Gemma-4).
  uint32_t dense_ffn_width = 0;
  bool expert_bias = false;                   // routed experts have biases on up, gate and down
  bool ffn_bias = false;                      // dense and shared FFNs have them
  Activation activation = Activation::kSilu;  // of dense and shared experts too
  float activation_alpha = 1.702f;            // kClampedSwiglu
  float activation_limit = 7.0f;              // kClampedSwiglu, kClampedSilu
  float shared_limit = 0;                     // > 0: activation_limit of a shared expert apart
  float output_scale = 1.0f;                  // multiplies the sum of experts and shared expert
  bool token_experts = false;                 // a token's id alone names its experts
  bool operator==(const MoeConfig&) const = default;
};

// Hashed n-grams: rows of a table, named by a hash of a token and those before it, whose values are gated and
// added to the residual streams before a layer (ngram_hash.h).
struct NgramConfig {
  uint32_t size = 0;    // tokens of the longest n-gram; 0: none
  uint32_t heads = 0;   // rows that each of the lengths 2..size names
  uint32_t width = 0;   // values of a row
  uint64_t rows = 0;    // of the table, those that no hash names included
  uint64_t base = 0;    // hashes are taken modulo the primes from here on
  uint32_t layer = 0;   // number among the layers with n-grams: these use up the primes in turn
  uint64_t seed = 0;    // of the factors of a hash
  uint32_t end = 0;     // token of which n-grams see nothing behind it
  uint32_t kernel = 0;  // of a convolution of the values, over every `size`-th token
  bool operator==(const NgramConfig&) const = default;
};

struct LayerConfig {
  AttentionConfig attention;
  MoeConfig moe;
  bool post_norms = false;   // outputs of attention and of the MoE block are normalized before they are added
  bool layer_scale = false;  // a learned factor of the residual stream at the end of the layer
  bool pre_norms = true;     // inputs of attention and of the MoE block are normalized
  bool parallel = false;     // the MoE block takes the input of attention, normalized by the same norm
  // The routed experts' sum is added behind the next layer, which has none; the shared expert's here.
  bool late_experts = false;
  NgramConfig ngrams;
  bool operator==(const LayerConfig&) const = default;
};

inline bool HasAttention(const LayerConfig& layer) { return layer.attention.kind != AttentionKind::kNone; }
// True if the MoE block has a norm of its own.
inline bool HasFfnNorm(const LayerConfig& layer) { return layer.pre_norms && !layer.parallel; }
inline bool HasFfn(const LayerConfig& layer) { return layer.moe.experts > 0 || layer.moe.dense_width > 0; }

// A residual of several streams of hidden values (hyper-connections): blocks take a mix of the streams and
// write to all of them.
struct StreamConfig {
  uint32_t count = 1;       // 1: an ordinary residual
  uint32_t iterations = 0;  // of Sinkhorn, for the matrix that mixes the streams
  float epsilon = 1e-6f;
  bool mean_output = false;  // the final norm takes the mean of the streams, else a learned mix
  // > 0: blocks take the mean of the normed streams, each value gated by a projection of this rank, and their
  // output is added to each stream by a factor (Qwen3.8). No norm follows, at the end neither.
  uint32_t rank = 0;
  bool operator==(const StreamConfig&) const = default;
};

struct ModelConfig {
  std::string family;  // "mixtral", ...; for people and error messages, no code branches on it
  uint32_t vocab = 0;
  uint32_t hidden = 0;
  uint32_t max_position = 0;  // positions the model was trained for
  NormKind norm = NormKind::kRms;
  bool norm_bias = true;  // kLayer: norms have biases
  float norm_epsilon = 1e-5f;
  bool tied_embeddings = false;  // the head is the embedding matrix
  bool head_bias = false;
  float embedding_scale = 1.0f;  // multiplies embeddings
  float residual_scale = 1.0f;   // multiplies attention and MoE outputs before the residual add
  float logit_scale = 1.0f;      // multiplies the head's output
  float logit_cap = 0;           // > 0: logits become cap * tanh(logit / cap)
  // > 0: routed experts take and return this many values, which matrices of the layer project from and to
  // the hidden size; the router and the shared expert see the hidden size.
  uint32_t latent_width = 0;
  StreamConfig streams;
  std::vector<LayerConfig> layers;
  // The last `mtp_layers` of `layers` are multi-token prediction (MTP) layers, which plain decoding does not
  // run: they draft the tokens behind the next one from the hidden states behind the final norm.
  uint32_t mtp_layers = 0;
  // Token ids by config.json / generation_config.json; absent when empty.
  std::vector<int32_t> bos_ids;  // at most one entry
  std::vector<int32_t> eos_ids;
  bool operator==(const ModelConfig&) const = default;
};

// Layers of the model itself, without those that draft.
inline uint32_t ModelLayers(const ModelConfig& config) {
  return static_cast<uint32_t>(config.layers.size()) - config.mtp_layers;
}
inline bool IsMtpLayer(const ModelConfig& config, uint32_t layer) { return layer >= ModelLayers(config); }
inline ModelConfig WithoutMtpLayers(ModelConfig config) {
  config.layers.resize(ModelLayers(config));
  config.mtp_layers = 0;
  return config;
}

// Values that a routed expert takes and returns.
inline uint32_t ExpertHidden(const ModelConfig& config) {
  return config.latent_width > 0 ? config.latent_width : config.hidden;
}

// True if the norms of the residual stream have biases.
inline bool HasNormBias(const ModelConfig& config) {
  return config.norm == NormKind::kLayer && config.norm_bias;
}

// Values of a head of v.
inline uint32_t ValueDim(const AttentionConfig& attention) {
  return attention.value_dim > 0 ? attention.value_dim : attention.head_dim;
}

// True if the layer has an indexer of its own: its tensors, and index keys in the cache.
inline bool HasIndexKeys(const AttentionConfig& attention) {
  return attention.index.heads > 0 && !attention.index.shared;
}
// Lists of chosen blocks that a row has.
inline uint32_t IndexLists(const IndexConfig& index) {
  return index.weighted || index.summed ? 1 : index.heads;
}
// Positions up to which the indexer's choice is all of them.
inline uint64_t DensePositions(const IndexConfig& index) {
  return uint64_t{index.top} * index.block - (index.pooled ? 1 : 0);
}

inline bool HasStreams(const ModelConfig& config) { return config.streams.count > 1; }
// Values of the projection that a layer's streams are mixed by, and of the factors made of it.
inline uint32_t StreamRaws(const StreamConfig& streams) {
  return streams.rank > 0 ? streams.rank : (2 + streams.count) * streams.count;
}
inline uint32_t StreamFactors(const StreamConfig& streams) {
  return streams.rank > 0 ? streams.count : (1 + streams.count) * streams.count;
}
// True if the head takes the normed residual.
inline bool HasFinalNorm(const ModelConfig& config) { return config.streams.rank == 0; }

inline bool HasNgrams(const LayerConfig& layer) { return layer.ngrams.size > 0; }
// Rows that a token names, and their values one behind the other.
inline uint32_t NgramHeads(const NgramConfig& ngrams) {
  return ngrams.size > 0 ? (ngrams.size - 1) * ngrams.heads : 0;
}
inline uint32_t NgramWidth(const NgramConfig& ngrams) { return NgramHeads(ngrams) * ngrams.width; }
// Earlier rows that the convolution of a token reads.
inline uint32_t NgramReach(const NgramConfig& ngrams) {
  return ngrams.size > 0 ? (ngrams.kernel - 1) * ngrams.size : 0;
}

// Values of a row that entries, or the keys of a pooled indexer, are compressed of.
inline uint32_t CompressedWidth(const AttentionConfig& attention) {
  return attention.compress.rate == 0 ? 0 : attention.head_dim * (attention.compress.overlap ? 2 : 1);
}
inline uint32_t PooledWidth(const AttentionConfig& attention) {
  const IndexConfig& index = attention.index;
  return !HasIndexKeys(attention) || !index.pooled ? 0
                                                   : index.head_dim * (attention.compress.overlap ? 2 : 1);
}

// Values that an indexer's queries are projected from.
inline uint32_t IndexQueryWidth(const AttentionConfig& attention, uint32_t hidden) {
  return attention.kind == AttentionKind::kLatent       ? attention.latent.q_rank
         : attention.kind == AttentionKind::kCompressed ? attention.compress.q_rank
                                                        : hidden;
}
// True if the norm of index keys is a layer norm with a bias, before they are pooled; else an RMS norm.
inline bool HasIndexNormBias(const AttentionConfig& attention) {
  return attention.index.weighted && attention.kind != AttentionKind::kCompressed;
}

// Defaults from generation_config.json; absent fields are unset.
struct GenerationDefaults {
  std::optional<bool> do_sample;  // false: greedy, regardless of the other fields
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint32_t> top_k;  // 0: off
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  bool operator==(const GenerationDefaults&) const = default;
};

}  // namespace sluice
