// Arguments of the operations of a Queue (backend.h): shapes, types and requirements. Notation: T token rows,
// K ranks of the router, [a, b] row-major. All activations are float32; ARITHMETIC.md defines the results to
// the bit.
//
// Tensors are device addresses (BufferRef, Rows). Spans are host data that the call copies before it returns.
// A violated requirement is INVALID_ARGUMENT with the numbers; a combination that a backend lacks is
// UNIMPLEMENTED naming both sides. Then nothing is computed.
//
// The list of all operations is at the end; README.md lists the other places for a new one.
//
// Thread safety: plain values.
#pragma once

#include <bit>
#include <cstdint>
#include <variant>

#include "absl/types/span.h"
#include "common/base/encoding.h"
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

// RMS norm (ARITHMETIC.md 5) or layer norm over `cols` values; weight and bias: float32 [cols].
struct NormSpec {
  BufferRef weight;  // none: no norm
  float epsilon = 1e-5f;
  NormKind kind = NormKind::kRms;
  BufferRef bias;  // kLayer: float32 [cols], or none
};

// y = norm(x). May alias (y == x).
struct NormArgs {
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
  float scale = 1.0f;  // factor of the dot product with its bias
};

// y[t, r] = residual[t, r] + scale * (norm(x)[t, :] . weights[r, :] + bias[r]) for every part; all parts
// share x. One fork-join (two when many rows make packing x worth while). REQUIRES: every part has `cols`
// columns; residual only with exactly one part (it may be that part's y).
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

// The cache of one layer: `pages` pages of KvPageBytes (below) each for K and for V,
// [page][kv head][32 tokens][head_dim] (q8: and then float32 [kv head][32] scales).
struct KvView {
  KvType type = KvType::kF16;
  BufferRef k;
  BufferRef v;
  uint64_t page_stride = 0;  // bytes from page to page, a multiple of 4
  uint32_t pages = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;  // a multiple of 2
  // Values per head, at most head_dim; 0: head_dim. Less where v == k: a value is then the beginning of the K
  // row (latent attention), and nothing is stored twice. Less where v is apart: V rows of that length (a
  // multiple of 2), in pages v_page_stride bytes apart.
  uint32_t value_dim = 0;
  uint64_t v_page_stride = 0;  // a multiple of 4; 0: page_stride
};

// The rows of one sequence in a batch: batch rows [first_row, first_row + rows) hold its positions
// [first_position, first_position + rows). Sequences of a call are disjoint in rows and pages written.
struct SequenceRows {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t first_position = 0;
  // pages[i] holds positions [32 i, 32 i + 32). kNoPage if it lies before the sliding window.
  absl::Span<const uint32_t> pages;
};

// Entries of a compressed cache: entry e holds what positions [e * rate, e * rate + rate) were compressed to,
// one row of head_dim values (q8: with a float32 scale) in the page of the last of them. A page has
// EntriesPerPage(rate) rows; REQUIRES: rate divides kPageTokens, or is a multiple of it.
struct EntryView {
  KvType type = KvType::kF16;
  BufferRef base;
  uint64_t page_stride = 0;  // bytes from page to page, a multiple of 4
  uint32_t pages = 0;
  uint32_t head_dim = 0;  // a multiple of 2
  uint32_t rate = 0;      // 0: no entries
};

// The streams that a token's residual consists of (hyper-connections of DeepSeek-V4): `streams` rows of
// `hidden` values, one behind the other. Makes the input y of a block, and the factors by which StreamWrite
// adds the block's output. Factors are made of w = raw / rms(x): pre and post, one for each stream, and a
// matrix of streams^2 that Sinkhorn's iterations bring near a doubly stochastic one (ARITHMETIC.md 11).
struct StreamMixArgs {
  Rows x;    // [T, streams * hidden]
  Rows raw;  // [T, (2 + streams) * streams]: a projection of x; without iterations [T, streams]: pre alone
  BufferRef scale;  // float32 [3]: of pre, post and matrix; without iterations [1]
  BufferRef base;   // float32 [columns of raw], added after scale
  uint32_t tokens = 0;
  uint32_t streams = 0;  // 1..kMaxStreams
  uint32_t hidden = 0;
  float norm_epsilon = 0;   // of the root mean square of x
  float epsilon = 0;        // added to pre and matrix, and to the sums that divide it
  uint32_t iterations = 0;  // of columns; 0: y alone is made
  Rows y;                   // [T, hidden]: sum of pre_i x_i
  Rows factors;             // [T, (1 + streams) * streams]: post, matrix by rows; without iterations none
};
inline constexpr uint32_t kMaxStreams = 16;

// out_j = sum over i of matrix_ij x_i + post_j y, for each stream j.
struct StreamWriteArgs {
  Rows x;        // [T, streams * hidden]
  Rows y;        // [T, hidden]: a block's output
  Rows factors;  // of StreamMix
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  Rows out;  // [T, streams * hidden]; may be x
};

// One matrix per head: y[t, h, r] = weights[h * rows_per_head + r, :] . x[t, h, :] (the absorbed projections
// of latent attention). x[t, h, :] begins at x.base + (t * x.stride + h * x_head_stride) * 4, y likewise.
struct HeadMatMulArgs {
  Rows x;                      // [T, heads, weights.cols]
  uint64_t x_head_stride = 0;  // floats
  uint32_t tokens = 0;
  uint32_t heads = 0;
  WeightView weights;  // [heads * rows_per_head, cols]
  Rows y;              // [T, heads, rows_per_head]; must not overlap x
  uint64_t y_head_stride = 0;
};

// The input of a block from several streams with gates of their own (Qwen3.8): y[t, c] = mean over the
// streams of x_i[t, c] * sigmoid(gate_i[t, c]).
struct StreamMeanArgs {
  Rows x;     // [T, streams * hidden]
  Rows gate;  // [T, streams * hidden]
  uint32_t tokens = 0;
  uint32_t streams = 0;  // 1..kMaxStreams
  uint32_t hidden = 0;
  Rows y;  // [T, hidden]
};

// out_i = x_i + scale * sigmoid(gate_i) * y, for each stream i: adds a block's output to every stream.
struct StreamAddArgs {
  Rows x;     // [T, streams * hidden], or none: zeros
  Rows y;     // [T, hidden]
  Rows gate;  // [T, streams]
  float scale = 1.0f;
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  Rows out;  // [T, streams * hidden]; may be x
};

// out[t, i] = s(a), a = x_i . y_i / sqrt(hidden), s(a) the square root of |a| (at least 1e-6) with a's sign:
// how well the streams match keys, before a sigmoid.
struct StreamMatchArgs {
  Rows x;  // [T, streams * hidden]
  Rows y;  // [T, streams * hidden]
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  Rows out;  // [T, streams]
};

// x[t, c] *= f(gate[t, c / width]), f sigmoid or softplus.
struct OutputGateArgs {
  Rows x;     // [T, cols], in and out
  Rows gate;  // [T, cols / width]; none: x itself, that is SiLU, with width 1 and sigmoid
  uint32_t tokens = 0;
  uint32_t cols = 0;
  uint32_t width = 1;  // neighbouring values that share a gate: 1, or those of a head; a divisor of cols
  GateActivation activation = GateActivation::kSigmoid;
};

// x[t, c] = cap * tanh(x[t, c] / cap).
struct SoftCapArgs {
  Rows x;  // [T, cols], in and out
  uint32_t tokens = 0;
  uint32_t cols = 0;
  float cap = 0;  // > 0
};

// y[t * ranks + r, :] = weights[t * ranks + r] * x[t, :] for r < ranks: inputs of experts that the router's
// score scales. Without weights: copies, the outputs of experts that return their input.
struct ScaleRowsArgs {
  Rows x;             // [T, cols]
  BufferRef weights;  // float32 [T, ranks], or none: 1
  uint32_t tokens = 0;
  uint32_t ranks = 0;
  uint32_t cols = 0;
  Rows y;  // [T * ranks, cols]
};

// Recurrent state of one layer: two slots per sequence, before and after a step, float32
// [conv_kernel - 1][conv_cols] (oldest first), then [value_heads][key_dim][value_dim].
struct DeltaStateView {
  BufferRef base;
  uint64_t slot_stride = 0;  // bytes, a multiple of 64
  uint32_t slots = 0;
};

// Norms q and k (if requested), clips q, k and v, rotates q and k, writes k and v to the cache; q is rotated
// in place. Order: norm before rope, clip, rope, norm after rope, temperature; v: norm, clip. v may be k.
// Without v only keys are written (an indexer's); kv.v is kv.k then.
struct RopeKvWriteArgs {
  Rows q;  // [T, heads * head_dim], in and out
  Rows k;  // [T, kv_heads * head_dim]
  Rows v;  // [T, kv_heads * value_dim], or none
  uint32_t tokens = 0;
  uint32_t heads = 0;
  QkNorm qk_norm = QkNorm::kNone;
  // Weights float32 [head_dim] (kPerHead, kWeightedAfterRope) or [heads * head_dim] (kAcrossHeads);
  // kPerHeadAfterRope: epsilon only.
  NormSpec q_norm;
  NormSpec k_norm;
  bool value_norm = false;      // RMS norm without weights of each head of v, with k_norm's epsilon
  float clip = 0;               // > 0: q, k and v are clamped to +- this before rope
  float temperature_scale = 0;  // model_config.h
  uint32_t temperature_floor = 0;
  uint32_t temperature_offset = 1;
  // float32 [rope_positions][2][rope_dims / 2]: cos, sin (rope_table.h). rope_dims 0: no rotation.
  BufferRef rope_table;
  uint32_t rope_positions = 0;
  uint32_t rope_dims = 0;    // even, rope_offset + rope_dims <= head_dim
  uint32_t rope_offset = 0;  // first rotated value of a head
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  KvView kv;
};

// Rotates heads by their row's position, or back. The table is as in RopeKvWrite.
struct RopeHeadsArgs {
  Rows x;  // [T, heads * head_dim], in and out
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  BufferRef rope_table;
  uint32_t rope_positions = 0;
  uint32_t rope_dims = 0;
  uint32_t rope_offset = 0;
  bool rope_interleaved = false;
  bool back = false;
  absl::Span<const SequenceRows> sequences;
};

// Latent attention: norms the compressed kv, rotates its rope part and writes both to the cache as one K row
// of kv_rank + rope_dims values (kv: one head of that length, and no V: values are the row's first kv_rank);
// rotates the rope part of each q head and puts it after the absorbed part of q. A temperature multiplies
// both parts.
struct LatentKvWriteArgs {
  Rows q;  // [T, heads, nope_dim + rope_dims]; the rope part is read
  uint32_t nope_dim = 0;
  Rows latent;  // [T, kv_rank + rope_dims], as projected
  Rows q_out;   // [T, heads, kv_rank + rope_dims]; the last rope_dims of each head are written, with a
                // temperature all of it, in place
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t kv_rank = 0;
  NormSpec norm;  // float32 [kv_rank]
  float temperature_scale = 0;
  uint32_t temperature_floor = 0;
  uint32_t temperature_offset = 1;
  BufferRef rope_table;
  uint32_t rope_positions = 0;
  uint32_t rope_dims = 0;
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  KvView kv;  // kv_heads 1, head_dim kv_rank + rope_dims, value_dim kv_rank, v == k
};

// Compresses every `rate` positions to an entry once the last of them is there: a softmax over the positions,
// apart for each value, of gates + bias weighs `values`; then norm and rope at the first of them. With
// `overlap` rows are 2 * head_dim wide, and an entry takes the second halves of its own positions and the
// first halves of the `rate` before them, in one softmax.
//
// The rows that later entries need are kept in a state, float32 [rate or 2 * rate][values, then gates]; row
// p mod their number is that of position p. Sequences, from and to as in GatedDelta.
struct CompressArgs {
  Rows values;  // [T, width], width = head_dim, with overlap twice that
  // [T, width], and float32 [rate, width]; none: the mean of the positions, and states have values alone.
  Rows gates;
  Rows bias;
  uint32_t tokens = 0;
  bool overlap = false;
  NormSpec norm;  // RMS, float32 [head_dim]; or none
  BufferRef rope_table;
  uint32_t rope_positions = 0;
  uint32_t rope_dims = 0;
  uint32_t rope_offset = 0;
  bool rope_interleaved = false;
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;
  absl::Span<const uint32_t> to;
  DeltaStateView state;
  EntryView entries;
};

// The blocks of positions that the rows of a batch see in sparse attention: `lists` ascending lists of `top`
// blocks for each row, list l for the l-th share of the query heads. Block b has positions [b * block, b *
// block + block), of which a row sees those up to its own. Rows that see all positions (SeesAll) have lists
// that are neither written nor read.
struct ChosenBlocks {
  BufferRef blocks;    // int32 [T, lists, top]; none: every position is seen
  uint32_t lists = 0;  // a divisor of the heads, and a divisor or a multiple of the KV heads
  uint32_t top = 0;
  uint32_t block = 1;
  // Only the blocks that end at or before the row take part in the choice, of which `top` - 1 are chosen; the
  // positions behind the last of them, if there are any, are a last block that is always seen.
  bool whole = false;
};
// Number of positions up to `position` that decide how a list looks: a block that has just ended counts as
// one of those before.
inline constexpr uint32_t PlaceOf(uint32_t position, bool whole) { return whole ? position + 1 : position; }
// True if the row at `position` sees all positions, and has no list.
inline constexpr bool SeesAll(uint32_t position, uint32_t top, uint32_t block, bool whole) {
  return PlaceOf(position, whole) / block < top;
}
// Number of positions that the row at `position` sees.
inline constexpr uint32_t SeenPositions(uint32_t position, uint32_t top, uint32_t block, bool whole) {
  return SeesAll(position, top, block, whole)
             ? position + 1
             : (top - 1) * block + PlaceOf(position, whole) % block + (whole ? 0 : 1);
}

// Chooses blocks for each row by an indexer (ARITHMETIC.md 6): scores of index heads with the cached index
// keys, then the `top` blocks with the largest scores, of equal ones the lower. REQUIRES: RopeKvWrite of
// these rows' index keys before.
struct IndexSelectArgs {
  Rows q;        // [T, heads * head_dim], rotated
  Rows weights;  // [T, heads]: one list, by the weighted sum over the heads; none: a list for each head
  bool summed = false;  // without weights: one list, each head weighted by 1
  uint32_t tokens = 0;
  uint32_t heads = 0;
  float scale = 1;     // of q . k
  uint32_t local = 0;  // last blocks up to the row's own that are always chosen; >= 1 if block > 1
  absl::Span<const SequenceRows> sequences;
  KvView keys;  // one head, v == k
  // Instead of keys: one key for each block (Compress), whose rate is the block. REQUIRES: chosen.whole.
  EntryView entries;
  ChosenBlocks chosen;
};

// out[t, h, :] = softmax over the visible positions of (q . k * scale) . v. Reads K and V of all positions up
// to the row's own from the cache. REQUIRES: RopeKvWrite of these rows before.
struct AttentionArgs {
  Rows q;  // [T, heads * head_dim], rotated
  uint32_t tokens = 0;
  uint32_t heads = 0;  // a multiple of kv.kv_heads
  float scale = 0;
  uint32_t sliding_window = 0;  // number of visible positions, its own included; 0: all
  uint32_t chunk = 0;           // position p sees from p / chunk * chunk on; 0: all
  BufferRef sinks;              // float32 [heads]: scores in the softmax that have no value; or none
  ChosenBlocks chosen;          // without window and chunk
  absl::Span<const SequenceRows> sequences;
  KvView kv;
  Rows out;  // [T, heads * value_dim]; must not overlap q
};

// Attention of DeepSeek-V4: one KV head whose rows are keys and values at once, those of a window of
// positions and those of compressed entries, in one softmax with a sink. A row sees the entries whose
// positions end at or before its own, or those its list names. REQUIRES: RopeKvWrite and Compress of these
// rows before.
struct CompressedAttentionArgs {
  Rows q;  // [T, heads * head_dim], rotated
  uint32_t tokens = 0;
  uint32_t heads = 0;
  float scale = 0;
  uint32_t sliding_window = 0;  // >= 1
  BufferRef sinks;              // float32 [heads], or none
  ChosenBlocks chosen;          // of entries: block is their rate, whole; none: all entries
  absl::Span<const SequenceRows> sequences;
  KvView kv;          // one head, v == k
  EntryView entries;  // rate 0: none
  Rows out;           // [T, heads * head_dim]; must not overlap q
};

// Gated DeltaNet of a layer (Qwen3.5), or Kimi Delta Attention: causal convolution with SiLU over qkv, L2
// norms of q and k, the gated delta rule token by token, RMS norm of each head's output times silu(z), or
// sigmoid(z). conv_cols = 2 * key_heads *
// key_dim + value_heads * value_dim. A sequence whose first_position is 0 starts from a zero state and no
// slot is read. The state before a sequence's first row is in its slot of `from`, which is not changed; the
// state after its last row is written to its slot of `to`. So a repeated step computes the same.
struct GatedDeltaArgs {
  Rows qkv;    // [T, conv_cols]: q heads, k heads, v heads
  Rows z;      // [T, value_heads * value_dim]
  Rows beta;   // [T, value_heads], before sigmoid
  Rows decay;  // [T, decays], before softplus; decays: value_heads, with channel_decay [value_heads][key_dim]
  uint32_t tokens = 0;
  DeltaConfig shape;
  Rows conv;          // float32 [conv_cols, conv_kernel]
  BufferRef a_log;    // float32 [value_heads]
  BufferRef dt_bias;  // float32 [decays]
  NormSpec norm;      // float32 [value_dim]
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;  // one per sequence; no slot of `to`
  absl::Span<const uint32_t> to;    // one per sequence, distinct
  DeltaStateView state;
  Rows out;  // [T, value_heads * value_dim]
};

// Mamba-2 of a layer: causal convolution with SiLU over xbc, the selective state token by token, the output
// times silu(z), RMS norm within each group. conv_cols = heads * head_dim + 2 * groups * state. The state is
// float32 [conv_kernel - 1][conv_cols] (oldest first), then [heads][state][head_dim]; sequences, from and to
// as in GatedDelta.
struct MambaArgs {
  Rows z;    // [T, heads * head_dim]
  Rows xbc;  // [T, conv_cols]: x by head, B by group, C by group
  Rows dt;   // [T, heads], before softplus
  uint32_t tokens = 0;
  MambaConfig shape;
  Rows conv;            // float32 [conv_kernel, conv_cols]
  BufferRef conv_bias;  // float32 [conv_cols]
  BufferRef a_log;      // float32 [heads]
  BufferRef dt_bias;    // float32 [heads]
  BufferRef skip;       // float32 [heads]: D
  NormSpec norm;        // float32 [heads * head_dim]
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;  // one per sequence; no slot of `to`
  absl::Span<const uint32_t> to;    // one per sequence, distinct
  DeltaStateView state;
  Rows out;  // [T, heads * head_dim]
};

// A gated short convolution (LFM2): u = b * x, causal convolution over u without activation, c * that. Not
// gated: silu of the convolution of the rows themselves (Mamba-1). With a dilation it reads every that
// many-th row. The state is float32 [(kernel - 1) * dilation][width], the last rows of u, oldest first;
// sequences, from and to as in GatedDelta.
struct ShortConvArgs {
  Rows bcx;  // [T, 3 * width]: b, c, x; not gated: [T, width]
  uint32_t tokens = 0;
  ShortConvConfig shape;
  uint32_t dilation = 1;  // (kernel - 1) * dilation is at most 15
  bool gated = true;
  Rows conv;       // float32 [kernel, width]
  BufferRef bias;  // float32 [width], or none
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;
  absl::Span<const uint32_t> to;
  DeltaStateView state;
  Rows out;  // [T, width]
};

// The selective state of a layer (Mamba-1), token by token, and its output times silu(z). The state is
// float32 [state][channels]; sequences, from and to as in GatedDelta.
struct SelectiveScanArgs {
  Rows x;     // [T, channels], convolved
  Rows z;     // [T, channels]
  Rows step;  // [T, channels], before softplus
  Rows b;     // [T, state]
  Rows c;     // [T, state]
  uint32_t tokens = 0;
  uint32_t channels = 0;
  uint32_t state_size = 0;
  Rows a_log;      // float32 [state, channels]
  BufferRef skip;  // float32 [channels]: D
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;
  absl::Span<const uint32_t> to;
  DeltaStateView state;
  Rows out;  // [T, channels]
};

// Router scores to experts and weights, best first, ties to the lower expert. With a shared expert a rank
// follows the top_k: id `experts`, weight 1 or sigmoid(shared_logits). ranks = top_k + (shared ? 1 : 0).
struct RouterArgs {
  Rows logits;  // [T, experts]
  uint32_t tokens = 0;
  uint32_t experts = 0;
  RouterKind kind = RouterKind::kSoftmaxTopK;
  uint32_t top_k = 0;  // 1..experts
  bool norm_topk_prob = true;
  float norm_epsilon = 1e-20f;  // kSigmoidTopK with norm_topk_prob: added to the sum
  float routed_scale = 1.0f;
  BufferRef expert_scale;   // float32 [experts]: factors of the chosen experts' weights; or none
  BufferRef correction;     // float32 [experts]: added to the scores for the choice only; or none
  Rows fixed;               // [T, top_k]: the chosen experts as numbers, in ascending rank; or none
  float jitter = 0;         // kSparseMixer
  uint32_t groups = 0;      // 0: no groups; else a divisor of experts
  uint32_t top_groups = 0;  // number of groups to choose from
  GroupScore group_score = GroupScore::kMax;
  bool shared = false;
  Rows shared_logits;  // [T, 1], or none: weight 1
  // Each row keeps the number of its top_k experts that it needs (scalar_math.h): these share the weight of
  // all, the others get 0.
  bool cut = false;
  double cut_sensitivity = 0;
  double cut_limit = 0;
  BufferRef ids;      // int32 [T, ranks]
  BufferRef weights;  // float32 [T, ranks]
};

// The function of a neuron's coefficient of its two dot products: c = up_factor(u) * gate_factor(g). kSilu,
// kGelu*: u and act(g). kClampedSwiglu (GPT-OSS): 1 + clamp(u, -limit, limit), and min(g, limit) *
// sigmoid(alpha * min(g, limit)). kRelu2: u and max(g, 0); without a gate, g is u. kClampedSilu (Step-3.5):
// clamp(u, -limit, limit), and min(silu(g), limit). kLimitedSilu (DeepSeek-V4): the same, and silu(min(g,
// limit)).
struct ActivationSpec {
  Activation kind = Activation::kSilu;
  float alpha = 1.702f;
  float limit = 7.0f;
};

// The rule for the neurons of an expert that count, decided per token by the neuron's `lead` value a: |a| >=
// threshold. kUp: a = up factor (FloE Algorithm 1: gate and down rows of the others are not read). kGate: a =
// gate factor (CORM, intra-expert: up and down rows of the others are not read). kProduct: a = c (down rows
// are not read).
enum class SparsityOrder : uint8_t { kNone = 0, kUp = 1, kGate = 2, kProduct = 3 };

// One expert's share of a MoeExperts call: for i in [0, size(rows)), y[slots[i], :] = expert(x[rows[i], :]).
// Neurons [neuron_begin, neuron_end) only; neuron_begin is a multiple of 64, neuron_end too or the width.
// With neuron_begin > 0 the sums continue from y: an expert may be computed tile by tile, in order.
struct ExpertWork {
  WeightView up;                     // [width, hidden]
  WeightView gate;                   // [width, hidden]; base none: g is u
  WeightView down;                   // [width, hidden], transposed; by outputs [hidden, width]
  absl::Span<const uint32_t> rows;   // rows of x
  absl::Span<const uint32_t> slots;  // rows of y, distinct over the whole call
  uint32_t neuron_begin = 0;
  uint32_t neuron_end = 0;  // 0: the width
  BufferRef up_bias;        // float32 [width], or none
  BufferRef gate_bias;      // float32 [width], or none
  BufferRef down_bias;      // float32 [hidden], or none; added once
  SparsityOrder sparsity = SparsityOrder::kNone;
  float threshold = 0;  // >= 0
  // [size(rows), width], made by ExpertLeads for these rows, kUp and kGate only: the lead part is then not
  // read. None: computed.
  Rows lead_values;
};

// One expert's share of an ExpertLeads call.
struct LeadWork {
  WeightView lead;                  // [width, hidden], every row present
  absl::Span<const uint32_t> rows;  // rows of x
  BufferRef bias;                   // float32 [width], or none
  float threshold = 0;              // >= 0
  Rows values;                      // [size(rows), width]: row i is of x[rows[i]]
  // uint64 [(width + 63) / 64], host-visible, or none: bit j % 64 of word j / 64 is set where neuron j counts
  // for any of the rows. Bits from width on are 0.
  BufferRef active;
};

// The lead values of experts, which are factors of the coefficients, and the neurons that count by them,
// before the other parts' rows of these neurons are fetched. No value is written twice in a call.
struct ExpertLeadsArgs {
  Rows x;  // [tokens, hidden]
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  SparsityOrder order = SparsityOrder::kUp;  // or kGate
  absl::Span<const LeadWork> experts;
};

// Computes all routed experts that are ready, in one region: gate-up-down fused. With down by outputs experts
// are computed whole: neuron_begin and neuron_end name all neurons, and no part has an index list.
struct MoeExpertsArgs {
  Rows x;  // [tokens, hidden], already normed
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  absl::Span<const ExpertWork> experts;
  Rows y;  // [slots, hidden]; by convention slot = token * ranks + rank
  uint32_t slots = 0;
  // uint32 [slots], host-visible, or none: neurons that counted for each slot, added up over an expert's
  // tiles (the first tile starts at 0).
  BufferRef active;
  bool down_by_outputs = false;  // of all experts of the call
};

// MoeExperts for a router's choice that stays on the device: for row t and rank r, y[t * ranks + r, :] =
// expert ids[t, r] of x[t, :]. All experts must be resident.
struct RoutedExpertsArgs {
  Rows x;  // [tokens, hidden], already normed; by_slot: [tokens * ranks, hidden]
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  bool by_slot = false;
  ActivationSpec activation;
  BufferRef ids;      // int32 [tokens, ranks]; ids not below size(experts) are left out
  BufferRef weights;  // float32 [tokens, ranks]: a rank of weight 0 is left out; none: no rank is
  uint32_t ranks = 0;
  absl::Span<const ExpertWork> experts;  // by id, whole experts; their rows and slots are ignored
  // Calls of a queue with the same number have equal lists of experts, without index lists, so that a device
  // need not look at them again; 0: any list. A buffer of the list that is freed ends its number.
  uint64_t experts_number = 0;
  Rows y;                        // [tokens * ranks, hidden]
  BufferRef active;              // uint32 [tokens * ranks], host-visible, or none: as in MoeExperts
  bool down_by_outputs = false;  // as in MoeExperts
};

// ExpertLeads for a router's choice, for the first `top_k` of the ranks: row t * ranks + r of values and of
// active belongs to the expert ids[t, r] and the row x[t, :].
struct RoutedLeadsArgs {
  Rows x;  // [tokens, hidden], already normed
  uint32_t tokens = 0;
  uint32_t hidden = 0;
  ActivationSpec activation;
  SparsityOrder order = SparsityOrder::kUp;  // or kGate
  BufferRef ids;                             // int32 [tokens, ranks]
  BufferRef weights;                         // as in RoutedExperts
  uint32_t ranks = 0;
  uint32_t top_k = 0;
  absl::Span<const LeadWork> experts;  // by id: lead, bias and threshold; all as wide as the first
  Rows values;                         // [tokens * ranks, width]
  BufferRef active;                    // uint64 [tokens * ranks][(width + 63) / 64], host-visible
};

// out[t, :] = gain * (residual[t, :] + scale * sum over r of weights[t, r] * y[t * top_k + r, :]), r
// ascending. A rank with weight 0 is not read. out may be residual, and y with one rank.
struct CombineArgs {
  Rows y;             // [T * top_k, hidden]
  BufferRef weights;  // float32 [T, top_k]; none: 1 everywhere
  uint32_t tokens = 0;
  uint32_t top_k = 0;  // ranks
  uint32_t hidden = 0;
  Rows residual;  // [T, hidden]; none: zeros
  Rows out;       // [T, hidden]
  float scale = 1.0f;
  BufferRef gain;  // float32 [1]; none: 1
};

// Returns the sampler's input for each row: the best k logits (larger first, ties to the lower id) and the
// log of the sum of exp over the whole row.
struct TopLogitsArgs {
  Rows logits;  // [T, vocab]
  uint32_t tokens = 0;
  uint32_t vocab = 0;
  uint32_t k = 0;         // 1..min(vocab, 1024)
  BufferRef ids;          // int32 [T, k]
  BufferRef values;       // float32 [T, k]
  BufferRef log_sum_exp;  // float32 [T], or none
};

// The list of operations: OP(Name) has the arguments NameArgs and is the method Name of a Queue. Code common
// to all is generated from it: a queue's methods, and the functions that a device must have.
#define SLUICE_OPERATIONS(OP) \
  OP(Embed)                   \
  OP(Norm)                    \
  OP(MatMul)                  \
  OP(HeadMatMul)              \
  OP(OutputGate)              \
  OP(SoftCap)                 \
  OP(ScaleRows)               \
  OP(RopeKvWrite)             \
  OP(LatentKvWrite)           \
  OP(IndexSelect)             \
  OP(Attention)               \
  OP(RopeHeads)               \
  OP(StreamMix)               \
  OP(StreamWrite)             \
  OP(StreamMean)              \
  OP(StreamAdd)               \
  OP(StreamMatch)             \
  OP(Compress)                \
  OP(CompressedAttention)     \
  OP(GatedDelta)              \
  OP(Mamba)                   \
  OP(ShortConv)               \
  OP(SelectiveScan)           \
  OP(Router)                  \
  OP(ExpertLeads)             \
  OP(MoeExperts)              \
  OP(RoutedExperts)           \
  OP(RoutedLeads)             \
  OP(Combine)                 \
  OP(TopLogits)

template <class, class... Args>
using OperationOf = std::variant<const Args*...>;
#define SLUICE_OPERATION_ARGS(Name) , Name##Args
// Any operation, as a pointer to its arguments; valid during the call that receives it.
using Operation = OperationOf<void SLUICE_OPERATIONS(SLUICE_OPERATION_ARGS)>;
#undef SLUICE_OPERATION_ARGS

// Returns an operation's name for error messages.
#define SLUICE_OPERATION_NAME(Name) \
  inline constexpr const char* NameOf(const Name##Args&) { return #Name; }
SLUICE_OPERATIONS(SLUICE_OPERATION_NAME)
#undef SLUICE_OPERATION_NAME

// Layout of a page of the KV cache, for engines that size caches and for kernels. One page of one layer, of K
// or of V: values [kv head][32 tokens][head_dim] in the cache's type; q8 has codes (int8) there, followed by
// float32 scales [kv head][32 tokens].
//
// Thread safety: pure functions.

inline constexpr uint32_t KvValueBytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kF16 ? 2 : 1;
}

// Bytes of one (token, head) row of values.
inline constexpr uint64_t KvRowBytes(KvType type, uint32_t head_dim) {
  return uint64_t{head_dim} * KvValueBytes(type);
}

// Offset of a row of values in its page.
inline constexpr uint64_t KvRowOffset(KvType type, uint32_t head_dim, uint32_t kv_head, uint32_t token) {
  return (uint64_t{kv_head} * kPageTokens + token) * KvRowBytes(type, head_dim);
}

// Offset of a row's scale in its page (q8 only), a multiple of 4.
inline constexpr uint64_t KvScaleOffset(uint32_t kv_heads, uint32_t head_dim, uint32_t kv_head,
                                        uint32_t token) {
  return uint64_t{kv_heads} * kPageTokens * head_dim + (uint64_t{kv_head} * kPageTokens + token) * 4;
}

// Layout of a page of a compressed cache: values [row][head_dim], then with q8 float32 scales [row].
inline constexpr uint32_t EntriesPerPage(uint32_t rate) {
  return rate < kPageTokens ? kPageTokens / rate : 1;
}
inline constexpr uint64_t EntryPageBytes(KvType type, uint32_t head_dim, uint32_t rate) {
  const uint64_t values = (EntriesPerPage(rate) * KvRowBytes(type, head_dim) + 3) / 4 * 4;
  return values + (type == KvType::kQ8 ? 4 * uint64_t{EntriesPerPage(rate)} : 0);
}
inline constexpr uint64_t EntryScaleOffset(uint32_t head_dim, uint32_t rate, uint32_t row) {
  return (uint64_t{EntriesPerPage(rate)} * head_dim + 3) / 4 * 4 + 4 * uint64_t{row};
}

// Bytes of one page of K (and of V, if there is V).
inline constexpr uint64_t KvPageBytes(KvType type, uint32_t kv_heads, uint32_t head_dim) {
  return uint64_t{kv_heads} * kPageTokens * (KvRowBytes(type, head_dim) + (type == KvType::kQ8 ? 4 : 0));
}

// Bytes of a page of K and its page of V; of K alone where values lie within K rows (value_dim < head_dim;
// 0: head_dim).
inline constexpr uint64_t KvPairBytes(KvType type, uint32_t kv_heads, uint32_t head_dim, uint32_t value_dim) {
  return (value_dim == 0 || value_dim == head_dim ? 2 : 1) * KvPageBytes(type, kv_heads, head_dim);
}

// The rule for computing a masked expert densely. Leaving rows out saves memory traffic and multiplications,
// but the kept rows are read by lists, row by row, token by token: with many tokens, or with few neurons left
// out, reading everything once is faster. The break-even point depends on the machine, the shapes and the
// encodings, so it is measured (sparse_profile.h) and set in a backend.
//
// Only the time depends on it: a masked neuron has coefficient 0 either way, so the result has the same bits
// and no token depends on its batch.
//
// Thread safety: plain values.

struct SparseSwitch {
  // Entry i is for experts with up to 2^i tokens in the call; the last one also for all above.
  static constexpr uint32_t kBatches = 8;
  // The share of coefficients kept from which on all rows are read, 0..1. 0: always; 1: only if all are kept.
  float dense_above[kBatches] = {0.75f, 0.75f, 0.75f, 0.7f, 0.6f, 0.5f, 0.4f, 0.2f};

  float DenseAbove(uint64_t tokens) const {
    const uint32_t i = static_cast<uint32_t>(std::bit_width(tokens <= 1 ? uint64_t{0} : tokens - 1));
    return dense_above[i < kBatches ? i : kBatches - 1];
  }
  bool operator==(const SparseSwitch&) const = default;
};

// A switch for experts of one kind.
struct SparseSwitchEntry {
  SparsityOrder order = SparsityOrder::kNone;
  EncodingDescriptor up, gate, down;
  SparseSwitch at;
};

// Maximum number of entries in a backend.
inline constexpr uint32_t kMaxSparseSwitches = 32;

}  // namespace sluice
