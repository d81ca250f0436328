// Canonical names of dense tensors in a pack, the same for every model family. Frozen: packs store them.
//
// Shapes are [rows, cols]; a matrix maps a `cols`-long activation to `rows` values (y = W x), so every row is
// one output. Vectors are [1, n], f32. Names without a condition exist whenever the layer's kind does; the
// comments of the others name the field of model_config.h that requires them.
//
// Thread safety: constants and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::dense {

// Model-wide tensors.
inline constexpr std::string_view kEmbed = "embed";                    // [vocab, hidden]
inline constexpr std::string_view kFinalNorm = "final_norm";           // [1, hidden]
inline constexpr std::string_view kFinalNormBias = "final_norm_bias";  // [1, hidden]; layer norm only
inline constexpr std::string_view kHead = "head";           // [vocab, hidden]; absent with tied embeddings
inline constexpr std::string_view kHeadBias = "head_bias";  // [1, vocab]; head_bias only

// Residual streams (StreamConfig) with a learned mix at the end; s streams.
inline constexpr std::string_view kHeadStreams = "head_streams";             // [s, s * hidden], as the router
inline constexpr std::string_view kHeadStreamsBase = "head_streams_base";    // [1, s]
inline constexpr std::string_view kHeadStreamsScale = "head_streams_scale";  // [1, 1]

// Gated streams (StreamConfig::rank) have these instead; r: the rank.
inline constexpr std::string_view kHeadStreamsNorm = "head_streams_norm";  // [1, s * hidden]
inline constexpr std::string_view kHeadStreamsDown = "head_streams_down";  // [r, s * hidden]
inline constexpr std::string_view kHeadStreamsUp = "head_streams_up";      // [s * hidden, r]

// Tensors of a layer: LayerName(3, kQ) is "layers.3.q". Norms before attention and before the MoE block.
inline constexpr std::string_view kAttnNorm = "attn_norm";           // [1, hidden]
inline constexpr std::string_view kAttnNormBias = "attn_norm_bias";  // [1, hidden]; layer norm only
inline constexpr std::string_view kFfnNorm = "ffn_norm";             // [1, hidden]
inline constexpr std::string_view kFfnNormBias = "ffn_norm_bias";    // [1, hidden]; layer norm only

// The mix of residual streams before attention and before the MoE block, factors after it.
inline constexpr std::string_view kAttnStreams = "attn_streams";  // [(2 + s) * s, s * hidden], as the router
inline constexpr std::string_view kAttnStreamsBase = "attn_streams_base";    // [1, (2 + s) * s]
inline constexpr std::string_view kAttnStreamsScale = "attn_streams_scale";  // [1, 3]
inline constexpr std::string_view kFfnStreams = "ffn_streams";
inline constexpr std::string_view kFfnStreamsBase = "ffn_streams_base";
inline constexpr std::string_view kFfnStreamsScale = "ffn_streams_scale";
// Gated streams have these instead; the projection by which the output is added is [s, s * hidden], as the
// router.
inline constexpr std::string_view kAttnStreamsNorm = "attn_streams_norm";  // [1, s * hidden]
inline constexpr std::string_view kAttnStreamsDown = "attn_streams_down";  // [r, s * hidden]
inline constexpr std::string_view kAttnStreamsUp = "attn_streams_up";      // [s * hidden, r]
inline constexpr std::string_view kAttnStreamsAdd = "attn_streams_add";
inline constexpr std::string_view kFfnStreamsNorm = "ffn_streams_norm";
inline constexpr std::string_view kFfnStreamsDown = "ffn_streams_down";
inline constexpr std::string_view kFfnStreamsUp = "ffn_streams_up";
inline constexpr std::string_view kFfnStreamsAdd = "ffn_streams_add";

// Hashed n-grams (HasNgrams); e = NgramWidth. The norms are apart for each stream.
inline constexpr std::string_view kNgramRows = "ngram_rows";             // [rows, width], a table of rows
inline constexpr std::string_view kNgramKey = "ngram_key";               // [s * hidden, e]
inline constexpr std::string_view kNgramValue = "ngram_value";           // [hidden, e]
inline constexpr std::string_view kNgramKeyNorm = "ngram_key_norm";      // [1, s * hidden]
inline constexpr std::string_view kNgramQueryNorm = "ngram_query_norm";  // [1, s * hidden]
inline constexpr std::string_view kNgramConvNorm = "ngram_conv_norm";    // [1, s * hidden]
inline constexpr std::string_view kNgramConv = "ngram_conv";             // [kernel, s * hidden], f32

// post_norms only: norms on the outputs of attention and of the MoE block.
inline constexpr std::string_view kAttnPostNorm = "attn_post_norm";  // [1, hidden]
inline constexpr std::string_view kFfnPostNorm = "ffn_post_norm";    // [1, hidden]
inline constexpr std::string_view kLayerScale = "layer_scale";       // [1, 1]; layer_scale only

// Grouped attention; value_dim is head_dim unless the layer has another. A gate_per_head is [heads, hidden].
inline constexpr std::string_view kQ = "q";           // [heads * head_dim, hidden]
inline constexpr std::string_view kQGate = "q_gate";  // [heads * value_dim, hidden]; output_gate only
inline constexpr std::string_view kK = "k";           // [kv_heads * head_dim, hidden]
inline constexpr std::string_view kV = "v";           // [kv_heads * value_dim, hidden]; not value_is_key
inline constexpr std::string_view kO = "o";           // [hidden, heads * value_dim]
inline constexpr std::string_view kQBias = "q_bias";  // [1, heads * head_dim]; these three: qkv_bias only
inline constexpr std::string_view kKBias = "k_bias";  // [1, kv_heads * head_dim]
inline constexpr std::string_view kVBias = "v_bias";  // [1, kv_heads * value_dim]
inline constexpr std::string_view kOBias = "o_bias";  // [1, hidden]; output_bias only
// [1, head_dim] with QkNorm::kPerHead and kWeightedAfterRope, [1, heads * head_dim] and [1, kv_heads *
// head_dim] with kAcrossHeads.
inline constexpr std::string_view kQNorm = "q_norm";
inline constexpr std::string_view kKNorm = "k_norm";
inline constexpr std::string_view kSinks = "sinks";  // [1, heads]; sinks only

// Latent attention. q is [heads * (nope_dim + rope dimensions), q_rank or hidden], o is [hidden, heads *
// value_dim]. The last two are the per-head halves of the matrix that expands a cached row: k_up_t projects
// q's nope part into the space of the cached row, v_up projects the attended cached row to a head's values.
inline constexpr std::string_view kQDown = "q_down";             // [q_rank, hidden]; q_rank > 0 only
inline constexpr std::string_view kQDownNorm = "q_down_norm";    // [1, q_rank]; q_rank > 0 only
inline constexpr std::string_view kKvDown = "kv_down";           // [kv_rank + rope dimensions, hidden]
inline constexpr std::string_view kKvDownNorm = "kv_down_norm";  // [1, kv_rank]
inline constexpr std::string_view kKUpT = "k_up_t";              // [heads * kv_rank, nope_dim]
inline constexpr std::string_view kVUp = "v_up";                 // [heads * value_dim, kv_rank]

// Attention with compressed entries (DeepSeek-V4): q_down, q_down_norm, q [heads * head_dim, q_rank], k
// [head_dim, hidden], k_norm, sinks and o [hidden, groups * o_rank] as above. Compressed rows are
// CompressedWidth wide.
inline constexpr std::string_view kOGroups = "o_groups";  // [groups * o_rank, heads / groups * head_dim]
inline constexpr std::string_view kEntryValues =
    "entry_values";  // [width, hidden], as the router; these: rate > 0
inline constexpr std::string_view kEntryGates = "entry_gates";  // [width, hidden], as the router
inline constexpr std::string_view kEntryBias = "entry_bias";    // [rate, width], f32
inline constexpr std::string_view kEntryNorm = "entry_norm";    // [1, head_dim]

// An indexer of the layer's own (HasIndexKeys). A pooled one has index_k as the router, in attention with
// compressed entries [PooledWidth, hidden] and without index_k_norm_bias.
inline constexpr std::string_view kIndexQ = "index_q";  // [index heads * its head_dim, q_rank or hidden]
inline constexpr std::string_view kIndexK = "index_k";  // [its head_dim, hidden]
inline constexpr std::string_view kIndexKNorm = "index_k_norm";           // [1, its head_dim]
inline constexpr std::string_view kIndexKNormBias = "index_k_norm_bias";  // [1, its head_dim]; weighted only
inline constexpr std::string_view kIndexQNorm = "index_q_norm";           // [1, its head_dim]; not weighted
inline constexpr std::string_view kIndexWeights = "index_weights";  // [index heads, hidden]; weighted only,
                                                                    // as the router

inline constexpr std::string_view kIndexGates =
    "index_gates";  // [PooledWidth, hidden], as the router; pooled only
inline constexpr std::string_view kIndexBias = "index_bias";  // [block, PooledWidth], f32; pooled only

// Gated delta attention; conv_cols = 2 * key_heads * key_dim + value_heads * value_dim. o is
// [hidden, value_heads * value_dim].
inline constexpr std::string_view kDeltaQkv = "delta_qkv";  // [conv_cols, hidden]
inline constexpr std::string_view kDeltaZ = "delta_z";      // [value_heads * value_dim, hidden or gate_rank]
inline constexpr std::string_view kDeltaBeta = "delta_beta";    // [value_heads, hidden], as the router
inline constexpr std::string_view kDeltaDecay = "delta_decay";  // [value_heads, hidden], as the router
// channel_decay: [value_heads * key_dim, hidden or gate_rank], any encoding. gate_rank > 0 only: the first
// two.
inline constexpr std::string_view kDeltaDecayDown = "delta_decay_down";  // [gate_rank, hidden]
inline constexpr std::string_view kDeltaZDown = "delta_z_down";          // [gate_rank, hidden]
inline constexpr std::string_view kDeltaConv = "delta_conv";             // [conv_cols, conv_kernel], f32
inline constexpr std::string_view kDeltaALog = "delta_a_log";            // [1, value_heads]
inline constexpr std::string_view kDeltaDtBias = "delta_dt_bias";        // [1, value_heads or its decays]
inline constexpr std::string_view kDeltaNorm = "delta_norm";             // [1, value_dim]

// Mamba-2; conv_cols = heads * head_dim + 2 * groups * state: x, B, C. o is [hidden, heads * head_dim].
inline constexpr std::string_view kMambaZ = "mamba_z";                 // [heads * head_dim, hidden]
inline constexpr std::string_view kMambaXbc = "mamba_xbc";             // [conv_cols, hidden]
inline constexpr std::string_view kMambaDt = "mamba_dt";               // [heads, hidden], as the router
inline constexpr std::string_view kMambaConv = "mamba_conv";           // [conv_kernel, conv_cols], f32
inline constexpr std::string_view kMambaConvBias = "mamba_conv_bias";  // [1, conv_cols]
inline constexpr std::string_view kMambaALog = "mamba_a_log";          // [1, heads]
inline constexpr std::string_view kMambaDtBias = "mamba_dt_bias";      // [1, heads]
inline constexpr std::string_view kMambaD = "mamba_d";                 // [1, heads]
inline constexpr std::string_view kMambaNorm = "mamba_norm";           // [1, heads * head_dim]

// Mamba-1. o is [hidden, channels].
inline constexpr std::string_view kSelectiveX = "selective_x";                 // [channels, hidden]
inline constexpr std::string_view kSelectiveZ = "selective_z";                 // [channels, hidden]
inline constexpr std::string_view kSelectiveConv = "selective_conv";           // [conv_kernel, channels], f32
inline constexpr std::string_view kSelectiveConvBias = "selective_conv_bias";  // [1, channels]
inline constexpr std::string_view kSelectiveStepDown = "selective_step_down";  // [step_rank, channels]
inline constexpr std::string_view kSelectiveB = "selective_b";                 // [state, channels]
inline constexpr std::string_view kSelectiveC = "selective_c";                 // [state, channels]
inline constexpr std::string_view kSelectiveStepNorm = "selective_step_norm";  // [1, step_rank]
inline constexpr std::string_view kSelectiveBNorm = "selective_b_norm";        // [1, state]
inline constexpr std::string_view kSelectiveCNorm = "selective_c_norm";        // [1, state]
inline constexpr std::string_view kSelectiveStep = "selective_step";           // [channels, step_rank]
inline constexpr std::string_view kSelectiveStepBias = "selective_step_bias";  // [1, channels]
inline constexpr std::string_view kSelectiveALog = "selective_a_log";          // [state, channels], f32
inline constexpr std::string_view kSelectiveD = "selective_d";                 // [1, channels]

// A gated short convolution. o is [hidden, width].
inline constexpr std::string_view kConvIn = "conv_in";           // [3 * width, hidden]: B, C, x
inline constexpr std::string_view kConvKernel = "conv_kernel";   // [kernel, width], f32
inline constexpr std::string_view kConvInBias = "conv_in_bias";  // [1, 3 * width]; these two: bias only
inline constexpr std::string_view kConvBias = "conv_bias";       // [1, width]

// MoE block. With zero_experts the router and its two vectors are longer by these. Routed experts have rows
// of latent_width in place of hidden, if there is one. Biases of routed experts are dense tensors: they are 1
// / hidden of an expert's bytes.
inline constexpr std::string_view kRouter = "router";                       // [experts, hidden]
inline constexpr std::string_view kRouterBias = "router_bias";              // [1, experts]
inline constexpr std::string_view kRouterCorrection = "router_correction";  // [1, experts], selection only
inline constexpr std::string_view kExpertsUpBias = "experts_up_bias";       // [experts, expert_width], f32
inline constexpr std::string_view kExpertsGateBias = "experts_gate_bias";   // [experts, expert_width], f32
inline constexpr std::string_view kExpertsDownBias = "experts_down_bias";   // [experts, hidden], f32
inline constexpr std::string_view kSharedUp = "shared_up";                  // [shared_width, hidden]
inline constexpr std::string_view kSharedGate = "shared_gate";              // [shared_width, hidden]
inline constexpr std::string_view kSharedDown = "shared_down";       // [shared_width, hidden], transposed
inline constexpr std::string_view kSharedRouter = "shared_router";   // [1, hidden]; shared_gate only
inline constexpr std::string_view kSharedUpBias = "shared_up_bias";  // [1, shared_width]; ffn_bias, all six
inline constexpr std::string_view kSharedGateBias = "shared_gate_bias";  // [1, shared_width]
inline constexpr std::string_view kSharedDownBias = "shared_down_bias";  // [1, hidden]
inline constexpr std::string_view kLatentDown = "latent_down";           // [latent_width, hidden]; these two:
inline constexpr std::string_view kLatentUp = "latent_up";  // [hidden, latent_width]; latent_width

inline constexpr std::string_view kTokenExperts = "token_experts";  // [vocab, top_k], f32: numbers of
                                                                    // experts; token_experts only
inline constexpr std::string_view kExpertScale = "expert_scale";    // [1, experts]; expert_scale only

// Parallel dense FFN; dense_ffn_width only. The post norms apply to the outputs.
inline constexpr std::string_view kParallelUp = "beside_up";      // [dense_ffn_width, hidden]
inline constexpr std::string_view kParallelGate = "beside_gate";  // [dense_ffn_width, hidden]
inline constexpr std::string_view kParallelDown = "beside_down";  // [dense_ffn_width, hidden], transposed
inline constexpr std::string_view kParallelPostNorm = "beside_post_norm";  // [1, hidden]
inline constexpr std::string_view kRouterNorm = "router_norm";             // [1, hidden]
inline constexpr std::string_view kExpertsNorm = "experts_norm";           // [1, hidden]
inline constexpr std::string_view kExpertsPostNorm = "experts_post_norm";  // [1, hidden]

// Layer without experts. Gate tensors, here and above, are absent without gates (HasGates).
inline constexpr std::string_view kDenseUp = "dense_up";               // [dense_width, hidden]
inline constexpr std::string_view kDenseGate = "dense_gate";           // [dense_width, hidden]
inline constexpr std::string_view kDenseDown = "dense_down";           // [dense_width, hidden], transposed
inline constexpr std::string_view kDenseUpBias = "dense_up_bias";      // [1, dense_width]
inline constexpr std::string_view kDenseGateBias = "dense_gate_bias";  // [1, dense_width]
inline constexpr std::string_view kDenseDownBias = "dense_down_bias";  // [1, hidden]

// MTP layers. The layer's input is mtp_embed norm(embedding of the next token) + mtp_hidden norm(hidden
// state): the two halves of the checkpoint's one projection. mtp_norm is behind the layer.
inline constexpr std::string_view kMtpEmbed = "mtp_embed";             // [hidden, hidden]
inline constexpr std::string_view kMtpHidden = "mtp_hidden";           // [hidden, hidden]
inline constexpr std::string_view kMtpEmbedNorm = "mtp_embed_norm";    // [1, hidden]
inline constexpr std::string_view kMtpHiddenNorm = "mtp_hidden_norm";  // [1, hidden]
inline constexpr std::string_view kMtpNorm = "mtp_norm";               // [1, hidden]

// True for a tensor of which a token reads a few rows alone, and which lies in a file of its own.
inline bool IsRowTable(std::string_view name) { return name.ends_with(kNgramRows); }

inline std::string LayerName(uint32_t layer, std::string_view tensor) {
  return "layers." + std::to_string(layer) + "." + std::string(tensor);
}

}  // namespace sluice::dense
