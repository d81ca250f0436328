// CpuBackend's operations that only some families need: arguments to resolved calls.
#include "common/status.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/common/resolve.h"

namespace sluice {

absl::Status CpuBackend::HeadMatMul(const HeadMatMulArgs&) {
  return Resolver(memory_, "HeadMatMul").Unimplemented("this device has no kernel for it");
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
  Run(call);
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
  Run(call);
  return absl::OkStatus();
}

absl::Status CpuBackend::LatentKvWrite(const LatentKvArgs&) {
  return Resolver(memory_, "LatentKvWrite").Unimplemented("this device has no kernel for it");
}

absl::Status CpuBackend::GatedDelta(const GatedDeltaArgs&) {
  return Resolver(memory_, "GatedDelta").Unimplemented("this device has no kernel for it");
}

}  // namespace sluice
