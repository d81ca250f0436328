// The operations on rows of activations, checked and resolved: Embed, Norm, SigmoidGate, SoftCap,
// ScaleRows, TopLogits.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/status.h"
#include "kernels/calls/places.h"
#include "kernels/calls/resolver.h"
#include "kernels/ops.h"

namespace sluice {

struct EmbedCall {
  absl::Span<const int32_t> ids;
  CallWeights table;
  float scale = 1;
  OutRows y;
};

inline absl::StatusOr<EmbedCall> Resolve(const Resolver& r, const EmbedArgs& args) {
  EmbedCall call;
  RETURN_IF_ERROR(r.Within(args.ids.size(), r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Weights(args.table, false, "table", &call.table));
  RETURN_IF_ERROR(r.Out(args.y, args.ids.size(), args.table.cols, "y", &call.y));
  for (const int32_t id : args.ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= args.table.rows) {
      return r.Invalid(absl::StrCat("token id ", id, " is not in 0..", args.table.rows - 1));
    }
  }
  call.ids = args.ids;
  call.scale = args.scale;
  return call;
}

struct NormCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  CallNorm norm;
  OutRows y;
};

inline absl::StatusOr<NormCall> Resolve(const Resolver& r, const NormArgs& args) {
  NormCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.Out(args.y, args.tokens, args.cols, "y", &call.y));
  if (!args.norm.weight) {
    return r.Invalid("no norm weight");
  }
  RETURN_IF_ERROR(r.Norm(args.norm, args.cols, "norm weight", &call.norm));
  call.tokens = args.tokens;
  call.cols = args.cols;
  return call;
}

struct SigmoidGateCall {
  OutRows x;
  InRows gate;
  uint32_t tokens = 0;
  uint32_t cols = 0;
};

inline absl::StatusOr<SigmoidGateCall> Resolve(const Resolver& r, const SigmoidGateArgs& args) {
  SigmoidGateCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Out(args.x, args.tokens, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.gate, args.tokens, args.cols, "gate", &call.gate));
  if (Overlap(call.gate.base, call.gate.stride, args.cols, call.x.base, call.x.stride, args.cols, args.tokens,
              args.tokens)) {
    return r.Invalid("x overlaps gate");
  }
  call.tokens = args.tokens;
  call.cols = args.cols;
  return call;
}

struct SoftCapCall {
  OutRows x;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  float cap = 0;
};

inline absl::StatusOr<SoftCapCall> Resolve(const Resolver& r, const SoftCapArgs& args) {
  SoftCapCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Out(args.x, args.tokens, args.cols, "x", &call.x));
  if (!(args.cap > 0) || !std::isfinite(args.cap)) {
    return r.Invalid(absl::StrCat("a cap of ", args.cap));
  }
  call.tokens = args.tokens;
  call.cols = args.cols;
  call.cap = args.cap;
  return call;
}

struct ScaleRowsCall {
  InRows x;
  const float* weights = nullptr;  // [tokens, ranks]
  uint32_t tokens = 0;
  uint32_t ranks = 0;
  uint32_t cols = 0;
  OutRows y;
};

inline absl::StatusOr<ScaleRowsCall> Resolve(const Resolver& r, const ScaleRowsArgs& args) {
  ScaleRowsCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.ranks, uint64_t{r.limits().top_k} + 1, "ranks"));
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
  return call;
}

struct TopLogitsCall {
  InRows logits;
  uint32_t tokens = 0;
  uint32_t vocab = 0;
  uint32_t k = 0;
  int32_t* ids = nullptr;
  float* values = nullptr;
  float* log_sum_exp = nullptr;  // nullptr: not wanted
};
inline constexpr uint32_t kMaxTopLogits = 1024;

inline absl::StatusOr<TopLogitsCall> Resolve(const Resolver& r, const TopLogitsArgs& args) {
  TopLogitsCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.vocab, r.limits().vocab, "vocab"));
  RETURN_IF_ERROR(r.Within(args.k, std::min(args.vocab, kMaxTopLogits), "k"));
  RETURN_IF_ERROR(r.In(args.logits, args.tokens, args.vocab, "logits", &call.logits));
  RETURN_IF_ERROR(r.OutInts(args.ids, uint64_t{args.tokens} * args.k, "ids", &call.ids));
  RETURN_IF_ERROR(r.OutFloats(args.values, uint64_t{args.tokens} * args.k, "values", &call.values));
  if (args.log_sum_exp) {
    RETURN_IF_ERROR(r.OutFloats(args.log_sum_exp, args.tokens, "log_sum_exp", &call.log_sum_exp));
  }
  call.tokens = args.tokens;
  call.vocab = args.vocab;
  call.k = args.k;
  return call;
}

}  // namespace sluice
