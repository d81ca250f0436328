// CpuBackend's operations that only some families need: arguments to resolved calls.
#include "common/status.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/common/resolve.h"

namespace sluice {

absl::Status CpuBackend::HeadMatMul(const HeadMatMulArgs& args) {
  const Resolver r(memory_, "HeadMatMul");
  HeadMatMulCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.heads, limits_.heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.weights.cols, limits_.max_cols, "cols"));
  RETURN_IF_ERROR(r.Weights(args.weights, false, "weights", &call.weights));
  if (args.weights.rows == 0 || args.weights.rows % args.heads != 0) {
    return r.Invalid(absl::StrCat(args.weights.rows, " rows do not divide over ", args.heads, " heads"));
  }
  const uint64_t rows = args.weights.rows / args.heads;
  if (args.heads > 1 && (args.x_head_stride < args.weights.cols || args.y_head_stride < rows)) {
    return r.Invalid(absl::StrCat("head strides of ", args.x_head_stride, " and ", args.y_head_stride,
                                  " for heads of ", args.weights.cols, " and ", rows));
  }
  if (args.x_head_stride > UINT32_MAX || args.y_head_stride > UINT32_MAX) {
    return r.Invalid(absl::StrCat("head strides of ", args.x_head_stride, " and ", args.y_head_stride));
  }
  const uint64_t x_cols = (args.heads - 1) * args.x_head_stride + args.weights.cols;
  const uint64_t y_cols = (args.heads - 1) * args.y_head_stride + rows;
  RETURN_IF_ERROR(r.In(args.x, args.tokens, x_cols, "x", &call.x));
  RETURN_IF_ERROR(r.Out(args.y, args.tokens, y_cols, "y", &call.y));
  if (Overlap(call.x.base, call.x.stride, x_cols, call.y.base, call.y.stride, y_cols, args.tokens,
              args.tokens)) {
    return r.Invalid("y overlaps x");
  }
  call.x_head_stride = args.x_head_stride;
  call.y_head_stride = args.y_head_stride;
  call.tokens = args.tokens;
  call.heads = args.heads;
  Compute(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::SigmoidGate(const SigmoidGateArgs& args) {
  const Resolver r(memory_, "SigmoidGate");
  SigmoidGateCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Out(args.x, args.tokens, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.gate, args.tokens, args.cols, "gate", &call.gate));
  if (Overlap(call.gate.base, call.gate.stride, args.cols, call.x.base, call.x.stride, args.cols, args.tokens,
              args.tokens)) {
    return r.Invalid("x overlaps gate");
  }
  call.tokens = args.tokens;
  call.cols = args.cols;
  Compute(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::ScaleRows(const ScaleRowsArgs& args) {
  const Resolver r(memory_, "ScaleRows");
  ScaleRowsCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.ranks, uint64_t{limits_.top_k} + 1, "ranks"));
  const uint64_t rows = uint64_t{args.tokens} * args.ranks;
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.InFloats(args.weights, rows, "weights", &call.weights));
  RETURN_IF_ERROR(r.Out(args.y, rows, args.cols, "y", &call.y));
  if (Overlap(call.x.base, call.x.stride, args.cols, call.y.base, call.y.stride, args.cols, args.tokens,
              rows)) {
    return r.Invalid("y overlaps x");
  }
  call.tokens = args.tokens;
  call.ranks = args.ranks;
  call.cols = args.cols;
  Compute(call);
  return absl::OkStatus();
}

}  // namespace sluice
