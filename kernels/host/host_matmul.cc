// MatMul, Norm and Embed: rows of weights are cut into tiles; all tiles of all parts are one region.
#include <algorithm>

#include "kernels/host/host_backend.h"
#include "kernels/host/simd/row_kind.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

using host::InHalves;
using host::RoundUp;

// From this many tokens on, converting weights once per tile and packing x pays.
constexpr uint32_t kPackedTokens = 8;

// A tile's weights when few tokens share them: long enough to stream, short enough to share out evenly.
constexpr uint64_t kTileBytes = 128 << 10;

// Rows of a tile of one part.
uint32_t TileRows(const CpuWeights& weights, bool packed) {
  if (packed) {
    return host::kGemmRows;
  }
  const uint64_t rows = kTileBytes / std::max<uint64_t>(weights.stride, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(rows / 8 * 8, 8, kNeuronBlock));
}

// Prefix sums of the parts' tiles.
struct TilePlan {
  uint32_t first[kMaxMatMulParts + 1] = {};
  uint32_t rows[kMaxMatMulParts] = {};
  uint64_t work = 0;
};

TilePlan PlanTiles(const MatMulCall& call, bool packed) {
  TilePlan plan;
  for (uint32_t p = 0; p < call.part_count; ++p) {
    const CpuWeights& w = call.parts[p].weights;
    plan.rows[p] = TileRows(w, packed);
    plan.first[p + 1] = plan.first[p] + (w.rows + plan.rows[p] - 1) / plan.rows[p];
    plan.work += uint64_t{w.rows} * w.cols * call.tokens;
  }
  return plan;
}

}  // namespace

void HostBackend::NormRow(const CpuNorm& norm, const float* x, uint32_t cols, float* y) const {
  if (norm.kind == NormKind::kLayer) {
    kernels_.layer_norm(x, cols, norm.weight, norm.bias, norm.epsilon, y);
  } else {
    kernels_.rms_norm(x, cols, norm.weight, norm.epsilon, y);
  }
}

// Leaves in x_rows_ the rows to multiply with (normed if asked), and makes the forms that the parts need.
void HostBackend::PrepareMatMulRows(const MatMulCall& call, bool pack) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    x_rows_[t] = call.norm.weight != nullptr ? normed_ + t * x_stride_ : call.XRow(t);
  }
  if (call.norm.weight != nullptr) {
    RunTiles(call.tokens, uint64_t{call.tokens} * call.cols * 2, [&](uint32_t t, uint32_t) {
      NormRow(call.norm, call.XRow(t), call.cols, normed_ + t * x_stride_);
    });
  }
  bool plain = false;
  for (uint32_t p = 0; p < call.part_count; ++p) {
    const EncodingDescriptor& e = call.parts[p].weights.encoding;
    if (IsQuantized(e.encoding)) {
      Form(e.group).wanted = true;
    } else {
      plain = true;
    }
  }
  QuantizeRows(x_rows_, call.tokens, call.cols);
  if (plain && pack) {
    const uint32_t panel = kernels_.gemm_tokens;
    const uint64_t panel_floats = uint64_t{panel} * RoundUp(call.cols, host::kLaneCount);
    RunTiles((call.tokens + panel - 1) / panel, uint64_t{call.tokens} * call.cols * 2,
             [&](uint32_t tile, uint32_t) {
               host::PackCall rows;
               rows.x = x_rows_ + tile * panel;
               rows.tokens = std::min(panel, call.tokens - tile * panel);
               rows.cols = call.cols;
               rows.packed = packed_ + tile * panel_floats;
               kernels_.pack(rows);
             });
  }
}

// The rows of a tile, and behind them the first ones of the next, which nearly always is this worker's too.
// w: [kNeuronBlock + kMostRowsAhead].
HostBackend::RowList HostBackend::ListTile(const MatMulCall& call, const RowTile& tile,
                                           const uint8_t** w) const {
  const CpuWeights& weights = tile.part->weights;
  const uint32_t next = tile.row + tile.rows;
  uint32_t listed = 0;
  while (listed < tile.rows) {
    w[listed] = weights.Row(tile.row + (tile.halves ? InHalves(listed, tile.rows) : listed));
    ++listed;
  }
  for (uint32_t i = 0; i < std::min(tile.next_rows, host::kMostRowsAhead); ++i) {
    w[listed++] = weights.Row(next + (tile.halves ? InHalves(i, tile.next_rows) : i));
  }
  RowList list{weights.encoding, call.cols, w, tile.rows,
               IsQuantized(weights.encoding.encoding) ? listed : 0};
  list.two_streams = tile.halves;
  return list;
}

void HostBackend::MatMulTile(const MatMulCall& call, const RowTile& tile, bool packed, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  const MatMulCallPart& part = *tile.part;
  const uint32_t row = tile.row;
  const uint32_t rows = tile.rows;
  const bool finish = part.bias != nullptr || part.scale != 1.0f || call.residual.base != nullptr;
  // With a residual the outputs go to scratch first: y may be the residual.
  const bool to_scratch = finish || tile.halves;
  float** y = to_scratch ? scratch.pointers : scratch.outputs;
  for (uint32_t t = 0; t < call.tokens && !to_scratch; ++t) {
    y[t] = part.y.Row(t) + row;
  }
  const uint8_t* w[kNeuronBlock + host::kMostRowsAhead];
  const RowList list = ListTile(call, tile, w);
  if (packed && !IsQuantized(list.encoding.encoding)) {
    host::GemmCall gemm;
    gemm.w = w;
    gemm.packed = packed_;
    gemm.y = y;
    gemm.rows = rows;
    gemm.tokens = call.tokens;
    gemm.cols = call.cols;
    gemm.scratch = scratch.gemm;
    kernels_.gemm[host::RowKindOf(list.encoding.encoding)](gemm);
  } else {
    DotList(list, {all_tokens_, call.tokens}, worker, y);
  }
  for (uint32_t t = 0; t < call.tokens && to_scratch; ++t) {
    float ordered[kNeuronBlock];
    float* out = finish ? ordered : part.y.Row(t) + row;
    for (uint32_t r = 0; r < rows; ++r) {
      out[tile.halves ? InHalves(r, rows) : r] = y[t][r];
    }
    if (finish) {
      kernels_.add(ordered, part.bias != nullptr ? part.bias + row : nullptr, part.scale,
                   call.residual.base != nullptr ? call.residual.Row(t) + row : nullptr, rows,
                   part.y.Row(t) + row);
    }
  }
}

void HostBackend::Run(const MatMulCall& call) {
  const bool packed = call.tokens >= kPackedTokens;
  PrepareMatMulRows(call, packed);
  const TilePlan plan = PlanTiles(call, packed);
  RunTiles(plan.first[call.part_count], plan.work, [&](uint32_t number, uint32_t worker) {
    uint32_t p = 0;
    while (number >= plan.first[p + 1]) {
      ++p;
    }
    const CpuWeights& weights = call.parts[p].weights;
    RowTile tile{&call.parts[p], (number - plan.first[p]) * plan.rows[p]};
    tile.rows = std::min(plan.rows[p], weights.rows - tile.row);
    tile.next_rows = std::min(plan.rows[p], weights.rows - tile.row - tile.rows);
    tile.halves = tuning_.two_streams && !packed && IsQuantized(weights.encoding.encoding);
    MatMulTile(call, tile, packed, worker);
  });
}

void HostBackend::Run(const NormCall& call) {
  RunTiles(call.tokens, uint64_t{call.tokens} * call.cols * 2,
           [&](uint32_t t, uint32_t) { NormRow(call.norm, call.x.Row(t), call.cols, call.y.Row(t)); });
}

void HostBackend::Run(const EmbedCall& call) {
  const EncodingDescriptor& d = call.table.encoding;
  for (size_t t = 0; t < call.ids.size(); ++t) {
    const uint8_t* row = call.table.Row(static_cast<uint32_t>(call.ids[t]));
    float* y = call.y.Row(t);
    if (!IsQuantized(d.encoding)) {
      kernels_.decode[host::RowKindOf(d.encoding)](row, call.table.cols, call.scale, y);
      continue;
    }
    kernels_.quant_decode[host::QuantKindOf(d.encoding)](host::ShapeOf(d, call.table.cols), row, call.scale,
                                                         y);
  }
}

}  // namespace sluice
