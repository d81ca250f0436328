// The gated delta rule, checked and resolved: GatedDelta.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/status.h"
#include "kernels/calls/places.h"
#include "kernels/calls/resolver.h"
#include "kernels/calls/state_calls.h"
#include "kernels/ops.h"

namespace sluice {

struct GatedDeltaCall {
  InRows qkv;
  InRows z;
  InRows beta;
  InRows decay;
  uint32_t tokens = 0;
  DeltaConfig shape;
  const float* conv = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  CallNorm norm;
  CallStates states;
  OutRows out;
  uint32_t ConvCols() const {
    return 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
  }
  // Floats of a slot before the recurrent states, and of one head's state.
  uint64_t ConvFloats() const { return uint64_t{shape.conv_kernel - 1} * ConvCols(); }
  uint64_t HeadFloats() const { return uint64_t{shape.key_dim} * shape.value_dim; }
};

namespace internal {

inline absl::Status CheckShape(const Resolver& r, const DeltaConfig& d, const BackendLimits& limits) {
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

}  // namespace internal

inline absl::StatusOr<GatedDeltaCall> Resolve(const Resolver& r, const GatedDeltaArgs& args) {
  GatedDeltaCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(internal::CheckShape(r, args.shape, r.limits()));
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
  RETURN_IF_ERROR(internal::ResolveStates(
      r, args, call.ConvFloats() + call.shape.value_heads * call.HeadFloats(), &call.states));
  call.tokens = args.tokens;
  return call;
}

}  // namespace sluice
