#include "kernels/cpu/row_lists.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/expert_calls.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
namespace {

// True for group sizes that are multiplied by bytes.
bool IsWoven(uint32_t group) { return std::has_single_bit(group); }
constexpr uint32_t kOrders = 3;

}  // namespace

absl::Status RoundedForm::Reserve(uint64_t rows, uint32_t cols, bool woven, Scratch* scratch) {
  // A line more than a power of two: the same column of many tokens' rows is read in turn, and would
  // otherwise fall into a few sets of the first-level cache.
  code_stride_ = RoundUp(cols, kCodeAlign) + 64;
  group_stride_ = RoundUp(RoundUp(cols, 16) / 16, 8) + 16;
  RETURN_IF_ERROR(scratch->Reserve(rows * code_stride_, "rounded rows", &codes_));
  if (woven) {
    RETURN_IF_ERROR(scratch->Reserve(kOrders * rows * code_stride_, "woven rounded rows", &woven_));
  }
  RETURN_IF_ERROR(scratch->Reserve(rows * group_stride_, "scales of rounded rows", &scales_));
  return scratch->Reserve(rows * group_stride_, "sums of rounded rows", &sums_);
}

void RoundedForm::Round(const KernelTable& kernels, const float* x, uint32_t cols, uint32_t group,
                        uint32_t i) const {
  QuantizeCall call;
  call.x = x;
  call.cols = cols;
  call.group = group;
  call.codes = codes_ + i * code_stride_;
  call.scales = scales_ + i * group_stride_;
  call.sums = sums_ + i * group_stride_;
  call.woven = IsWoven(group) ? woven_ + kOrders * i * code_stride_ : nullptr;
  kernels.quantize(call);
}

QuantRow RoundedForm::Row(uint32_t i) const {
  return {codes_ + i * code_stride_, scales_ + i * group_stride_, sums_ + i * group_stride_,
          woven_ == nullptr ? nullptr : woven_ + kOrders * i * code_stride_};
}

absl::Status RoundedRows::Reserve(uint32_t max_tokens, uint32_t max_cols, Scratch* scratch) {
  for (uint32_t i = 0; i < kForms; ++i) {
    RETURN_IF_ERROR(forms_[i].Reserve(max_tokens, max_cols, IsWoven((i + 1) * 16), scratch));
  }
  own_.resize(tiles_.threads());
  for (RoundedForm& form : own_) {
    RETURN_IF_ERROR(form.Reserve(kOwnRows, max_cols, /*woven=*/true, scratch));
  }
  return absl::OkStatus();
}

void RoundedRows::RequestForm(const EncodingDescriptor& encoding) {
  if (IsQuantized(encoding.encoding)) {
    requested_[encoding.group / 16 - 1] = true;
  }
}

void RoundedRows::Make(const float* const* x, uint32_t tokens, uint32_t cols) {
  ++generation_;
  for (uint32_t i = 0; i < kForms; ++i) {
    if (!requested_[i]) {
      continue;
    }
    requested_[i] = false;
    tiles_.Run(tokens, uint64_t{tokens} * cols * 4,
               [&](uint32_t t, uint32_t) { forms_[i].Round(kernels_, x[t], cols, (i + 1) * 16, t); });
  }
}

namespace {

// Bytes of a tile's weights for few tokens: long enough to stream, short enough to share evenly.
constexpr uint64_t kTileBytes = 128 << 10;

}  // namespace

uint32_t RowsOfTile(const CallWeights& weights, bool packed) {
  if (packed) {
    return kGemmRows;
  }
  const uint64_t rows = kTileBytes / std::max<uint64_t>(weights.stride, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows / 8 * 8, 8, kNeuronBlock));
}

RowTile TileOf(const CallWeights& weights, uint32_t number, uint32_t tile_rows) {
  RowTile tile;
  tile.row = number * tile_rows;
  tile.rows = std::min(tile_rows, weights.rows - tile.row);
  tile.next_rows = std::min(tile_rows, weights.rows - tile.row - tile.rows);
  return tile;
}

RowList ListTile(const CallWeights& weights, const RowTile& tile, const uint8_t** w) {
  const uint32_t next = tile.row + tile.rows;
  uint32_t listed = 0;
  while (listed < tile.rows) {
    w[listed] = weights.Row(tile.row + (tile.halves ? InHalves(listed, tile.rows) : listed));
    ++listed;
  }
  for (uint32_t i = 0; i < std::min(tile.next_rows, kMaxRowsAhead); ++i) {
    w[listed++] = weights.Row(next + (tile.halves ? InHalves(i, tile.next_rows) : i));
  }
  RowList list{weights.encoding, weights.cols, w, tile.rows,
               IsQuantized(weights.encoding.encoding) ? listed : 0};
  list.two_streams = tile.halves;
  return list;
}

void PutInOrder(const RowTile& tile, const float* from, float* to) {
  for (uint32_t r = 0; r < tile.rows; ++r) {
    to[tile.halves ? InHalves(r, tile.rows) : r] = from[r];
  }
}

namespace {

// Tokens from which unpacking rows once for all of them pays: with rows of 2048 values 6 (q8) to 12 (q4) on
// Zen 4, and fewer with longer rows, whose tokens do not stay in the first-level cache.
constexpr uint32_t kTileTokens = 8;

// Quantized down rows are read four at a time; the four after the next four are prefetched.
constexpr uint32_t kDownRowsAhead = 8;

// Prefetch distance in bytes of listed rows, which no hardware prefetcher can follow (measured on Zen 4 and,
// float rows, on Granite Rapids).
constexpr uint32_t kListAhead = 8 << 10;
// Distance for one token where several float rows are read at once: the nearer bytes are being read already.
constexpr uint32_t kFloatListAhead = 16 << 10;
constexpr uint32_t kRowsAtOnce = 4;

RowPrefetch PrefetchOf(uint32_t row_bytes, uint32_t listed, uint32_t list_ahead = kListAhead,
                       uint32_t least_rows = 1) {
  if (listed == 0) {
    return {kStreamAhead, 0, 0};
  }
  const uint32_t rows = std::clamp((list_ahead + row_bytes - 1) / row_bytes, least_rows, kMaxRowsAhead);
  return {0, rows, listed};
}

RowPrefetch PrefetchOfFloats(uint32_t row_bytes, uint32_t listed, bool at_once, uint32_t tokens) {
  // The arithmetic of several tokens with a row takes longer than reading it: a longer distance was 4 %
  // slower.
  RowPrefetch prefetch = tokens == 1
                             ? PrefetchOf(row_bytes, listed, kFloatListAhead, at_once ? kRowsAtOnce : 1)
                             : PrefetchOf(row_bytes, listed);
  prefetch.at_once = at_once;
  return prefetch;
}

// Rows of two streams, 6 KiB ahead of both together (measured on Granite Rapids).
RowPrefetch PrefetchOfTwo(uint32_t row_bytes, uint32_t listed) {
  constexpr uint32_t kAhead = 6144;
  const uint32_t rows = (kAhead + 2 * row_bytes - 1) / (2 * row_bytes) * 2;
  RowPrefetch out{0, std::min(rows, kMaxRowsAhead), listed};
  out.two_streams = true;
  return out;
}

}  // namespace

const RowShape& RowLists::ShapeFor(const EncodingDescriptor& e, uint32_t cols, uint32_t worker) {
  Shapes& known = shapes_[worker];
  for (int i = 0; i < 2; ++i) {
    if (known.shapes[i].cols == cols && known.encodings[i] == e) {
      return known.shapes[i];
    }
  }
  std::swap(known.shapes[0], known.shapes[1]);
  std::swap(known.encodings[0], known.encodings[1]);
  known.shapes[0] = ShapeOf(e, cols);
  known.encodings[0] = e;
  return known.shapes[0];
}

void RowLists::Dot(const RowList& list, absl::Span<const uint32_t> tokens, uint32_t worker, float* const* y) {
  WorkerSpace& w = space_.workers[worker];
  const bool quantized = IsQuantized(list.encoding.encoding);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (quantized) {
      w.quant[i] = rounded_.Row(list.encoding.group, tokens[i]);
    } else {
      w.inputs[i] = space_.x_rows[tokens[i]];
    }
  }
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  if (quantized) {
    return DotQuantized(list, {rounded_.generation(), tokens.data(), count, list.encoding.group}, worker, y);
  }
  DotInputs(list, count, worker, y);
}

void RowLists::DotRounded(const RowList& list, const RoundedForm& rounded, uint32_t first, uint32_t tokens,
                          uint32_t worker, float* const* y) {
  QuantRow* const rows = space_.workers[worker].quant;
  for (uint32_t i = 0; i < tokens; ++i) {
    rows[i] = rounded.Row(first + i);
  }
  DotQuantized(list, {rounded_.generation(), rows[0].codes, tokens, list.encoding.group}, worker, y);
}

// Dot products with the tokens in WorkerSpace::quant; `packed` identifies them; generation 0: unknown.
void RowLists::DotQuantized(const RowList& list, const PackedTokens& packed, uint32_t worker,
                            float* const* y) {
  QuantDotCall dot = QuantDotOf(list, packed.count, worker, y);
  const int kind = QuantKindOf(list.encoding.encoding);
  if (packed.count < kTileTokens) {
    return kernels_.quant_dot[kind](dot);
  }
  // Blocks of an expert and tiles of a matrix are multiplied with the same tokens one after the other.
  WorkerSpace& w = space_.workers[worker];
  if (packed.generation == 0 || packed != packed_[worker]) {
    kernels_.pack_quant({w.quant, packed.count, list.cols, packed.group, w.quant_packed});
    packed_[worker] = packed;
  }
  dot.packed = w.quant_packed;
  kernels_.quant_gemm[kind](dot);
}

QuantDotCall RowLists::QuantDotOf(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y) {
  WorkerSpace& w = space_.workers[worker];
  QuantDotCall dot;
  dot.shape = ShapeFor(list.encoding, list.cols, worker);
  dot.w = list.rows;
  dot.x = w.quant;
  dot.y = y;
  dot.rows = list.count;
  dot.tokens = tokens;
  if (list.fetch_lines > 0) {
    dot.fetch = list.fetch;
    dot.fetch_lines = list.fetch_lines;
  } else {
    const uint32_t listed = std::max(list.listed, list.count);
    dot.prefetch =
        list.two_streams ? PrefetchOfTwo(dot.shape.bytes, listed) : PrefetchOf(dot.shape.bytes, listed);
  }
  dot.scratch = w.quant_gemm;
  return dot;
}

void RowLists::DotInputs(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y) {
  WorkerSpace& w = space_.workers[worker];
  const EncodingDescriptor& e = list.encoding;
  if (IsQuantized(e.encoding)) {
    return DotQuantized(list, {0, nullptr, tokens, e.group}, worker, y);
  }
  DotCall dot;
  dot.w = list.rows;
  dot.x = w.inputs;
  dot.y = y;
  dot.rows = list.count;
  dot.tokens = tokens;
  dot.cols = list.cols;
  dot.prefetch = PrefetchOfFloats(ShapeFor(e, list.cols, worker).bytes, list.listed, list.at_once, tokens);
  kernels_.dot[RowKindOf(e.encoding)](dot);
}

void RowLists::DotPanels(const RowList& list, const float* packed, uint32_t tokens, uint32_t worker,
                         float* const* y) {
  GemmCall gemm;
  gemm.w = list.rows;
  gemm.packed = packed;
  gemm.y = y;
  gemm.rows = list.count;
  gemm.tokens = tokens;
  gemm.cols = list.cols;
  gemm.scratch = space_.workers[worker].gemm;
  kernels_.gemm[RowKindOf(list.encoding.encoding)](gemm);
}

void RowLists::Down(const RowList& list, const float* const* c, uint32_t tokens, bool add, uint32_t worker,
                    float* const* y) {
  WorkerSpace& w = space_.workers[worker];
  if (IsQuantized(list.encoding.encoding)) {
    QuantDownCall down;
    down.shape = ShapeFor(list.encoding, list.cols, worker);
    down.w = list.rows;
    down.c = c;
    down.y = y;
    down.neurons = list.count;
    down.tokens = tokens;
    down.add = add;
    down.in_halves = list.in_halves;
    if (list.fetch_lines > 0) {
      down.fetch = list.fetch;
      down.fetch_lines = list.fetch_lines;
    } else {
      down.prefetch = {0, kDownRowsAhead, std::max(list.listed, list.count)};
    }
    down.scratch = w.quant_down;
    kernels_.quant_down[QuantKindOf(list.encoding.encoding)](down);
    return;
  }
  DownCall down;
  down.w = list.rows;
  down.c = c;
  down.y = y;
  down.neurons = list.count;
  down.tokens = tokens;
  down.cols = list.cols;
  down.add = add;
  down.prefetch =
      PrefetchOfFloats(ShapeFor(list.encoding, list.cols, worker).bytes, list.listed, list.at_once, tokens);
  down.scratch = w.down;
  kernels_.down[RowKindOf(list.encoding.encoding)](down);
}

}  // namespace sluice::cpu
