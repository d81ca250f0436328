// Operations on lists of rows in any encoding, for one worker: dot products and the weighted sum of a block.
#include <algorithm>
#include <utility>

#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// From this many tokens on unpacking rows once for all of them pays.
constexpr uint32_t kTileTokens = 6;

// Quantized down rows are read four at a time; the four after the next four are prefetched.
constexpr uint32_t kDownRowsAhead = 8;

// Listed rows, which no hardware prefetcher can follow, are prefetched so many bytes ahead (measured on Zen 4
// and, float rows, on Granite Rapids).
constexpr uint32_t kListAhead = 8 << 10;
// Of one token: where float rows are read at once, the next so many are being read already.
constexpr uint32_t kFloatListAhead = 16 << 10;
constexpr uint32_t kRowsAtOnce = 4;

host::RowPrefetch PrefetchOf(uint32_t row_bytes, uint32_t listed, uint32_t list_ahead = kListAhead,
                             uint32_t least_rows = 1) {
  if (listed == 0) {
    return {host::kStreamAhead, 0, 0};
  }
  const uint32_t rows =
      std::clamp((list_ahead + row_bytes - 1) / row_bytes, least_rows, host::kMostRowsAhead);
  return {0, rows, listed};
}

host::RowPrefetch PrefetchOfFloats(uint32_t row_bytes, uint32_t listed, bool at_once, uint32_t tokens) {
  // What several tokens compute with a row takes longer than reading it: farther was a twenty-fifth slower.
  host::RowPrefetch prefetch = tokens == 1
                                   ? PrefetchOf(row_bytes, listed, kFloatListAhead, at_once ? kRowsAtOnce : 1)
                                   : PrefetchOf(row_bytes, listed);
  prefetch.at_once = at_once;
  return prefetch;
}

// Rows of two streams, 6 KiB ahead of both together (measured on Granite Rapids).
host::RowPrefetch PrefetchOfTwo(uint32_t row_bytes, uint32_t listed) {
  constexpr uint32_t kAhead = 6144;
  const uint32_t rows = (kAhead + 2 * row_bytes - 1) / (2 * row_bytes) * 2;
  host::RowPrefetch out{0, std::min(rows, host::kMostRowsAhead), listed};
  out.two_streams = true;
  return out;
}

}  // namespace

const host::RowShape& HostBackend::ShapeFor(const EncodingDescriptor& e, uint32_t cols, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  for (int i = 0; i < 2; ++i) {
    if (scratch.shapes[i].cols == cols && scratch.shape_encodings[i] == e) {
      return scratch.shapes[i];
    }
  }
  std::swap(scratch.shapes[0], scratch.shapes[1]);
  std::swap(scratch.shape_encodings[0], scratch.shape_encodings[1]);
  scratch.shapes[0] = host::ShapeOf(e, cols);
  scratch.shape_encodings[0] = e;
  return scratch.shapes[0];
}

void HostBackend::DotList(const RowList& list, absl::Span<const uint32_t> tokens, uint32_t worker,
                          float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  const bool quantized = IsQuantized(list.encoding.encoding);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (quantized) {
      scratch.quant[i] = QuantizedRow(list.encoding.group, tokens[i]);
    } else {
      scratch.inputs[i] = x_rows_[tokens[i]];
    }
  }
  DotInputs(list, static_cast<uint32_t>(tokens.size()), worker, y);
}

host::QuantDotCall HostBackend::QuantDotOf(const RowList& list, uint32_t tokens, uint32_t worker,
                                           float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  host::QuantDotCall dot;
  dot.shape = ShapeFor(list.encoding, list.cols, worker);
  dot.w = list.rows;
  dot.x = scratch.quant;
  dot.y = y;
  dot.rows = list.count;
  dot.tokens = tokens;
  if (list.fetch_lines > 0) {
    dot.fetch = &scratch.ahead;
    dot.fetch_lines = list.fetch_lines;
  } else {
    const uint32_t listed = std::max(list.listed, list.count);
    dot.prefetch =
        list.two_streams ? PrefetchOfTwo(dot.shape.bytes, listed) : PrefetchOf(dot.shape.bytes, listed);
  }
  dot.scratch = scratch.quant_gemm;
  return dot;
}

void HostBackend::DotInputs(const RowList& list, uint32_t tokens, uint32_t worker, float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  const EncodingDescriptor& e = list.encoding;
  if (IsQuantized(e.encoding)) {
    const host::QuantDotCall dot = QuantDotOf(list, tokens, worker, y);
    const int kind = host::QuantKindOf(e.encoding);
    dot.tokens >= kTileTokens ? kernels_.quant_gemm[kind](dot) : kernels_.quant_dot[kind](dot);
    return;
  }
  host::DotCall dot;
  dot.w = list.rows;
  dot.x = scratch.inputs;
  dot.y = y;
  dot.rows = list.count;
  dot.tokens = tokens;
  dot.cols = list.cols;
  dot.prefetch = PrefetchOfFloats(ShapeFor(e, list.cols, worker).bytes, list.listed, list.at_once, tokens);
  kernels_.dot[host::RowKindOf(e.encoding)](dot);
}

void HostBackend::DownList(const RowList& list, const float* const* c, uint32_t tokens, bool add,
                           uint32_t worker, float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  if (IsQuantized(list.encoding.encoding)) {
    host::QuantDownCall down;
    down.shape = ShapeFor(list.encoding, list.cols, worker);
    down.w = list.rows;
    down.c = c;
    down.y = y;
    down.neurons = list.count;
    down.tokens = tokens;
    down.add = add;
    down.in_halves = list.in_halves;
    if (list.fetch_lines > 0) {
      down.fetch = &scratch.ahead;
      down.fetch_lines = list.fetch_lines;
    } else {
      down.prefetch = {0, kDownRowsAhead, std::max(list.listed, list.count)};
    }
    down.scratch = scratch.quant_down;
    kernels_.quant_down[host::QuantKindOf(list.encoding.encoding)](down);
    return;
  }
  host::DownCall down;
  down.w = list.rows;
  down.c = c;
  down.y = y;
  down.neurons = list.count;
  down.tokens = tokens;
  down.cols = list.cols;
  down.add = add;
  down.prefetch =
      PrefetchOfFloats(ShapeFor(list.encoding, list.cols, worker).bytes, list.listed, list.at_once, tokens);
  down.scratch = scratch.down;
  kernels_.down[host::RowKindOf(list.encoding.encoding)](down);
}

}  // namespace sluice
