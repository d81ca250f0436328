// HeadMatMul: a tile is one head for some tokens; a worker rounds that head's inputs itself.
#include <algorithm>

#include "kernels/host/host_backend.h"
#include "pack/row_layout.h"

namespace sluice {

void HostBackend::HeadTile(const HeadMatMulCall& call, uint32_t head, uint32_t first, uint32_t tokens,
                           uint32_t worker) {
  WorkerScratch& scratch = workers_[worker];
  const QuantForm& form = head_forms_[worker];
  const EncodingDescriptor& e = call.weights.encoding;
  for (uint32_t i = 0; i < tokens; ++i) {
    const float* x = call.x.Row(first + i) + head * call.x_head_stride;
    scratch.inputs[i] = x;
    if (IsQuantized(e.encoding)) {
      host::QuantizeCall quantize;
      quantize.x = x;
      quantize.cols = call.weights.cols;
      quantize.group = e.group;
      quantize.codes = form.codes + i * code_stride_;
      quantize.scales = form.scales + i * group_stride_;
      quantize.sums = form.sums + i * group_stride_;
      quantize.bytes = form.bytes + 4 * i * code_stride_;
      kernels_.quantize(quantize);
      scratch.quant[i] = {quantize.codes, quantize.scales, quantize.sums, quantize.bytes};
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
      scratch.outputs[i] = call.y.Row(first + i) + head * call.y_head_stride + row;
    }
    DotInputs({e, call.weights.cols, w, count}, tokens, worker, scratch.outputs);
  }
}

void HostBackend::Run(const HeadMatMulCall& call) {
  const uint32_t blocks = (call.tokens + kHeadTokens - 1) / kHeadTokens;
  const uint64_t work = uint64_t{call.tokens} * call.weights.rows * call.weights.cols;
  RunTiles(call.heads * blocks, work, [&](uint32_t tile, uint32_t worker) {
    const uint32_t first = tile % blocks * kHeadTokens;
    HeadTile(call, tile / blocks, first, std::min(kHeadTokens, call.tokens - first), worker);
  });
}

}  // namespace sluice
