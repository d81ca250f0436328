// HeadMatMul: a tile is one head for some tokens; a worker rounds that head's inputs itself.
#include <algorithm>

#include "kernels/host/ops/device.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
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
