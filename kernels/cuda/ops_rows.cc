// Embed, Norm, SigmoidGate, SoftCap, ScaleRows, Combine, Router, TopLogits.
#include "common/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/device/choice.h"
#include "kernels/cuda/status.h"

namespace sluice::cuda {

absl::Status Run(Device& device, const EmbedCall& call) {
  EmbedLaunch launch;
  launch.table = MatrixOf(call.table);
  RETURN_IF_ERROR(device.tables->Begin(4 * call.ids.size() + 16));
  launch.ids = device.tables->Put(call.ids);
  RETURN_IF_ERROR(device.tables->Send());
  launch.tokens = static_cast<uint32_t>(call.ids.size());
  launch.scale = call.scale;
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
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

absl::Status Run(Device& device, const SigmoidGateCall& call) {
  SigmoidGateLaunch launch;
  launch.x = call.x.base;
  launch.x_stride = call.x.stride;
  launch.gate = call.gate.base;
  launch.gate_stride = call.gate.stride;
  launch.tokens = call.tokens;
  launch.cols = call.cols;
  return StatusOf(EnqueueSigmoidGate(launch, device.launcher), "SigmoidGate");
}

absl::Status Run(Device& device, const ScaleRowsCall& call) {
  ScaleRowsLaunch launch;
  launch.x = call.x.base;
  launch.x_stride = call.x.stride;
  launch.weights = call.weights;
  launch.rows = call.tokens * call.ranks;
  launch.ranks = call.ranks;
  launch.cols = call.cols;
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  return StatusOf(EnqueueScaleRows(launch, device.launcher), "ScaleRows");
}

absl::Status Run(Device& device, const SoftCapCall& call) {
  SoftCapLaunch launch;
  launch.x = call.x.base;
  launch.x_stride = call.x.stride;
  launch.tokens = call.tokens;
  launch.cols = call.cols;
  launch.cap = call.cap;
  return StatusOf(EnqueueSoftCap(launch, device.launcher), "SoftCap");
}

absl::Status Run(Device& device, const CombineCall& call) {
  CombineLaunch launch;
  launch.y = call.y.base;
  launch.y_stride = call.y.stride;
  launch.weights = call.weights;
  launch.tokens = call.tokens;
  launch.ranks = call.top_k;
  launch.cols = call.hidden;
  launch.residual = call.residual.base;
  launch.residual_stride = call.residual.stride;
  launch.out = call.out.base;
  launch.out_stride = call.out.stride;
  launch.scale = call.scale;
  launch.gain = call.gain;
  return StatusOf(EnqueueCombine(launch, device.launcher), "Combine");
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
  static_assert(kMaxTop == kMaxTopLogits);
  TopLogitsLaunch launch;
  launch.logits = call.logits.base;
  launch.stride = call.logits.stride;
  launch.tokens = call.tokens;
  launch.vocab = call.vocab;
  launch.k = call.k;
  launch.ids = call.ids;
  launch.values = call.values;
  launch.log_sum_exp = call.log_sum_exp;
  return StatusOf(EnqueueTopLogits(launch, device.launcher), "TopLogits");
}

}  // namespace sluice::cuda
