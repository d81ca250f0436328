// The operations on rows of activations, checked and resolved: Embed, Norm, OutputGate, SoftCap,
// ScaleRows, TopLogits.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "kernels/ops.h"
#include "kernels/resolver.h"

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

inline absl::StatusOr<OutputGateCall> Resolve(const Resolver& r, const OutputGateArgs& args) {
  OutputGateCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Out(args.x, args.tokens, args.cols, "x", &call.x));
  if (args.width == 0 || args.cols % args.width != 0) {
    return r.Invalid(absl::StrCat(args.cols, " values with a gate for ", args.width, " each"));
  }
  const bool own = !args.gate.base;  // SiLU
  if (own && (args.width != 1 || args.activation != GateActivation::kSigmoid)) {
    return r.Invalid("a gate of the values themselves for more than one value, or not a sigmoid");
  }
  const uint32_t gates = own ? 1 : args.cols / args.width;
  RETURN_IF_ERROR(r.Within(gates, uint64_t{r.limits().heads} * r.limits().head_dim, "gates"));
  if (args.activation != GateActivation::kSigmoid && args.activation != GateActivation::kSoftplus) {
    return r.Unimplemented(absl::StrCat("gate function ", static_cast<int>(args.activation)));
  }
  if (own) {
    call.gate = {call.x.base, call.x.stride};
  } else {
    RETURN_IF_ERROR(r.In(args.gate, args.tokens, gates, "gate", &call.gate));
    if (Overlap(call.gate, gates, call.x, args.cols, args.tokens, args.tokens)) {
      return r.Invalid("x overlaps gate");
    }
  }
  call.tokens = args.tokens;
  call.cols = args.cols;
  call.width = args.width;
  call.activation = args.activation;
  return call;
}

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

inline absl::StatusOr<ScaleRowsCall> Resolve(const Resolver& r, const ScaleRowsArgs& args) {
  ScaleRowsCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.ranks, uint64_t{r.limits().top_k} + 1, "ranks"));
  const uint64_t rows = uint64_t{args.tokens} * args.ranks;
  RETURN_IF_ERROR(r.In(args.x, args.tokens, args.cols, "x", &call.x));
  if (args.weights) {
    RETURN_IF_ERROR(r.InFloats(args.weights, rows, "weights", &call.weights));
  }
  RETURN_IF_ERROR(r.Out(args.y, rows, args.cols, "y", &call.y));
  if (Overlap(call.x, args.cols, call.y, args.cols, args.tokens, rows)) {
    return r.Invalid("y overlaps x");
  }
  call.tokens = args.tokens;
  call.ranks = args.ranks;
  call.cols = args.cols;
  return call;
}

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

// The products with weight matrices, checked and resolved: MatMul, HeadMatMul.
//
// Thread safety: free functions; a call may be read, and disjoint rows of its outputs written, by several
// threads.

struct MatMulCallPart {
  CallWeights weights;
  OutRows y;
  const float* bias = nullptr;
  float scale = 1;
};
inline constexpr uint32_t kMaxMatMulParts = 8;  // q, k, v and room for fused families

struct MatMulCall {
  InRows x;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  absl::Span<const uint32_t> row_ids;
  CallNorm norm;
  MatMulCallPart parts[kMaxMatMulParts];
  uint32_t part_count = 0;
  InRows residual;  // base nullptr: none
  const float* XRow(uint32_t t) const { return x.Row(row_ids.empty() ? t : row_ids[t]); }
};

inline absl::StatusOr<MatMulCall> Resolve(const Resolver& r, const MatMulArgs& args) {
  MatMulCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.cols, r.limits().max_cols, "cols"));
  RETURN_IF_ERROR(r.Within(args.parts.size(), kMaxMatMulParts, "the number of parts"));
  if (!args.row_ids.empty() && args.row_ids.size() != args.tokens) {
    return r.Invalid(absl::StrCat(args.row_ids.size(), " row ids for ", args.tokens, " tokens"));
  }
  uint64_t x_rows = args.row_ids.empty() ? args.tokens : 0;
  for (const uint32_t id : args.row_ids) {
    x_rows = std::max<uint64_t>(x_rows, uint64_t{id} + 1);
  }
  RETURN_IF_ERROR(r.In(args.x, x_rows, args.cols, "x", &call.x));
  RETURN_IF_ERROR(r.Norm(args.norm, args.cols, "norm weight", &call.norm));
  for (const MatMulPart& part : args.parts) {
    MatMulCallPart& resolved = call.parts[call.part_count++];
    RETURN_IF_ERROR(r.Weights(part.weights, false, "weights", &resolved.weights));
    if (part.weights.cols != args.cols) {
      return r.Invalid(absl::StrCat("weights of ", part.weights.cols, " columns for x of ", args.cols));
    }
    RETURN_IF_ERROR(r.Out(part.y, args.tokens, part.weights.rows, "y", &resolved.y));
    if (Overlap(call.x, args.cols, resolved.y, part.weights.rows, x_rows, args.tokens)) {
      return r.Invalid("y overlaps x");
    }
    resolved.scale = part.scale;
    if (part.bias) {
      RETURN_IF_ERROR(r.InFloats(part.bias, part.weights.rows, "bias", &resolved.bias));
    }
  }
  if (args.residual.base) {
    if (args.parts.size() != 1) {
      return r.Invalid(absl::StrCat("a residual with ", args.parts.size(), " parts"));
    }
    RETURN_IF_ERROR(r.In(args.residual, args.tokens, args.parts[0].weights.rows, "residual", &call.residual));
  }
  call.tokens = args.tokens;
  call.cols = args.cols;
  call.row_ids = args.row_ids;
  return call;
}

struct HeadMatMulCall {
  InRows x;
  uint64_t x_head_stride = 0;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  CallWeights weights;
  OutRows y;
  uint64_t y_head_stride = 0;
};

inline absl::StatusOr<HeadMatMulCall> Resolve(const Resolver& r, const HeadMatMulArgs& args) {
  HeadMatMulCall call;
  RETURN_IF_ERROR(r.Within(args.tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(args.heads, r.limits().heads, "heads"));
  RETURN_IF_ERROR(r.Within(args.weights.cols, r.limits().max_cols, "cols"));
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
  if (Overlap(call.x, x_cols, call.y, y_cols, args.tokens, args.tokens)) {
    return r.Invalid("y overlaps x");
  }
  call.x_head_stride = args.x_head_stride;
  call.y_head_stride = args.y_head_stride;
  call.tokens = args.tokens;
  call.heads = args.heads;
  return call;
}

}  // namespace sluice
