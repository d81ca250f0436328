// MatMul, HeadMatMul.
#include <algorithm>

#include "common/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device/matmul.h"
#include "kernels/cuda/status.h"

namespace sluice::cuda {
namespace {

// Enqueues the products of all tokens, as many at once as the workspace holds.
absl::Status Multiply(Device& device, RowsToPrepare rows, const MatMulLaunch& all, const char* what) {
  const uint64_t bytes = PreparedBytes(rows);
  const uint32_t tokens = rows.tokens;
  uint64_t at_once = tokens;
  if (bytes != 0) {
    // Upper bound of the rounding: at most nine areas are rounded up.
    constexpr uint64_t kRounding = 9 * 256;
    at_once = std::clamp<uint64_t>((device.workspace_bytes - kRounding) / bytes, 1, tokens);
  }
  const float* const x = rows.x;
  const uint32_t* const ids = rows.ids;
  for (uint32_t first = 0; first < tokens; first += static_cast<uint32_t>(at_once)) {
    Workspace workspace(device);
    rows.tokens = std::min(tokens - first, static_cast<uint32_t>(at_once));
    rows.x = ids == nullptr ? x + first * rows.stride : x;
    rows.ids = ids == nullptr ? nullptr : ids + first;
    ASSIGN_OR_RETURN(const PreparedRows prepared, Prepare(device, rows, &workspace));
    MatMulLaunch launch = all;
    launch.x = prepared.x;
    launch.x_stride = prepared.stride;
    launch.x_head_stride = prepared.head_stride;
    launch.tokens = rows.tokens;
    launch.norm = rows.norm;
    launch.residual += launch.residual == nullptr ? 0 : first * launch.residual_stride;
    for (uint32_t i = 0; i < launch.part_count; ++i) {
      MatMulLaunchPart& part = launch.parts[i];
      part.rounded = prepared.Rounded(part.weights);
      part.y += first * part.y_stride;
    }
    RETURN_IF_ERROR(StatusOf(EnqueueMatMul(launch, device.shared_bytes, device.launcher),
                             absl::StrCat(what, " of rows of ", rows.cols, " columns")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Run(Device& device, const MatMulCall& call) {
  static_assert(kMaxParts == kMaxMatMulParts);
  RowsToPrepare rows;
  rows.x = call.x.base;
  rows.stride = call.x.stride;
  rows.tokens = call.tokens;
  rows.cols = call.cols;
  rows.norm = NormOf(call.norm);
  RETURN_IF_ERROR(device.tables->Begin(4 * call.row_ids.size() + 16));
  rows.ids = device.tables->Put(call.row_ids);
  RETURN_IF_ERROR(device.tables->Send());
  MatMulLaunch launch;
  launch.residual = call.residual.base;
  launch.residual_stride = call.residual.stride;
  for (uint32_t i = 0; i < call.part_count; ++i) {
    const MatMulCallPart& from = call.parts[i];
    MatMulLaunchPart& part = launch.parts[launch.part_count++];
    part.weights = MatrixOf(from.weights);
    part.y = from.y.base;
    part.y_stride = from.y.stride;
    part.bias = from.bias;
    part.scale = from.scale;
    part.rows = from.weights.rows;
    rows.Note(part.weights);
  }
  return Multiply(device, rows, launch, "MatMul");
}

absl::Status Run(Device& device, const HeadMatMulCall& call) {
  RowsToPrepare rows;
  rows.x = call.x.base;
  rows.stride = call.x.stride;
  rows.head_stride = call.x_head_stride;
  rows.heads = call.heads;
  rows.tokens = call.tokens;
  rows.cols = call.weights.cols;
  MatMulLaunch launch;
  launch.heads = call.heads;
  launch.part_count = 1;
  MatMulLaunchPart& part = launch.parts[0];
  part.weights = MatrixOf(call.weights);
  part.y = call.y.base;
  part.y_stride = call.y.stride;
  part.y_head_stride = call.y_head_stride;
  part.rows = call.weights.rows / call.heads;
  rows.Note(part.weights);
  return Multiply(device, rows, launch, "HeadMatMul");
}

}  // namespace sluice::cuda
