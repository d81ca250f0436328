// Arguments of the operations of a Queue (backend.h): shapes, types and requirements. Notation: T token rows,
// K ranks of the router, [a, b] row-major. All activations are float32; what is computed, to the bit, is
// ARITHMETIC.md.
//
// Tensors are device places (BufferRef, Rows). Spans are host data that the call copies before it returns.
// A requirement that does not hold is INVALID_ARGUMENT with the numbers; a combination that a backend lacks
// is UNIMPLEMENTED naming both sides; nothing is computed then.
//
// Thread safety: plain values.
#ifndef SLUICE_KERNELS_OPS_H_
#define SLUICE_KERNELS_OPS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/model/model_config.h"
#include "kernels/buffer.h"

namespace sluice {

// y[i, :] = scale * table[ids[i], :].  REQUIRES 0 <= ids[i] < table.rows.
struct EmbedArgs {
  absl::Span<const int32_t> ids;  // T
  WeightView table;               // [vocab, hidden]
  float scale = 1.0f;
  Rows y;  // [T, hidden]
};

// RMS norm over `cols` values; weight: float32 [cols].
struct NormSpec {
  BufferRef weight;  // none: no norm
  float epsilon = 1e-5f;
};

// y = norm(x). May alias (y == x).
struct RmsNormArgs {
  Rows x;  // [tokens, cols]
  uint32_t tokens = 0;
  uint32_t cols = 0;
  NormSpec norm;
  Rows y;  // [tokens, cols]
};

// One matrix of a MatMul call.
struct MatMulPart {
  WeightView weights;  // [rows, cols]
  Rows y;              // [T, weights.rows]; must not overlap x
  BufferRef bias;      // float32 [weights.rows], or none
};

// y[t, r] = residual[t, r] + (norm(x)[t, :] . weights[r, :] + bias[r]) for every part; all parts share x. One
// fork-join (two when many rows make packing x worth while).
// REQUIRES: every part has `cols` columns; residual only with exactly one part (it may be that part's y).
struct MatMulArgs {
  Rows x;  // [tokens, cols], or any number of rows with row_ids
  uint32_t tokens = 0;
  uint32_t cols = 0;
  absl::Span<const uint32_t> row_ids;  // empty, or T indices of rows of x: only these are computed
  NormSpec norm;                       // applied to x first; x itself is not changed
  absl::Span<const MatMulPart> parts;
  Rows residual;  // none, or [T, rows]
};

// The type of the KV cache's values.
enum class KvType : uint8_t { kF32 = 0, kF16 = 1, kQ8 = 2 };

inline constexpr uint32_t kPageTokens = 32;   // positions in one page of the KV cache
inline constexpr uint32_t kSpanTokens = 256;  // ARITHMETIC.md 6
inline constexpr uint32_t kNoPage = 0xffffffffu;

// The cache of one layer: `pages` pages of KvPageBytes (kv_layout.h) each for K and for V,
// [page][kv head][32 tokens][head_dim] (q8: and then float32 [kv head][32] scales).
struct KvView {
  KvType type = KvType::kF16;
  BufferRef k;
  BufferRef v;
  uint64_t page_stride = 0;  // bytes from page to page, a multiple of 4
  uint32_t pages = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;  // a multiple of 2
};

// The rows of one sequence in a batch: batch rows [first_row, first_row + rows) hold its positions
// [first_position, first_position + rows). Sequences of a call are disjoint in rows and pages written.
struct SequenceRows {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t first_position = 0;
  // pages[i] holds positions [32 i, 32 i + 32). kNoPage where a sliding window left it behind.
  absl::Span<const uint32_t> pages;
};

// Norms each q and k head (if asked), rotates them, writes k and v to the cache, leaves rotated q in place.
struct RopeKvArgs {
  Rows q;  // [T, heads * head_dim], in and out
  Rows k;  // [T, kv_heads * head_dim]
  Rows v;  // [T, kv_heads * head_dim]
  uint32_t tokens = 0;
  uint32_t heads = 0;
  NormSpec q_norm;  // per head, weight float32 [head_dim]; none: no norm
  NormSpec k_norm;
  // float32 [rope_positions][2][rope_dims / 2]: cos, sin (rope_table.h). rope_dims 0: no rotation.
  BufferRef rope_table;
  uint32_t rope_positions = 0;
  uint32_t rope_dims = 0;  // even, <= head_dim
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  KvView kv;
};

// out[t, h, :] = softmax over the visible positions of (q . k * scale) . v. Reads K and V of all positions up
// to the row's own from the cache: RopeKvWrite of these rows comes before.
struct AttentionArgs {
  Rows q;  // [T, heads * head_dim], rotated
  uint32_t tokens = 0;
  uint32_t heads = 0;  // a multiple of kv.kv_heads
  float scale = 0;
  uint32_t sliding_window = 0;  // positions visible, the own one included; 0: all
  absl::Span<const SequenceRows> sequences;
  KvView kv;
  Rows out;  // [T, heads * head_dim]; must not overlap q
};

// Router scores to experts and weights, best first, ties to the lower expert.
struct RouterArgs {
  Rows logits;  // [T, experts]
  uint32_t tokens = 0;
  uint32_t experts = 0;
  RouterKind kind = RouterKind::kSoftmaxTopK;
  uint32_t top_k = 0;  // 1..experts
  bool norm_topk_prob = true;
  float routed_scale = 1.0f;
  BufferRef ids;      // int32 [T, top_k]
  BufferRef weights;  // float32 [T, top_k]
};

// One expert's share of a MoeExperts call: for i in [0, size(rows)), y[slots[i], :] = expert(x[rows[i], :]).
// Neurons [neuron_begin, neuron_end) only; neuron_begin is a multiple of 64, neuron_end too or the width.
// With neuron_begin > 0 the sums continue from what y holds: an expert may be computed tile by tile, in
// order.
struct ExpertWork {
  WeightView up;                     // [width, hidden]
  WeightView gate;                   // [width, hidden]
  WeightView down;                   // [width, hidden], transposed
  absl::Span<const uint32_t> rows;   // rows of x
  absl::Span<const uint32_t> slots;  // rows of y, distinct over the whole call
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;  // 0: the width
};

// All routed experts that are ready, in one region: gate-up-down fused.
struct MoeExpertsArgs {
  Rows x;  // [tokens, hidden], already normed
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  Activation activation = Activation::kSilu;
  absl::Span<const ExpertWork> experts;
  Rows y;  // [slots, hidden]; by convention slot = token * K + rank
  uint32_t slots = 0;
};

// out[t, :] = residual[t, :] + sum over r of weights[t, r] * y[t * top_k + r, :], r ascending. A rank with
// weight 0 is not read. out may be residual.
struct CombineArgs {
  Rows y;             // [T * top_k, hidden]
  BufferRef weights;  // float32 [T, top_k]
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  uint32_t hidden = 0;
  Rows residual;  // [T, hidden]
  Rows out;       // [T, hidden]
};

// What a sampler needs of each row: the best k logits (larger first, ties to the lower id) and the log of
// the sum of exp over the whole row.
struct TopLogitsArgs {
  Rows logits;  // [T, vocab]
  uint32_t tokens = 0;
  uint32_t vocab = 0;
  uint32_t k = 0;         // 1..min(vocab, 1024)
  BufferRef ids;          // int32 [T, k]
  BufferRef values;       // float32 [T, k]
  BufferRef log_sum_exp;  // float32 [T], or none
};

}  // namespace sluice

#endif  // SLUICE_KERNELS_OPS_H_
