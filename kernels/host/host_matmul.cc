// MatMul, Norm and Embed: rows of weights are cut into tiles; all tiles of all parts are one region.
#include <algorithm>

#include "common/pack/row_layout.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/row_kind.h"

namespace sluice {
namespace {

using host::RoundUp;

// From this many tokens on, converting weights once per tile and packing x pays.
constexpr uint32_t kPackedTokens = 8;

// A tile's weights when few tokens share them: long enough to stream, short enough to share out evenly.
constexpr uint64_t kTileBytes = 128 << 10;

// Lines that are fetched at once where a worker begins. Four times as many were slower.
constexpr uint32_t kFirstLines = 32;

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

// KernelTable::row_distance for a part's rows.
uint32_t HostBackend::RowDistance(const CpuWeights& weights, bool packed) const {
  const Encoding e = weights.encoding.encoding;
  return IsQuantized(e) && !packed ? kernels_.row_distance[host::QuantKindOf(e)] : 0;
}

// The tile's rows come next.
void HostBackend::FetchRows(const RowTile& tile, host::RowFetch* ahead) {
  const CpuWeights& w = tile.part->weights;
  const uint64_t bytes = RowBytes(w.encoding, w.cols);
  const uint32_t together = w.stride < bytes + 64 ? tile.rows : 1;  // no whole line lies between them
  for (uint32_t r = 0; r < tile.rows && tile.distance > 0; r += together) {
    ahead->AddStream(w.Row(tile.row + r), w.Row(tile.row + r + together - 1) + bytes);
  }
}

// Before tile `number` is computed: it and the next one, if there is one, are listed. One that does not
// follow the worker's last begins anew.
void HostBackend::FollowRows(const RowTile& tile, const RowTile* next, uint32_t number, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  if (number != scratch.next_tile || tile.distance != scratch.ahead.distance()) {
    scratch.ahead.Clear(tile.distance);
    FetchRows(tile, &scratch.ahead);
    scratch.ahead.Advance(kFirstLines);
  }
  scratch.next_tile = number + 1;
  if (next != nullptr && next->distance == tile.distance) {
    FetchRows(*next, &scratch.ahead);
  }
}

void HostBackend::MatMulTile(const MatMulCall& call, const RowTile& tile, bool packed, uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  const MatMulCallPart& part = *tile.part;
  const uint32_t row = tile.row;
  const uint32_t rows = tile.rows;
  const bool finish = part.bias != nullptr || part.scale != 1.0f || call.residual.base != nullptr;
  // With a residual the outputs go to scratch first: y may be the residual.
  float** y = finish ? scratch.pointers : scratch.outputs;
  for (uint32_t t = 0; t < call.tokens && !finish; ++t) {
    y[t] = part.y.Row(t) + row;
  }
  const EncodingDescriptor& e = part.weights.encoding;
  const uint8_t* w[kNeuronBlock + host::kMostRowsAhead];
  uint32_t listed = rows;
  for (uint32_t r = 0; r < rows; ++r) {
    w[r] = part.weights.Row(row + r);
  }
  // Then the first rows of the next tile, which nearly always is this worker's too.
  for (uint32_t r = row + rows; r < std::min(part.weights.rows, row + rows + host::kMostRowsAhead); ++r) {
    w[listed++] = part.weights.Row(r);
  }
  if (packed && !IsQuantized(e.encoding)) {
    host::GemmCall gemm;
    gemm.w = w;
    gemm.packed = packed_;
    gemm.y = y;
    gemm.rows = rows;
    gemm.tokens = call.tokens;
    gemm.cols = call.cols;
    gemm.scratch = scratch.gemm;
    kernels_.gemm[host::RowKindOf(e.encoding)](gemm);
  } else {
    RowList list{e, call.cols, w, rows, IsQuantized(e.encoding) ? listed : 0};
    if (tile.distance > 0) {
      list.fetch_lines = static_cast<uint32_t>((RowBytes(e, call.cols) + 63) / 64);
    }
    DotList(list, {all_tokens_, call.tokens}, worker, y);
  }
  for (uint32_t t = 0; t < call.tokens && finish; ++t) {
    kernels_.add(y[t], part.bias != nullptr ? part.bias + row : nullptr, part.scale,
                 call.residual.base != nullptr ? call.residual.Row(t) + row : nullptr, rows,
                 part.y.Row(t) + row);
  }
}

void HostBackend::Run(const MatMulCall& call) {
  const bool packed = call.tokens >= kPackedTokens;
  PrepareMatMulRows(call, packed);
  const TilePlan plan = PlanTiles(call, packed);
  const auto tile_of = [&](uint32_t number) {
    uint32_t p = 0;
    while (number >= plan.first[p + 1]) {
      ++p;
    }
    const CpuWeights& weights = call.parts[p].weights;
    const uint32_t row = (number - plan.first[p]) * plan.rows[p];
    return RowTile{&call.parts[p], row, std::min(plan.rows[p], weights.rows - row),
                   RowDistance(weights, packed)};
  };
  RunTiles(
      plan.first[call.part_count], plan.work,
      [&](uint32_t number, uint32_t worker) {
        const RowTile tile = tile_of(number);
        if (tile.distance > 0) {
          const bool more = number + 1 < pool_.RunEnd(worker);
          const RowTile next = tile_of(more ? number + 1 : number);
          FollowRows(tile, more ? &next : nullptr, number, worker);
        }
        MatMulTile(call, tile, packed, worker);
      },
      [&](uint32_t worker) { workers_[worker].next_tile = kNoTile; });
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
