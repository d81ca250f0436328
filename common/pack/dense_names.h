// Canonical names of dense tensors in a pack, the same for every model family. Frozen: packs store them.
//
// Shapes are [rows, cols]; a matrix maps a `cols`-long activation to `rows` values (y = W x), so every row is
// one output. Vectors are [1, n], f32.
//
// Thread safety: constants and pure functions.
#ifndef SLUICE_COMMON_PACK_DENSE_NAMES_H_
#define SLUICE_COMMON_PACK_DENSE_NAMES_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::dense {

// Of the model.
inline constexpr std::string_view kEmbed = "embed";           // [vocab, hidden]
inline constexpr std::string_view kFinalNorm = "final_norm";  // [1, hidden]
inline constexpr std::string_view kHead = "head";             // [vocab, hidden]; absent with tied embeddings

// Of a layer: LayerName(3, kQ) is "layers.3.q".
inline constexpr std::string_view kAttnNorm = "attn_norm";  // [1, hidden], before attention
inline constexpr std::string_view kQ = "q";                 // [heads * head_dim, hidden]
inline constexpr std::string_view kK = "k";                 // [kv_heads * head_dim, hidden]
inline constexpr std::string_view kV = "v";                 // [kv_heads * head_dim, hidden]
inline constexpr std::string_view kO = "o";                 // [hidden, heads * head_dim]
inline constexpr std::string_view kFfnNorm = "ffn_norm";    // [1, hidden], before the mixture
inline constexpr std::string_view kRouter = "router";       // [experts, hidden]

// Reserved for families to come; no writer makes them yet.
inline constexpr std::string_view kQBias = "q_bias";                        // [1, heads * head_dim]
inline constexpr std::string_view kKBias = "k_bias";                        // [1, kv_heads * head_dim]
inline constexpr std::string_view kVBias = "v_bias";                        // [1, kv_heads * head_dim]
inline constexpr std::string_view kOBias = "o_bias";                        // [1, hidden]
inline constexpr std::string_view kQNorm = "q_norm";                        // [1, head_dim]
inline constexpr std::string_view kKNorm = "k_norm";                        // [1, head_dim]
inline constexpr std::string_view kSinks = "sinks";                         // [1, heads]
inline constexpr std::string_view kAttnNormBias = "attn_norm_bias";         // [1, hidden]
inline constexpr std::string_view kFfnNormBias = "ffn_norm_bias";           // [1, hidden]
inline constexpr std::string_view kQDown = "q_down";                        // latent attention
inline constexpr std::string_view kQDownNorm = "q_down_norm";               // latent attention
inline constexpr std::string_view kKvDown = "kv_down";                      // latent attention
inline constexpr std::string_view kKvDownNorm = "kv_down_norm";             // latent attention
inline constexpr std::string_view kKvUp = "kv_up";                          // latent attention
inline constexpr std::string_view kRouterBias = "router_bias";              // [1, experts]
inline constexpr std::string_view kRouterCorrection = "router_correction";  // [1, experts], selection only
inline constexpr std::string_view kSharedUp = "shared_up";                  // [shared_width, hidden]
inline constexpr std::string_view kSharedGate = "shared_gate";              // [shared_width, hidden]
inline constexpr std::string_view kSharedDown = "shared_down";      // [shared_width, hidden], transposed
inline constexpr std::string_view kSharedRouter = "shared_router";  // [1, hidden]
inline constexpr std::string_view kDenseUp = "dense_up";            // [dense_width, hidden]
inline constexpr std::string_view kDenseGate = "dense_gate";        // [dense_width, hidden]
inline constexpr std::string_view kDenseDown = "dense_down";        // [dense_width, hidden], transposed

inline std::string LayerName(uint32_t layer, std::string_view tensor) {
  return "layers." + std::to_string(layer) + "." + std::string(tensor);
}

}  // namespace sluice::dense

#endif  // SLUICE_COMMON_PACK_DENSE_NAMES_H_
