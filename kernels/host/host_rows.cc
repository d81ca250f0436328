// Operations on lists of rows in any encoding, for one worker: dot products and the weighted sum of a block.
#include <algorithm>

#include "common/pack/row_layout.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/row_kind.h"

namespace sluice {
namespace {

// Rows to prefetch ahead in a list of gathered rows, which no hardware prefetcher can follow: 4 KiB of them.
uint32_t RowsAhead(bool gathered, const EncodingDescriptor& e, uint32_t cols) {
  const uint64_t row_bytes = RowBytes(e, cols);
  return gathered ? static_cast<uint32_t>(std::clamp<uint64_t>((4096 + row_bytes - 1) / row_bytes, 1, 8)) : 0;
}

}  // namespace

void HostBackend::DotList(const RowList& list, absl::Span<const uint32_t> tokens, uint32_t worker,
                          float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  const EncodingDescriptor& e = list.encoding;
  if (IsQuantized(e.encoding)) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      scratch.quant[i] = QuantizedRow(e.group, tokens[i]);
    }
    host::QuantDotCall dot;
    dot.shape = host::ShapeOf(e, list.cols);
    dot.w = list.rows;
    dot.x = scratch.quant;
    dot.y = y;
    dot.rows = list.count;
    dot.tokens = static_cast<uint32_t>(tokens.size());
    dot.prefetch = prefetch_;
    kernels_.quant_dot[host::QuantKindOf(e.encoding)](dot);
    return;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    scratch.inputs[i] = x_rows_[tokens[i]];
  }
  host::DotCall dot;
  dot.w = list.rows;
  dot.x = scratch.inputs;
  dot.y = y;
  dot.rows = list.count;
  dot.tokens = static_cast<uint32_t>(tokens.size());
  dot.cols = list.cols;
  dot.prefetch = list.gathered ? 0 : prefetch_;
  dot.rows_ahead = RowsAhead(list.gathered, e, list.cols);
  kernels_.dot[host::RowKindOf(e.encoding)](dot);
}

void HostBackend::DownList(const RowList& list, const float* const* c, uint32_t tokens, bool add,
                           uint32_t worker, float* const* y) {
  WorkerScratch& scratch = workers_[worker];
  if (IsQuantized(list.encoding.encoding)) {
    host::QuantDownCall down;
    down.shape = host::ShapeOf(list.encoding, list.cols);
    down.w = list.rows;
    down.c = c;
    down.y = y;
    down.neurons = list.count;
    down.tokens = tokens;
    down.add = add;
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
  down.prefetch = list.gathered ? 0 : prefetch_;
  down.rows_ahead = RowsAhead(list.gathered, list.encoding, list.cols);
  down.scratch = scratch.down;
  kernels_.down[host::RowKindOf(list.encoding.encoding)](down);
}

}  // namespace sluice
