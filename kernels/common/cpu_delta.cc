// CpuBackend's gated delta rule: arguments to a resolved call.
#include "common/status.h"
#include "kernels/common/cpu_backend.h"
#include "kernels/common/resolve.h"

namespace sluice {
namespace {

absl::Status CheckShape(const Resolver& r, const DeltaConfig& d, const BackendLimits& limits) {
  RETURN_IF_ERROR(r.Within(d.value_heads, limits.heads, "value_heads"));
  RETURN_IF_ERROR(r.Within(d.key_heads, d.value_heads, "key_heads"));
  RETURN_IF_ERROR(r.Within(d.key_dim, limits.head_dim, "key_dim"));
  RETURN_IF_ERROR(r.Within(d.value_dim, limits.head_dim, "value_dim"));
  RETURN_IF_ERROR(r.Within(d.conv_kernel, kMaxConvKernel, "conv_kernel"));
  if (d.value_heads % d.key_heads != 0) {
    return r.Invalid(
        absl::StrCat(d.value_heads, " value heads do not divide over ", d.key_heads, " key heads"));
  }
  return absl::OkStatus();
}

// Each sequence reads a slot that exists (unless it begins) and writes one that no other touches.
absl::Status CheckSlots(const Resolver& r, const GatedDeltaArgs& args) {
  const size_t count = args.sequences.size();
  if (args.from.size() != count || args.to.size() != count) {
    return r.Invalid(
        absl::StrCat("slots from ", args.from.size(), " to ", args.to.size(), " for ", count, " sequences"));
  }
  for (size_t i = 0; i < count; ++i) {
    const bool reads = args.sequences[i].first_position > 0;
    if (args.to[i] >= args.state.slots || (reads && args.from[i] >= args.state.slots)) {
      return r.Invalid(
          absl::StrCat("from slot ", args.from[i], " to slot ", args.to[i], " of ", args.state.slots));
    }
    for (size_t j = 0; j < count; ++j) {
      const bool other_reads = args.sequences[j].first_position > 0;
      if ((i != j && args.to[i] == args.to[j]) || (other_reads && args.to[i] == args.from[j])) {
        return r.Invalid(absl::StrCat("slot ", args.to[i], " is written and used again"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveState(const Resolver& r, const GatedDeltaArgs& args, GatedDeltaCall* call) {
  const uint64_t floats = call->ConvFloats() + call->shape.value_heads * call->HeadFloats();
  if (args.state.slot_stride % 64 != 0 || args.state.slot_stride < floats * 4) {
    return r.Invalid(
        absl::StrCat("a slot stride of ", args.state.slot_stride, " bytes for a state of ", floats * 4));
  }
  OutRows states;
  RETURN_IF_ERROR(
      r.Out({args.state.base, args.state.slot_stride / 4}, args.state.slots, floats, "state", &states));
  call->states = states.base;
  call->slot_stride = states.stride;
  return absl::OkStatus();
}

}  // namespace

absl::Status CpuBackend::GatedDelta(const GatedDeltaArgs& args) {
  const Resolver r(memory_, "GatedDelta");
  GatedDeltaCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, limits_.max_tokens, "tokens"));
  RETURN_IF_ERROR(CheckShape(r, args.shape, limits_));
  call.shape = args.shape;
  const uint32_t heads = args.shape.value_heads;
  const uint64_t values = uint64_t{heads} * args.shape.value_dim;
  const uint32_t cols = call.ConvCols();
  RETURN_IF_ERROR(r.In(args.qkv, args.tokens, cols, "qkv", &call.qkv));
  RETURN_IF_ERROR(r.In(args.z, args.tokens, values, "z", &call.z));
  RETURN_IF_ERROR(r.In(args.beta, args.tokens, heads, "beta", &call.beta));
  RETURN_IF_ERROR(r.In(args.decay, args.tokens, heads, "decay", &call.decay));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, values, "out", &call.out));
  RETURN_IF_ERROR(r.InFloats(args.conv, uint64_t{cols} * args.shape.conv_kernel, "convolution", &call.conv));
  RETURN_IF_ERROR(r.InFloats(args.a_log, heads, "a_log", &call.a_log));
  RETURN_IF_ERROR(r.InFloats(args.dt_bias, heads, "dt_bias", &call.dt_bias));
  if (!args.norm.weight || args.norm.kind != NormKind::kRms) {
    return r.Invalid("the norm of the heads is not an RMS norm with weights");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, args.shape.value_dim, "norm weight", &call.norm));
  const auto overlaps = [&](const InRows& in, uint64_t in_cols) {
    return Overlap(in.base, in.stride, in_cols, call.out.base, call.out.stride, values, args.tokens,
                   args.tokens);
  };
  if (overlaps(call.qkv, cols) || overlaps(call.z, values) || overlaps(call.beta, heads) ||
      overlaps(call.decay, heads)) {
    return r.Invalid("out overlaps an input");
  }
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, limits_.max_sequences, limits_.max_context));
  RETURN_IF_ERROR(CheckSlots(r, args));
  RETURN_IF_ERROR(ResolveState(r, args, &call));
  call.tokens = args.tokens;
  call.sequences = args.sequences;
  call.from = args.from;
  call.to = args.to;
  Compute(call);
  return absl::OkStatus();
}

}  // namespace sluice
