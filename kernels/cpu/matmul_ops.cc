// Products with weight matrices.
//
// MatMul: rows of weights are cut into tiles; all tiles of all parts are one region.

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_lists.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
namespace {

// Prefix sums of the parts' tiles.
struct TilePlan {
  uint32_t first[kMaxMatMulParts + 1] = {};
  uint32_t rows[kMaxMatMulParts] = {};
  uint64_t work = 0;
};

TilePlan PlanTiles(const MatMulCall& call, bool packed) {
  TilePlan plan;
  for (uint32_t p = 0; p < call.part_count; ++p) {
    const CallWeights& w = call.parts[p].weights;
    plan.rows[p] = RowsOfTile(w, packed);
    plan.first[p + 1] = plan.first[p] + (w.rows + plan.rows[p] - 1) / plan.rows[p];
    plan.work += uint64_t{w.rows} * w.cols * call.tokens;
  }
  return plan;
}

// Stores in Workspace::x_rows the rows to multiply with (normed if requested), and makes the forms that the
// parts need.
void PrepareRows(Device& d, const MatMulCall& call, bool pack) {
  for (uint32_t t = 0; t < call.tokens; ++t) {
    d.space.x_rows[t] = call.norm.weight != nullptr ? d.space.normed + t * d.space.x_stride : call.XRow(t);
  }
  if (call.norm.weight != nullptr) {
    d.tiles.Run(call.tokens, uint64_t{call.tokens} * call.cols * 2, [&](uint32_t t, uint32_t) {
      NormRow(d.kernels, call.norm, call.XRow(t), call.cols, d.space.normed + t * d.space.x_stride);
    });
  }
  bool plain = false;
  for (uint32_t p = 0; p < call.part_count; ++p) {
    const EncodingDescriptor& e = call.parts[p].weights.encoding;
    d.rounded.RequestForm(e);
    plain = plain || !IsQuantized(e.encoding);
  }
  d.rounded.Make(d.space.x_rows, call.tokens, call.cols);
  if (plain && pack) {
    const uint32_t panel = d.kernels.gemm_tokens;
    const uint64_t panel_floats = uint64_t{panel} * RoundUp(call.cols, kLaneCount);
    d.tiles.Run((call.tokens + panel - 1) / panel, uint64_t{call.tokens} * call.cols * 2,
                [&](uint32_t tile, uint32_t) {
                  PackCall rows;
                  rows.x = d.space.x_rows + tile * panel;
                  rows.tokens = std::min(panel, call.tokens - tile * panel);
                  rows.cols = call.cols;
                  rows.packed = d.space.packed + tile * panel_floats;
                  d.kernels.pack(rows);
                });
  }
}

void RunTile(Device& d, const MatMulCall& call, const MatMulCallPart& part, const RowTile& tile, bool packed,
             uint32_t worker) {
  WorkerSpace& space = d.space.workers[worker];
  const uint32_t row = tile.row;
  const uint32_t rows = tile.rows;
  const bool finish = part.bias != nullptr || part.scale != 1.0f || call.residual.base != nullptr;
  // With a residual, outputs are written to scratch first: y may be the residual.
  const bool to_scratch = finish || tile.halves;
  float** y = to_scratch ? space.rows[0] : space.outputs;
  for (uint32_t t = 0; t < call.tokens && !to_scratch; ++t) {
    y[t] = part.y.Row(t) + row;
  }
  const uint8_t* w[kNeuronBlock + kMaxRowsAhead];
  const RowList list = ListTile(part.weights, tile, w);
  if (packed && !IsQuantized(list.encoding.encoding)) {
    d.lists.DotPanels(list, d.space.packed, call.tokens, worker, y);
  } else {
    d.lists.Dot(list, {d.space.all_tokens, call.tokens}, worker, y);
  }
  for (uint32_t t = 0; t < call.tokens && to_scratch; ++t) {
    float ordered[kNeuronBlock];
    PutInOrder(tile, y[t], finish ? ordered : part.y.Row(t) + row);
    if (finish) {
      d.kernels.add(ordered, part.bias != nullptr ? part.bias + row : nullptr, part.scale,
                    call.residual.base != nullptr ? call.residual.Row(t) + row : nullptr, rows,
                    part.y.Row(t) + row);
    }
  }
}

}  // namespace

void Run(Device& d, const MatMulCall& call) {
  const bool packed = call.tokens >= kPackedTokens;
  PrepareRows(d, call, packed);
  const TilePlan plan = PlanTiles(call, packed);
  d.tiles.Run(plan.first[call.part_count], plan.work, [&](uint32_t number, uint32_t worker) {
    uint32_t p = 0;
    while (number >= plan.first[p + 1]) {
      ++p;
    }
    const CallWeights& weights = call.parts[p].weights;
    RowTile tile = TileOf(weights, number - plan.first[p], plan.rows[p]);
    tile.halves = d.tuning.two_streams && !packed && IsQuantized(weights.encoding.encoding);
    RunTile(d, call, call.parts[p], tile, packed, worker);
  });
}

// HeadMatMul: a tile is one head for some tokens; a worker rounds that head's inputs itself.

namespace {

constexpr uint32_t kHeadTokens = RoundedRows::kOwnRows;

void HeadTile(Device& d, const HeadMatMulCall& call, uint32_t head, uint32_t first, uint32_t tokens,
              uint32_t worker) {
  WorkerSpace& space = d.space.workers[worker];
  const RoundedForm& rounded = d.rounded.own(worker);
  const EncodingDescriptor& e = call.weights.encoding;
  for (uint32_t i = 0; i < tokens; ++i) {
    const float* x = call.x.Row(first + i) + head * call.x_head_stride;
    space.inputs[i] = x;
    if (IsQuantized(e.encoding)) {
      rounded.Round(d.kernels, x, call.weights.cols, e.group, i);
      space.quant[i] = rounded.Row(i);
    }
  }
  const uint32_t rows = call.weights.rows / call.heads;
  const uint8_t* w[kNeuronBlock];
  for (uint32_t row = 0; row < rows; row += kNeuronBlock) {
    const uint32_t count = std::min(kNeuronBlock, rows - row);
    for (uint32_t r = 0; r < count; ++r) {
      w[r] = call.weights.Row(head * rows + row + r);
    }
    for (uint32_t i = 0; i < tokens; ++i) {
      space.outputs[i] = call.y.Row(first + i) + head * call.y_head_stride + row;
    }
    d.lists.DotInputs({e, call.weights.cols, w, count}, tokens, worker, space.outputs);
  }
}

}  // namespace

void Run(Device& d, const HeadMatMulCall& call) {
  const uint32_t blocks = (call.tokens + kHeadTokens - 1) / kHeadTokens;
  const uint64_t work = uint64_t{call.tokens} * call.weights.rows * call.weights.cols;
  d.tiles.Run(call.heads * blocks, work, [&](uint32_t tile, uint32_t worker) {
    const uint32_t first = tile % blocks * kHeadTokens;
    HeadTile(d, call, tile / blocks, first, std::min(kHeadTokens, call.tokens - first), worker);
  });
}

}  // namespace sluice::cpu
