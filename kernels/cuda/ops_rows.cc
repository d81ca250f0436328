// Embed, Norm, OutputGate, SoftCap, ScaleRows, Combine, Router, TopLogits.

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device/choice.h"
#include "kernels/cuda/device/matmul.h"

namespace sluice::cuda {

absl::Status Run(Device& device, const EmbedCall& call) {
  EmbedLaunch launch;
  launch.table = MatrixOf(call.table);
  RETURN_IF_ERROR(device.tables->Begin(4 * call.ids.size() + 16));
  launch.ids = device.tables->Put(call.ids);
  RETURN_IF_ERROR(device.tables->Send());
  launch.tokens = static_cast<uint32_t>(call.ids.size());
  launch.scale = call.scale;
  launch.y = call.y;
  return StatusOf(EnqueueEmbed(launch, device.launcher), "Embed");
}

absl::Status Run(Device& device, const NormCall& call) {
  PrepareLaunch launch;
  launch.x = call.x.base;
  launch.x_stride = call.x.stride;
  launch.rows = call.tokens;
  launch.cols = call.cols;
  launch.norm = NormOf(call.norm);
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  return StatusOf(EnqueuePrepare(launch, device.launcher), "Norm");
}

absl::Status Run(Device& device, const OutputGateCall& call) {
  return StatusOf(EnqueueOutputGate(call, device.launcher), "OutputGate");
}

absl::Status Run(Device& device, const ScaleRowsCall& call) {
  return StatusOf(EnqueueScaleRows(call, device.launcher), "ScaleRows");
}

absl::Status Run(Device& device, const SoftCapCall& call) {
  return StatusOf(EnqueueSoftCap(call, device.launcher), "SoftCap");
}

absl::Status Run(Device& device, const CombineCall& call) {
  return StatusOf(EnqueueCombine(call, device.launcher), "Combine");
}

absl::Status Run(Device& device, const RouterCall& call) {
  RouterLaunch launch;
  launch.logits = call.logits.base;
  launch.stride = call.logits.stride;
  launch.tokens = call.tokens;
  launch.experts = call.experts;
  launch.kind = call.kind;
  launch.top_k = call.top_k;
  launch.normed = call.norm_topk_prob;
  launch.norm_epsilon = call.norm_epsilon;
  launch.routed_scale = call.routed_scale;
  launch.expert_scale = call.expert_scale;
  launch.correction = call.correction;
  launch.fixed = call.fixed;
  launch.jitter = call.jitter;
  launch.groups = call.groups;
  launch.top_groups = call.top_groups;
  launch.group_score = call.group_score;
  launch.by_logit = call.ChoosesByLogit();
  launch.shared = call.shared;
  launch.shared_logits = call.shared_logits.base;
  launch.shared_stride = call.shared_logits.stride;
  launch.cut = call.cut;
  launch.cut_sensitivity = call.cut_sensitivity;
  launch.cut_limit = call.cut_limit;
  launch.ids = call.ids;
  launch.weights = call.weights;
  return StatusOf(EnqueueRouter(launch, device.launcher),
                  absl::StrCat("Router of ", call.experts, " experts"));
}

absl::Status Run(Device& device, const TopLogitsCall& call) {
  return StatusOf(EnqueueTopLogits(call, device.launcher), "TopLogits");
}

// MatMul, HeadMatMul.

namespace {

// The parts of a product: those for the device's own kernels, and those for the library.
struct Products {
  MatMulLaunch own;
  MatMulLaunch fast;
};

// Enqueues the library's products of rows that are prepared.
absl::Status MultiplyFast(Device& device, const PreparedRows& prepared, const MatMulLaunch& launch) {
  device.fast->Begin({prepared.x, prepared.stride, launch.tokens});
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    const MatMulLaunchPart& part = launch.parts[i];
    FinishLaunch finish;
    finish.bias = part.bias;
    finish.residual = launch.residual;
    finish.residual_stride = launch.residual_stride;
    finish.scale = part.scale;
    finish.y = part.y;
    finish.y_stride = part.y_stride;
    RETURN_IF_ERROR(device.fast->Multiply(part.weights, part.rounded, finish, device.launcher));
  }
  return absl::OkStatus();
}

// The launch of `tokens` rows from `first` on, of rows that are prepared.
MatMulLaunch LaunchOf(const MatMulLaunch& all, const PreparedRows& prepared, const DeviceNorm& norm,
                      uint32_t first, uint32_t tokens) {
  MatMulLaunch launch = all;
  launch.x = prepared.x;
  launch.x_stride = prepared.stride;
  launch.x_head_stride = prepared.head_stride;
  launch.tokens = tokens;
  launch.norm = norm;
  launch.residual += launch.residual == nullptr ? 0 : first * launch.residual_stride;
  for (uint32_t i = 0; i < launch.part_count; ++i) {
    MatMulLaunchPart& part = launch.parts[i];
    part.rounded = prepared.Rounded(part.weights);
    part.y += first * part.y_stride;
  }
  return launch;
}

// Enqueues the products of all tokens, as many at once as the workspace holds.
absl::Status Multiply(Device& device, RowsToPrepare rows, const Products& products, const char* what) {
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
    const auto launch_of = [&](const MatMulLaunch& all) {
      return LaunchOf(all, prepared, rows.norm, first, rows.tokens);
    };
    if (products.own.part_count > 0) {
      RETURN_IF_ERROR(StatusOf(EnqueueMatMul(launch_of(products.own), device.shared_bytes, device.launcher),
                               absl::StrCat(what, " of rows of ", rows.cols, " columns")));
    }
    if (products.fast.part_count > 0) {
      RETURN_IF_ERROR(MultiplyFast(device, prepared, launch_of(products.fast)));
    }
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
  Products products;
  for (MatMulLaunch* const launch : {&products.own, &products.fast}) {
    launch->residual = call.residual.base;
    launch->residual_stride = call.residual.stride;
  }
  const bool may_be_fast = device.fast != nullptr && call.tokens >= kLeastFastRows;
  for (uint32_t i = 0; i < call.part_count; ++i) {
    const MatMulCallPart& from = call.parts[i];
    MatMulLaunch& launch = may_be_fast && device.fast->Takes(from.weights) ? products.fast : products.own;
    MatMulLaunchPart& part = launch.parts[launch.part_count++];
    part.weights = MatrixOf(from.weights);
    part.y = from.y.base;
    part.y_stride = from.y.stride;
    part.bias = from.bias;
    part.scale = from.scale;
    part.rows = from.weights.rows;
    rows.Note(part.weights);
  }
  return Multiply(device, rows, products, "MatMul");
}

absl::Status Run(Device& device, const HeadMatMulCall& call) {
  RowsToPrepare rows;
  rows.x = call.x.base;
  rows.stride = call.x.stride;
  rows.head_stride = call.x_head_stride;
  rows.heads = call.heads;
  rows.tokens = call.tokens;
  rows.cols = call.weights.cols;
  Products products;
  MatMulLaunch& launch = products.own;
  launch.heads = call.heads;
  launch.part_count = 1;
  MatMulLaunchPart& part = launch.parts[0];
  part.weights = MatrixOf(call.weights);
  part.y = call.y.base;
  part.y_stride = call.y.stride;
  part.y_head_stride = call.y_head_stride;
  part.rows = call.weights.rows / call.heads;
  rows.Note(part.weights);
  return Multiply(device, rows, products, "HeadMatMul");
}

}  // namespace sluice::cuda
