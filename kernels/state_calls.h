// Mamba-2, the short convolution and Mamba-1's state, checked and resolved: Mamba, ShortConv, SelectiveScan.
// Also states in slots, which the gated delta rule shares.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/ops.h"
#include "kernels/resolver.h"

namespace sluice {

inline constexpr uint32_t kMaxConvKernel = 16;

// The sequences of a call and their slots.
struct CallStates {
  absl::Span<const SequenceRows> sequences;
  absl::Span<const uint32_t> from;
  absl::Span<const uint32_t> to;
  float* base = nullptr;
  uint64_t slot_stride = 0;  // floats
  // The state before the first row of sequence i; nullptr: zeros.
  const float* From(size_t i) const {
    return sequences[i].first_position == 0 ? nullptr : base + from[i] * slot_stride;
  }
  float* To(size_t i) const { return base + to[i] * slot_stride; }
};

namespace internal {

// Checks that each sequence reads a slot that exists (unless it begins) and writes a slot that no other
// touches.
template <class Args>
absl::Status CheckSlots(const Resolver& r, const Args& args) {
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

// Checks that no input, given with its columns, shares a byte with `out`.
inline absl::Status CheckInputs(const Resolver& r, std::initializer_list<std::pair<InRows, uint64_t>> inputs,
                                const OutRows& out, uint64_t cols, uint32_t tokens) {
  for (const auto& [in, in_cols] : inputs) {
    if (Overlap(in, in_cols, out, cols, tokens, tokens)) {
      return r.Invalid("out overlaps an input");
    }
  }
  return absl::OkStatus();
}

// Resolves the sequences of `args` and slots of `floats` each.
template <class Args>
absl::Status ResolveStates(const Resolver& r, const Args& args, uint64_t floats, CallStates* out) {
  RETURN_IF_ERROR(r.BatchRows(args.sequences, args.tokens, r.limits().max_sequences, r.limits().max_context));
  RETURN_IF_ERROR(CheckSlots(r, args));
  if (args.state.slot_stride % 64 != 0 || args.state.slot_stride < floats * 4) {
    return r.Invalid(
        absl::StrCat("a slot stride of ", args.state.slot_stride, " bytes for a state of ", floats * 4));
  }
  OutRows states;
  RETURN_IF_ERROR(
      r.Out({args.state.base, args.state.slot_stride / 4}, args.state.slots, floats, "state", &states));
  out->base = states.base;
  out->slot_stride = states.stride;
  out->sequences = args.sequences;
  out->from = args.from;
  out->to = args.to;
  return absl::OkStatus();
}

}  // namespace internal

struct MambaCall : MambaOperands {
  CallStates states;
  // The first column of a group's B and C.
  uint32_t ColumnB(uint32_t group) const { return Values() + group * shape.state; }
  uint32_t ColumnC(uint32_t group) const { return Values() + (shape.groups + group) * shape.state; }
  // Floats of a slot before the recurrent states, and of one head's state.
  uint64_t ConvFloats() const { return uint64_t{shape.conv_kernel - 1} * ConvCols(); }
  uint64_t HeadFloats() const { return uint64_t{shape.state} * shape.head_dim; }
};

inline absl::StatusOr<MambaCall> Resolve(const Resolver& r, const MambaArgs& args) {
  const MambaConfig& m = args.shape;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(m.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(m.groups, m.heads, "groups"));
  RETURN_IF_ERROR(r.Within(m.head_dim, r.limits().head_dim, "head_dim"));
  RETURN_IF_ERROR(r.Within(m.state, r.limits().head_dim, "state"));
  RETURN_IF_ERROR(r.Within(m.conv_kernel, kMaxConvKernel, "conv_kernel"));
  if (m.heads % m.groups != 0 || !(m.min_step >= 0) || !(m.max_step >= 0)) {
    return r.Invalid(absl::StrCat(m.heads, " heads in ", m.groups, " groups, time steps from ", m.min_step,
                                  " to ", m.max_step));
  }
  MambaCall call;
  call.shape = m;
  const uint32_t values = call.Values();
  const uint32_t cols = call.ConvCols();
  RETURN_IF_ERROR(r.In(args.z, args.tokens, values, "z", &call.z));
  RETURN_IF_ERROR(r.In(args.xbc, args.tokens, cols, "xbc", &call.xbc));
  RETURN_IF_ERROR(r.In(args.dt, args.tokens, m.heads, "dt", &call.dt));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, values, "out", &call.out));
  RETURN_IF_ERROR(r.In(args.conv, m.conv_kernel, cols, "convolution", &call.conv));
  RETURN_IF_ERROR(r.InFloats(args.conv_bias, cols, "convolution bias", &call.conv_bias));
  RETURN_IF_ERROR(r.InFloats(args.a_log, m.heads, "a_log", &call.a_log));
  RETURN_IF_ERROR(r.InFloats(args.dt_bias, m.heads, "dt_bias", &call.dt_bias));
  RETURN_IF_ERROR(r.InFloats(args.skip, m.heads, "skip", &call.skip));
  if (!args.norm.weight || args.norm.kind != NormKind::kRms) {
    return r.Invalid("the norm of the groups is not an RMS norm with weights");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, values, "norm weight", &call.norm));
  RETURN_IF_ERROR(internal::CheckInputs(r, {{call.z, values}, {call.xbc, cols}, {call.dt, m.heads}}, call.out,
                                        values, args.tokens));
  RETURN_IF_ERROR(
      internal::ResolveStates(r, args, call.ConvFloats() + m.heads * call.HeadFloats(), &call.states));
  call.tokens = args.tokens;
  return call;
}

struct ShortConvCall : ShortConvOperands {
  CallStates states;
};

inline absl::StatusOr<ShortConvCall> Resolve(const Resolver& r, const ShortConvArgs& args) {
  ShortConvCall call;
  const uint32_t width = args.shape.width;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(width, r.limits().max_cols, "width"));
  RETURN_IF_ERROR(r.Within(args.shape.kernel, kMaxConvKernel, "kernel"));
  const uint64_t in_cols = (args.gated ? 3 : 1) * uint64_t{width};
  RETURN_IF_ERROR(r.In(args.bcx, args.tokens, in_cols, "bcx", &call.bcx));
  RETURN_IF_ERROR(r.In(args.conv, args.shape.kernel, width, "convolution", &call.conv));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, width, "out", &call.out));
  if (args.shape.kernel < 2) {
    return r.Invalid("a convolution over one row has no state");
  }
  RETURN_IF_ERROR(r.Within(args.dilation, kMaxConvKernel, "dilation"));
  call.shape = args.shape;
  call.dilation = args.dilation;
  RETURN_IF_ERROR(r.Within(call.Reach(), kMaxConvKernel - 1, "rows before a convolution's last"));
  if (Overlap(call.bcx, in_cols, call.out, width, args.tokens, args.tokens)) {
    return r.Invalid("out overlaps bcx");
  }
  if (args.bias) {
    RETURN_IF_ERROR(r.InFloats(args.bias, width, "bias", &call.bias));
  }
  RETURN_IF_ERROR(internal::ResolveStates(r, args, uint64_t{call.Reach()} * width, &call.states));
  call.tokens = args.tokens;
  call.gated = args.gated;
  return call;
}

struct SelectiveScanCall : SelectiveScanOperands {
  CallStates states;
};

inline absl::StatusOr<SelectiveScanCall> Resolve(const Resolver& r, const SelectiveScanArgs& args) {
  SelectiveScanCall call;
  const uint32_t channels = args.channels;
  const uint32_t state = args.state_size;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(channels, r.limits().max_cols, "channels"));
  RETURN_IF_ERROR(r.Within(state, r.limits().head_dim, "state"));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, channels, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.z, args.tokens, channels, "z", &call.z));
  RETURN_IF_ERROR(r.In(args.step, args.tokens, channels, "step", &call.step));
  RETURN_IF_ERROR(r.In(args.b, args.tokens, state, "b", &call.b));
  RETURN_IF_ERROR(r.In(args.c, args.tokens, state, "c", &call.c));
  RETURN_IF_ERROR(r.In(args.a_log, state, channels, "a_log", &call.a_log));
  RETURN_IF_ERROR(r.InFloats(args.skip, channels, "skip", &call.skip));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, channels, "out", &call.out));
  RETURN_IF_ERROR(internal::CheckInputs(
      r, {{call.x, channels}, {call.z, channels}, {call.step, channels}, {call.b, state}, {call.c, state}},
      call.out, channels, args.tokens));
  RETURN_IF_ERROR(internal::ResolveStates(r, args, uint64_t{state} * channels, &call.states));
  call.tokens = args.tokens;
  call.channels = channels;
  call.state_size = state;
  return call;
}

// The gated delta rule, checked and resolved: GatedDelta.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.

struct GatedDeltaCall : GatedDeltaOperands {
  CallStates states;
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
  if (!(d.decay_floor <= 0)) {
    return r.Invalid(absl::StrCat("a lowest log decay of ", d.decay_floor));
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
  const uint32_t decays = heads * call.HeadDecays();
  RETURN_IF_ERROR(r.In(args.decay, args.tokens, decays, "decay", &call.decay));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, values, "out", &call.out));
  RETURN_IF_ERROR(r.In(args.conv, cols, args.shape.conv_kernel, "convolution", &call.conv));
  RETURN_IF_ERROR(r.InFloats(args.a_log, heads, "a_log", &call.a_log));
  RETURN_IF_ERROR(r.InFloats(args.dt_bias, decays, "dt_bias", &call.dt_bias));
  if (!args.norm.weight || args.norm.kind != NormKind::kRms) {
    return r.Invalid("the norm of the heads is not an RMS norm with weights");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, args.shape.value_dim, "norm weight", &call.norm));
  RETURN_IF_ERROR(
      internal::CheckInputs(r, {{call.qkv, cols}, {call.z, values}, {call.beta, heads}, {call.decay, decays}},
                            call.out, values, args.tokens));
  RETURN_IF_ERROR(internal::ResolveStates(
      r, args, call.ConvFloats() + call.shape.value_heads * call.HeadFloats(), &call.states));
  call.tokens = args.tokens;
  return call;
}

}  // namespace sluice
