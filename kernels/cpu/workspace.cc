#include "kernels/cpu/workspace.h"

#include <algorithm>
#include <numeric>

#include "common/base/status.h"
#include "kernels/expert_calls.h"
#include "kernels/state_calls.h"

namespace sluice::cpu {
namespace {

absl::Status ReserveWorker(const BackendLimits& l, uint32_t cols, Scratch* scratch, WorkerSpace* w) {
  const uint64_t tokens = l.max_tokens;
  RETURN_IF_ERROR(scratch->Reserve(GemmScratchFloats(std::max(cols, l.head_dim)), "tile scratch", &w->gemm));
  RETURN_IF_ERROR(scratch->Reserve(DownScratchFloats(cols), "down scratch", &w->down));
  RETURN_IF_ERROR(scratch->Reserve(QuantDownWords(cols), "quantized down scratch", &w->quant_down));
  RETURN_IF_ERROR(scratch->Reserve(QuantGemmFloats(cols) + FileRowFloats(cols), "quantized tile scratch",
                                   &w->quant_gemm));
  RETURN_IF_ERROR(
      scratch->Reserve(QuantPackedBytes(l.max_tokens, cols), "packed rounded rows", &w->quant_packed));
  RETURN_IF_ERROR(scratch->Reserve(tokens, "tile inputs", &w->inputs));
  RETURN_IF_ERROR(scratch->Reserve(tokens, "tile rounded inputs", &w->quant));
  RETURN_IF_ERROR(scratch->Reserve(tokens, "tile targets", &w->outputs));
  const uint64_t any =
      std::max({4 * uint64_t{l.experts}, uint64_t{l.heads} * l.head_dim,
                uint64_t{kMaxConvKernel + 2} * 3 * l.head_dim, uint64_t{kMaxConvKernel} * kConvColumns});
  RETURN_IF_ERROR(scratch->Reserve(any, "operation scratch", &w->any));
  float* tile = nullptr;
  RETURN_IF_ERROR(scratch->Reserve(3 * tokens * kNeuronBlock, "tile outputs", &tile));
  for (float**& rows : w->rows) {
    RETURN_IF_ERROR(scratch->Reserve(tokens, "tile rows", &rows));
    for (uint64_t i = 0; i < tokens; ++i, tile += kNeuronBlock) {
      rows[i] = tile;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Workspace::Reserve(const BackendLimits& l, uint32_t worker_count, Scratch* scratch) {
  const uint64_t tokens = l.max_tokens;
  const uint64_t slots = tokens * (uint64_t{l.top_k} + 1);
  cols = std::max({l.max_cols, l.hidden, l.expert_width, 16u});
  x_stride = RoundUp(cols, kLaneCount);
  // Each expert's rows begin a new panel.
  packed_rows = std::max(tokens, slots + 8 * uint64_t{l.experts + 8}) + 8;
  RETURN_IF_ERROR(scratch->Reserve(tokens * x_stride, "normed rows", &normed));
  RETURN_IF_ERROR(scratch->Reserve(tokens, "row pointers", &x_rows));
  RETURN_IF_ERROR(scratch->Reserve(tokens, "token numbers", &all_tokens));
  std::iota(all_tokens, all_tokens + tokens, 0u);
  RETURN_IF_ERROR(scratch->Reserve(packed_rows * x_stride, "packed rows", &packed));
  RETURN_IF_ERROR(scratch->Reserve(kPartialFloats, "partial sums", &partials));
  uint8_t* zeros = nullptr;
  RETURN_IF_ERROR(scratch->Reserve(uint64_t{std::max(cols, l.head_dim)} * 4 + 64, "zero row", &zeros));
  zero_row = zeros;
  workers.resize(worker_count);
  for (WorkerSpace& worker : workers) {
    RETURN_IF_ERROR(ReserveWorker(l, cols, scratch, &worker));
  }
  return absl::OkStatus();
}

}  // namespace sluice::cpu
