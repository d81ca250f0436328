// The leaf kernels of the host backend, one table per instruction set: single-threaded functions over rows in
// memory. Their callers do not depend on the registers. Their arithmetic is
// ARITHMETIC.md's; each comment names the section.
//
// Thread safety: the functions are pure but for the memory that their arguments name.
#pragma once

#include <cstdint>

#include "common/base/encoding.h"
#include "kernels/cpu/row_fetch.h"
#include "kernels/ops.h"
#include "pack/row_layout.h"

namespace sluice::cpu {

// The storage type of a row's values, as kernels see it.
enum class RowKind : uint8_t { kBf16 = 0, kF16 = 1, kF32 = 2 };
inline constexpr int kRowKinds = 3;

// Prefetching of a kernel that reads row after row; none by default.
struct RowPrefetch {
  uint32_t bytes = 0;  // distance in memory
  // Alternative: distance in rows of the list `w`, for rows that do not follow each other in memory.
  // `listed`: rows in the list, which may include rows after those that the call computes.
  uint32_t rows = 0;
  uint32_t listed = 0;
  bool at_once = false;  // several rows are read at once, not one after the other
  // Rows 2i of the list are one stream and rows 2i + 1 another one; `rows` is even.
  bool two_streams = false;
};

inline constexpr uint32_t kMaxRowsAhead = 12;  // even

// Prefetch distance in bytes of rows that follow each other in memory: two pages.
inline constexpr uint32_t kStreamAhead = 8 << 10;

// Prefetch distance in bytes, in each row, of weighted sums by panels.
inline constexpr uint32_t kPanelAhead = 256;

// y[t][first + r] = dot(x[t], w[r]) for t < tokens, r < rows (section 2 a). Reads exactly `cols` values of
// each. Rows are read one after the other: one sequential stream is what memory serves best.
struct DotCall {
  const uint8_t* const* w = nullptr;
  const float* const* x = nullptr;
  float* const* y = nullptr;
  uint32_t rows = 0;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  uint32_t first = 0;
  RowPrefetch prefetch;
};

// x in panels of gemm_tokens rows for GemmCall; missing rows of the last panel are zero.
struct PackCall {
  const float* const* x = nullptr;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  float* packed = nullptr;  // PackedFloats
};

// As DotCall, for many tokens: weights are converted once per tile and used for all of them.
struct GemmCall {
  const uint8_t* const* w = nullptr;
  const float* packed = nullptr;
  float* const* y = nullptr;
  uint32_t rows = 0;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  uint32_t first = 0;
  float* scratch = nullptr;  // GemmScratchFloats(cols)
};
inline constexpr uint32_t kGemmRows = 32;     // rows converted at a time
inline constexpr uint32_t kLaneCount = 32;    // lanes of a lane sum, ARITHMETIC.md 0
inline constexpr uint32_t kGemmChunk = 1024;  // columns; a pass over a chunk of panels fits the L1 cache
inline constexpr uint32_t kMaxTileTokens = 6;

// Quantized encodings, as kernels see them.
enum class QuantKind : uint8_t {
  kQ8 = 0,
  kQ4 = 1,
  kQ3 = 2,
  kQ2 = 3,
  kMxfp4 = 4,
  kQ5 = 5,
  kQ6 = 6,
  kIq4 = 7,
  kFile = 8  // file blocks, expanded and multiplied as kQ8 (kernels/cpu/file_rows.h)
};
inline constexpr int kQuantKinds = 9;

// Layout of a quantized row (pack/row_layout.h), computed once for all rows of a call by ShapeOf
// (below).
struct RowShape {
  Encoding encoding = Encoding::kInvalid;
  uint32_t cols = 0;
  uint32_t group = 0;
  uint32_t groups = 0;
  RowMeta meta = RowMeta::kScaleZero;
  float zero = 0;              // kScale, kSuperScale
  bool float_scales = false;   // kScale: float32 scales, of expanded file blocks
  uint32_t super_group = 0;    // 0: f16 scales and zeros (mxfp4: exponents)
  uint64_t super_inverse = 0;  // g * super_inverse >> 32 = g / super_group
  uint32_t high_plane = 0;     // byte offsets in the row: the second plane of codes,
  uint32_t scales = 0;
  uint32_t zeros = 0;  // or mins
  uint32_t super_groups = 0;
  uint32_t bytes = 0;  // bytes of the whole row
};

// Rows rounded to int8 (section 2 b): codes [cols rounded up to kCodeAlign] zero-padded, then per group its
// scale and its sum as float; both padded with zeros to a multiple of 8 groups.
struct QuantRow {
  const int8_t* codes = nullptr;
  const float* scales = nullptr;
  const float* sums = nullptr;
  // Groups of 16, 32, 64 and 128: the codes again, in the orders in which they are multiplied with codes of
  // weights as bytes (quant_dot-inl.h): three times as many.
  const int8_t* woven = nullptr;
};
struct QuantizeCall {
  const float* x = nullptr;
  uint32_t cols = 0;
  uint32_t group = 0;
  int8_t* codes = nullptr;
  float* scales = nullptr;
  float* sums = nullptr;
  int8_t* woven = nullptr;  // nullptr: not needed
};
inline constexpr uint32_t kCodeAlign = 256;  // codes in a block of the narrowest plane

// Rounded rows packed side by side for quant_gemm, in the instruction set's layout.
struct QuantPackCall {
  const QuantRow* x = nullptr;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  uint32_t group = 0;
  int8_t* packed = nullptr;  // QuantPackedBytes, aligned to 64 bytes
};

// As DotCall for quantized rows (section 2 b); x rounded with the rows' group.
struct QuantDotCall {
  RowShape shape;
  const uint8_t* const* w = nullptr;
  const QuantRow* x = nullptr;
  float* const* y = nullptr;
  uint32_t rows = 0;
  uint32_t tokens = 0;
  uint32_t first = 0;
  RowPrefetch prefetch;
  RowFetch* fetch = nullptr;  // other rows to fetch meanwhile, `fetch_lines` lines a row; nullptr: none
  uint32_t fetch_lines = 0;
  const int8_t* packed = nullptr;  // quant_gemm only, aligned to 64 bytes: x packed by pack_quant
  // Aligned to 64 bytes: quant_gemm has QuantGemmFloats(cols); kFile has FileRowFloats(cols) behind them, of
  // quant_dot too.
  float* scratch = nullptr;
};

// One block of neurons into output columns [column, column + cols): s = sum over j < neurons of
// c[t][j] * w[j] (section 3), then y[t] = s, or y[t] + s if `add`. c[t] are `neurons` coefficients; w[j] is
// the address of column 0. y[t] is the address of column `column`.
struct DownCall {
  const uint8_t* const* w = nullptr;
  const float* const* c = nullptr;
  float* const* y = nullptr;
  uint32_t neurons = 0;  // at most 256
  uint32_t tokens = 0;
  uint32_t column = 0;
  uint32_t cols = 0;
  bool add = false;
  RowPrefetch prefetch;
  float* scratch = nullptr;  // DownScratchFloats(cols)
};

// As DownCall for quantized rows, all columns of the row.
struct QuantDownCall {
  RowShape shape;
  const uint8_t* const* w = nullptr;
  const float* const* c = nullptr;
  float* const* y = nullptr;
  uint32_t neurons = 0;  // at most 64
  uint32_t tokens = 0;
  bool add = false;
  RowPrefetch prefetch;
  bool in_halves = false;  // rows are read in turn from both halves of the list, as they were fetched
  // Other rows to fetch meanwhile, `fetch_lines` lines a row; nullptr: none.
  RowFetch* fetch = nullptr;
  uint32_t fetch_lines = 0;
  uint32_t* scratch = nullptr;  // QuantDownWords(cols), 4-byte words, aligned to 32 bytes
};

// One span of attention for some queries of one KV head (section 6).
struct SpanCall {
  const uint8_t* const* k = nullptr;  // the rows of positions [first, first + count), in order
  const uint8_t* const* v = nullptr;
  const float* k_scales = nullptr;  // q8: count scales each, else nullptr
  const float* v_scales = nullptr;
  KvType type = KvType::kF16;
  uint32_t first = 0;  // position of k[0]
  uint32_t count = 0;  // at most kSpanTokens
  uint32_t head_dim = 0;
  uint32_t value_dim = 0;
  float scale = 0;
  uint32_t queries = 0;  // at most kSpanQueries
  const float* const* q = nullptr;
  // Query i sees positions [low[i], high[i]], a part of [first, first + count); neither decreases from i to i
  // + 1.
  const uint32_t* low = nullptr;
  const uint32_t* high = nullptr;
  float* m = nullptr;             // [queries]: largest score
  float* l = nullptr;             // [queries]: sum of exponentials
  float* const* o = nullptr;      // [queries]: weighted sums, value_dim each
  float* scratch = nullptr;       // kSpanScratchFloats
  float* down_scratch = nullptr;  // DownScratchFloats(value_dim)
  float* gemm_scratch = nullptr;  // GemmScratchFloats(head_dim)
};
inline constexpr uint32_t kSpanQueries = 64;
inline constexpr uint32_t kSpanScratchFloats = kSpanQueries * (kSpanTokens + kLaneCount);

// Scores of a span's positions by the index heads of some rows (section 6). The fields of `keys` for K, first
// (the beginning of a span), count, queries ([rows][heads]), q, low, high, scale and the scratch are used.
struct IndexScoresCall {
  SpanCall keys;
  uint32_t rows = 0;
  uint32_t heads = 0;
  const float* const* weights = nullptr;  // [rows], of `heads` each; nullptr: the heads' scores stay apart
  bool first_heads = true;                // else the heads' sums continue from `scores`
  // [rows] or [rows * heads]: kSpanTokens floats, written for all positions of the call and some behind them.
  float* const* scores = nullptr;
};

// y[i] = the gate's or the up's factor of a neuron's coefficient (section 3), from the dot product x[i] and
// its bias (nullptr: none). y may be x.
struct FactorCall {
  ActivationSpec activation;
  const float* x = nullptr;
  const float* bias = nullptr;
  uint32_t n = 0;
  float* y = nullptr;
};

// out = gain * (residual + scale * sum of weights[r] * rows[r * stride ..]) over the ranks (section 3); a
// rank with weight 0 is not read. weights may be nullptr: 1 everywhere; residual and gain too: zeros, and no
// product. out may be residual, and rows with one rank.
struct CombineRowsCall {
  const float* rows = nullptr;
  uint64_t stride = 0;
  const float* weights = nullptr;
  uint32_t ranks = 0;
  float scale = 1;
  const float* residual = nullptr;
  const float* gain = nullptr;
  uint32_t cols = 0;
  float* out = nullptr;
};

// One token of one head of the gated delta rule (section 9). `to` may be `from`.
struct DeltaStepCall {
  const float* from = nullptr;  // [key_dim][value_dim]
  float* to = nullptr;
  const float* q = nullptr;      // [key_dim], normed and scaled
  const float* k = nullptr;      // [key_dim], normed
  const float* v = nullptr;      // [value_dim]
  const float* decay = nullptr;  // of row i of the state: decay[i * decay_step]
  uint32_t decay_step = 0;       // 0 or 1
  float beta = 0;
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  float* o = nullptr;  // [value_dim]
};

// One token of one head of Mamba-2's state (section 10). `to` may be `from`.
struct MambaStepCall {
  const float* from = nullptr;  // [state][head_dim]
  float* to = nullptr;
  const float* x = nullptr;  // [head_dim]
  const float* b = nullptr;  // [state]
  const float* c = nullptr;  // [state]
  float decay = 0;
  float step = 0;
  float skip = 0;
  uint32_t state = 0;
  uint32_t head_dim = 0;
  float* y = nullptr;  // [head_dim]
};

// One token of some channels of Mamba-1's state (section 10). `to` may be `from`.
struct SelectiveStepCall {
  const float* from = nullptr;  // [state][channels], as the next two: first channel of the call
  float* to = nullptr;
  const float* a_log = nullptr;
  uint64_t from_stride = 0;  // floats; of `to` too
  uint64_t a_stride = 0;
  const float* x = nullptr;     // [count]
  const float* step = nullptr;  // [count], > 0
  const float* skip = nullptr;  // [count]
  const float* b = nullptr;     // [state]
  const float* c = nullptr;     // [state]
  uint32_t state = 0;
  uint32_t count = 0;
  float* y = nullptr;  // [count]
};

// y = the sum of rows[j] * weights[j] over the kernel_size rows (sections 9 and 10), from the bias (nullptr:
// +0) on.
struct ConvolveCall {
  const float* const* rows = nullptr;
  const float* weights = nullptr;
  uint64_t stride = 0;  // floats from one row's weights to the next
  const float* bias = nullptr;
  uint32_t kernel_size = 0;
  uint32_t cols = 0;
  float* y = nullptr;
};

struct KernelTable {
  const char* name = "";
  uint32_t gemm_tokens = 0;  // rows of a packed panel
  uint32_t dot_tokens = 0;   // tokens that share one pass of `dot` over a row

  void (*dot[kRowKinds])(const DotCall&) = {};
  void (*pack)(const PackCall&) = nullptr;
  void (*gemm[kRowKinds])(const GemmCall&) = {};
  void (*quantize)(const QuantizeCall&) = nullptr;
  void (*quant_dot[kQuantKinds])(const QuantDotCall&) = {};
  void (*pack_quant)(const QuantPackCall&) = nullptr;
  void (*quant_gemm[kQuantKinds])(const QuantDotCall&) = {};  // same as quant_dot, for many tokens
  void (*down[kRowKinds])(const DownCall&) = {};
  // True if quant_down is faster where rows are fetched and read in turn from both halves (row_fetch.h).
  bool in_halves[kQuantKinds] = {};
  void (*quant_down[kQuantKinds])(const QuantDownCall&) = {};  // null for kQ5, kQ6, kIq4, kFile
  void (*span)(const SpanCall&) = nullptr;
  void (*index_scores)(const IndexScoresCall&) = nullptr;

  // y = norm(x) by section 5; y may be x. rms_norm without a weight, layer_norm without a bias: nullptr.
  void (*rms_norm)(const float* x, uint32_t cols, const float* weight, float epsilon, float* y) = nullptr;
  void (*layer_norm)(const float* x, uint32_t cols, const float* weight, const float* bias, float epsilon,
                     float* y) = nullptr;
  // x = (x / |x|) * scale by section 9.
  void (*l2_norm)(float* x, uint32_t cols, float scale) = nullptr;
  void (*convolve)(const ConvolveCall&) = nullptr;
  void (*convolve_silu)(const ConvolveCall&) = nullptr;  // convolve, then silu
  void (*delta_step)(const DeltaStepCall&) = nullptr;
  void (*mamba_step)(const MambaStepCall&) = nullptr;
  void (*selective_step)(const SelectiveStepCall&) = nullptr;
  // x[i] = x[i] within +- limit.
  void (*clip)(float* x, uint32_t n, float limit) = nullptr;
  void (*gate_factor)(const FactorCall&) = nullptr;
  void (*up_factor)(const FactorCall&) = nullptr;
  // c[i] = a[i] * b[i]; c may be either.
  void (*multiply)(const float* a, const float* b, uint32_t n, float* c) = nullptr;
  // A block of neurons as 64 bits. Bit j, j < n: not |lead[j]| < threshold. All four read 64 values and write
  // no more than 64.
  uint64_t (*keep_mask)(const float* lead, uint32_t n, float threshold) = nullptr;
  // out[j] = values[j] where bit j is set, else +0. out may be values.
  void (*select_kept)(const float* values, uint64_t mask, float* out) = nullptr;
  // The values whose bits are set, in order.
  void (*compress_kept)(const float* values, uint64_t mask, float* out) = nullptr;
  // The numbers of the set bits, ascending; returns how many.
  uint32_t (*kept_indices)(uint64_t mask, uint32_t* out) = nullptr;
  // y[i] = scale * value i of the row.
  void (*decode[kRowKinds])(const uint8_t* row, uint32_t cols, float scale, float* y) = {};
  // Decodes quantized rows: y[i] = scale * ((code - zero) * scale of the group).
  void (*quant_decode[kQuantKinds])(const RowShape& shape, const uint8_t* row, float scale, float* y) = {};
  // y[i] = residual[i] + scale * (x[i] + bias[i]); bias and residual may be nullptr. y may be any of them.
  void (*add)(const float* x, const float* bias, float scale, const float* residual, uint32_t n,
              float* y) = nullptr;
  // y[i] = sigmoid(x[i]); y may be x.
  void (*sigmoid)(const float* x, uint32_t n, float* y) = nullptr;
  // x[i] = cap * tanh(x[i] / cap) by section 7.
  void (*soft_cap)(float* x, uint32_t n, float cap) = nullptr;
  // x[i] = x[i] * sigmoid(gate[i]).
  void (*sigmoid_mul)(const float* gate, uint32_t n, float* x) = nullptr;
  // y[i] = y[i] + s[i].
  void (*accumulate)(const float* s, uint32_t n, float* y) = nullptr;
  void (*combine)(const CombineRowsCall&) = nullptr;
  // e[i] = exp(x[i] - m); returns their lane sum. e may be x, or nullptr if only the sum is wanted.
  float (*exp_sum)(const float* x, float m, uint32_t n, float* e) = nullptr;
  // y[i] = fma(x[i], b, y[i] * a).
  void (*scale_add)(const float* x, float b, float a, uint32_t n, float* y) = nullptr;
  // y[i] = x[i] / divisor.
  void (*divide)(const float* x, float divisor, uint32_t n, float* y) = nullptr;
  // The largest of n >= 1 values.
  float (*largest)(const float* x, uint32_t n) = nullptr;
  // Reads every byte of [p, p + bytes) with the widest loads: 1 or 4 streams; `prefetch` bytes ahead, 0:
  // none. bytes: a multiple of 1024. The result depends on all bytes, so that no read is optimized away.
  uint64_t (*read)(const uint8_t* p, uint64_t bytes, uint32_t streams, uint32_t prefetch) = nullptr;
  // Rotates pairs of a head by cos[half], sin[half] (section 6).
  void (*rope)(float* head, const float* cos, const float* sin, uint32_t half, bool interleaved) = nullptr;
  // Writes one head's values in the cache's type; returns the scale (q8; else 1).
  float (*store_kv)(KvType type, const float* values, uint32_t head_dim, uint8_t* row) = nullptr;
};

inline constexpr uint32_t RoundUp(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
inline constexpr uint64_t PackedFloats(uint32_t tokens, uint32_t cols, uint32_t gemm_tokens) {
  return uint64_t{RoundUp(tokens, gemm_tokens)} * RoundUp(cols, kLaneCount);
}
// Room for converted rows, and the lanes for each dot of a tile.
inline constexpr uint64_t GemmScratchFloats(uint32_t cols) {
  return uint64_t{kGemmRows} * (RoundUp(cols, kLaneCount) + kMaxTileTokens * kLaneCount);
}
// Room for converted rows, or two rows of sums.
inline constexpr uint64_t DownScratchFloats(uint32_t cols) {
  return cols > 8192 ? uint64_t{2} * cols : uint64_t{64} * 256;
}
// Maximum number of tokens worth summing in one call with quantized rows.
inline constexpr uint32_t kManyDownTokens = 48;
// Room for many tokens: codes of 64 neurons and 128 columns; for sixteen groups each row's scales and zeros,
// and each token's coefficients in fours, a scale and two sums. Plus one line.
inline constexpr uint64_t kManyDownWords = 8 * 16 * 16 + 2 * 64 * 16 + kManyDownTokens * 16 * (16 + 3) + 16;

// Room for codes of 64 neurons and two more pairs, a scale and a sum for each of the smallest groups (twice
// as many codes for larger ones); int32 sums of the columns, and two of 16 bits. Plus the room for many
// tokens.
inline constexpr uint64_t QuantDownWords(uint32_t cols) {
  return uint64_t{36} * (RoundUp(RoundUp(cols, 16) / 16, 8) + 16) + 2 * RoundUp(cols, kCodeAlign) +
         kCodeAlign + kManyDownWords;
}

// Room for codes of 32 rows in fours, and a scale and a zero of each of their smallest groups.
inline constexpr uint64_t QuantGemmFloats(uint32_t cols) {
  return 32 * (uint64_t{RoundUp(cols, kCodeAlign / 2)} / 4 + 2 * RoundUp((cols + 15) / 16, 8));
}
// Room for expanded rows of file blocks.
inline constexpr uint32_t kMaxExpandedRows = 32;
inline constexpr uint64_t FileRowFloats(uint32_t cols) {
  return uint64_t{kMaxExpandedRows} * (RoundUp(cols, 64) / 4 + RoundUp((cols + 15) / 16, 16));
}
// Room for codes, and a scale and a sum for each of the smallest groups; tokens rounded up to a multiple of
// twelve.
inline constexpr uint64_t QuantPackedBytes(uint32_t tokens, uint32_t cols) {
  return uint64_t{RoundUp(tokens, 12)} * (RoundUp(cols, kCodeAlign) + 8 * RoundUp((cols + 15) / 16, 8) + 64);
}

const KernelTable& Avx2Kernels();
const KernelTable& Avx2VnniKernels();
const KernelTable& Avx512Kernels();
const KernelTable& AmxKernels();

// Encodings as indices of the kernel table, and the layout of their rows.
//
// Thread safety: pure functions.

// REQUIRES bf16, f16 or f32.
inline int RowKindOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kBf16:
      return static_cast<int>(RowKind::kBf16);
    case Encoding::kF16:
      return static_cast<int>(RowKind::kF16);
    default:
      return static_cast<int>(RowKind::kF32);
  }
}

// The kind by the bits of codes; the groups' layout is in RowShape. REQUIRES a quantized encoding.
inline int QuantKindOf(Encoding encoding) {
  const RowTraits traits = TraitsOf(encoding);
  QuantKind kind = QuantKind::kQ4;
  if (traits.meta == RowMeta::kFileBlock) {
    kind = QuantKind::kFile;
  } else if (encoding == Encoding::kMxfp4) {
    kind = QuantKind::kMxfp4;
  } else if (IsIq4(encoding)) {
    kind = QuantKind::kIq4;
  } else if (traits.low_bits == 8) {
    kind = QuantKind::kQ8;
  } else if (traits.low_bits == 2) {
    kind = traits.high_bits == 1 ? QuantKind::kQ3 : QuantKind::kQ2;
  } else if (traits.high_bits != 0) {
    kind = traits.high_bits == 1 ? QuantKind::kQ5 : QuantKind::kQ6;
  }
  return static_cast<int>(kind);
}

// REQUIRES rows below 4 GiB. For rows that are not quantized only cols and bytes are set.
inline RowShape ShapeOf(const EncodingDescriptor& d, uint32_t cols) {
  RowShape shape;
  shape.encoding = d.encoding;
  shape.cols = cols;
  shape.group = d.group;
  shape.groups = static_cast<uint32_t>(GroupsPerRow(d, cols));
  shape.meta = TraitsOf(d.encoding).meta;
  shape.zero = static_cast<float>(TraitsOf(d.encoding).zero);
  shape.super_group = d.super_group;
  // Rounded up; exact below 2^24 groups, as super-groups are at most 256.
  shape.super_inverse = d.super_group == 0 ? 0 : ((uint64_t{1} << 32) + d.super_group - 1) / d.super_group;
  shape.high_plane = static_cast<uint32_t>(HighPlaneOffset(d, cols));
  shape.scales = static_cast<uint32_t>(ScaleOffset(d, cols));
  shape.zeros = static_cast<uint32_t>(ZeroOffset(d, cols));
  shape.super_groups = static_cast<uint32_t>(SuperGroupOffset(d, cols));
  shape.bytes = static_cast<uint32_t>(RowBytes(d, cols));
  return shape;
}

}  // namespace sluice::cpu

// Compiles a region of code for an instruction set without compiler flags for the file: functions of headers
// included before keep the base instruction set, so that the linker never picks an AVX-512 copy of them for a
// CPU without it. Everything between SLUICE_BEGIN_ISA and SLUICE_END_ISA must be in a namespace of its own.
//
// Thread safety: macros.

#define SLUICE_PRAGMA(text) _Pragma(#text)

#if defined(__clang__)
#define SLUICE_BEGIN_ISA(features) \
  SLUICE_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SLUICE_END_ISA SLUICE_PRAGMA(clang attribute pop)
#else
#define SLUICE_BEGIN_ISA(features) SLUICE_PRAGMA(GCC push_options) SLUICE_PRAGMA(GCC target(features))
#define SLUICE_END_ISA SLUICE_PRAGMA(GCC pop_options)
#endif
