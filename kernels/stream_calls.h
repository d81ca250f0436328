// The operations on residual streams, checked and resolved: StreamMix, StreamWrite, StreamMean, StreamAdd,
// StreamMatch (stream_operands.h); and their scalar part, which host and reference share to the bit
// (ARITHMETIC.md 11).
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
#include "kernels/stream_operands.h"

namespace sluice {

namespace internal {

inline absl::Status CheckStreams(const Resolver& r, uint32_t tokens, uint32_t streams, uint32_t hidden) {
  RETURN_IF_ERROR(r.Within(tokens, r.limits().max_tokens, "tokens"));
  RETURN_IF_ERROR(r.Within(streams, kMaxStreams, "streams"));
  return r.Within(uint64_t{streams} * hidden, r.limits().max_cols, "values of the streams");
}

}  // namespace internal

inline absl::StatusOr<StreamMixCall> Resolve(const Resolver& r, const StreamMixArgs& args) {
  StreamMixCall call;
  const uint32_t m = args.streams;
  RETURN_IF_ERROR(internal::CheckStreams(r, args.tokens, m, args.hidden));
  const uint32_t raws = args.iterations > 0 ? (2 + m) * m : m;
  RETURN_IF_ERROR(r.In(args.x, args.tokens, uint64_t{m} * args.hidden, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.raw, args.tokens, raws, "raw", &call.raw));
  RETURN_IF_ERROR(r.InFloats(args.scale, args.iterations > 0 ? 3 : 1, "scale", &call.scale));
  RETURN_IF_ERROR(r.InFloats(args.base, raws, "base", &call.base));
  RETURN_IF_ERROR(r.Out(args.y, args.tokens, args.hidden, "y", &call.y));
  if (Overlap(call.x.base, call.x.stride, uint64_t{m} * args.hidden, call.y.base, call.y.stride, args.hidden,
              args.tokens, args.tokens)) {
    return r.Invalid("y overlaps x");
  }
  if (args.iterations > 0) {
    RETURN_IF_ERROR(r.Out(args.factors, args.tokens, uint64_t{1 + m} * m, "factors", &call.factors));
  }
  if (!(args.norm_epsilon >= 0) || !(args.epsilon >= 0)) {
    return r.Invalid(absl::StrCat("epsilons ", args.norm_epsilon, " and ", args.epsilon));
  }
  call.tokens = args.tokens;
  call.streams = m;
  call.hidden = args.hidden;
  call.norm_epsilon = args.norm_epsilon;
  call.epsilon = args.epsilon;
  call.iterations = args.iterations;
  return call;
}

inline absl::StatusOr<StreamWriteCall> Resolve(const Resolver& r, const StreamWriteArgs& args) {
  StreamWriteCall call;
  const uint32_t m = args.streams;
  const uint64_t cols = uint64_t{m} * args.hidden;
  RETURN_IF_ERROR(internal::CheckStreams(r, args.tokens, m, args.hidden));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, cols, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.y, args.tokens, args.hidden, "y", &call.y));
  RETURN_IF_ERROR(r.In(args.factors, args.tokens, uint64_t{1 + m} * m, "factors", &call.factors));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, cols, "out", &call.out));
  if (Overlap(call.y.base, call.y.stride, args.hidden, call.out.base, call.out.stride, cols, args.tokens,
              args.tokens)) {
    return r.Invalid("out overlaps y");
  }
  call.tokens = args.tokens;
  call.streams = m;
  call.hidden = args.hidden;
  return call;
}

inline absl::StatusOr<StreamMeanCall> Resolve(const Resolver& r, const StreamMeanArgs& args) {
  StreamMeanCall call;
  const uint64_t cols = uint64_t{args.streams} * args.hidden;
  RETURN_IF_ERROR(internal::CheckStreams(r, args.tokens, args.streams, args.hidden));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, cols, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.gate, args.tokens, cols, "gate", &call.gate));
  RETURN_IF_ERROR(r.Out(args.y, args.tokens, args.hidden, "y", &call.y));
  for (const InRows& in : {call.x, call.gate}) {
    if (Overlap(in.base, in.stride, cols, call.y.base, call.y.stride, args.hidden, args.tokens,
                args.tokens)) {
      return r.Invalid("y overlaps an input");
    }
  }
  call.tokens = args.tokens;
  call.streams = args.streams;
  call.hidden = args.hidden;
  return call;
}

inline absl::StatusOr<StreamAddCall> Resolve(const Resolver& r, const StreamAddArgs& args) {
  StreamAddCall call;
  const uint64_t cols = uint64_t{args.streams} * args.hidden;
  RETURN_IF_ERROR(internal::CheckStreams(r, args.tokens, args.streams, args.hidden));
  if (args.x.base) {
    RETURN_IF_ERROR(r.In(args.x, args.tokens, cols, "x", &call.x));
  }
  RETURN_IF_ERROR(r.In(args.y, args.tokens, args.hidden, "y", &call.y));
  RETURN_IF_ERROR(r.In(args.gate, args.tokens, args.streams, "gate", &call.gate));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, cols, "out", &call.out));
  if (Overlap(call.y.base, call.y.stride, args.hidden, call.out.base, call.out.stride, cols, args.tokens,
              args.tokens) ||
      Overlap(call.gate.base, call.gate.stride, args.streams, call.out.base, call.out.stride, cols,
              args.tokens, args.tokens)) {
    return r.Invalid("out overlaps y or gate");
  }
  call.scale = args.scale;
  call.tokens = args.tokens;
  call.streams = args.streams;
  call.hidden = args.hidden;
  return call;
}

inline absl::StatusOr<StreamMatchCall> Resolve(const Resolver& r, const StreamMatchArgs& args) {
  StreamMatchCall call;
  const uint64_t cols = uint64_t{args.streams} * args.hidden;
  RETURN_IF_ERROR(internal::CheckStreams(r, args.tokens, args.streams, args.hidden));
  RETURN_IF_ERROR(r.In(args.x, args.tokens, cols, "x", &call.x));
  RETURN_IF_ERROR(r.In(args.y, args.tokens, cols, "y", &call.y));
  RETURN_IF_ERROR(r.Out(args.out, args.tokens, args.streams, "out", &call.out));
  for (const InRows& in : {call.x, call.y}) {
    if (Overlap(in.base, in.stride, cols, call.out.base, call.out.stride, args.streams, args.tokens,
                args.tokens)) {
      return r.Invalid("out overlaps an input");
    }
  }
  call.scale = 1.0f / std::sqrt(static_cast<float>(args.hidden));
  call.tokens = args.tokens;
  call.streams = args.streams;
  call.hidden = args.hidden;
  return call;
}

// The square root of a scaled dot product, with its sign; 0 of 0.
inline float SignedRoot(float a) {
  const float root = std::sqrt(std::max(std::fabs(a), 1e-6f));
  return a > 0 ? root : a < 0 ? -root : a;
}

// Divides the columns of a matrix by their sums, or with `rows` its rows.
inline void DivideBySums(uint32_t m, bool rows, float epsilon, float* matrix) {
  const uint32_t line = rows ? m : 1;  // from one sum's values to the next sum's
  const uint32_t step = rows ? 1 : m;
  for (uint32_t i = 0; i < m; ++i) {
    float sum = 0;
    for (uint32_t k = 0; k < m; ++k) sum = sum + matrix[i * line + k * step];
    sum = sum + epsilon;
    for (uint32_t k = 0; k < m; ++k) matrix[i * line + k * step] = matrix[i * line + k * step] / sum;
  }
}

// Makes the factors of a row from r = 1 / rms(x): pre [m], and with iterations post [m] and the matrix [m, m]
// in `factors`. `exp` is section 7's.
template <class ExpOf>
void MakeStreamFactors(const StreamMixCall& call, const float* raw, float r, const ExpOf& exp, float* pre,
                       float* factors) {
  const uint32_t m = call.streams;
  const auto value = [&](uint32_t part, uint32_t i) {
    return std::fma(call.scale[part], raw[i] * r, call.base[i]);
  };
  const auto sigmoid = [&](float x) { return 1.0f / (1.0f + exp(-x)); };
  for (uint32_t i = 0; i < m; ++i) {
    pre[i] = sigmoid(value(0, i)) + call.epsilon;
  }
  if (call.iterations == 0) {
    return;
  }
  for (uint32_t i = 0; i < m; ++i) {
    factors[i] = 2.0f * sigmoid(value(1, m + i));
  }
  float* const matrix = factors + m;
  for (uint32_t i = 0; i < m; ++i) {
    float* const row = matrix + uint64_t{i} * m;
    for (uint32_t k = 0; k < m; ++k) row[k] = value(2, (2 + i) * m + k);
    const float largest = *std::max_element(row, row + m);
    float sum = 0;
    for (uint32_t k = 0; k < m; ++k) {
      row[k] = exp(row[k] - largest);
      sum = sum + row[k];
    }
    for (uint32_t k = 0; k < m; ++k) row[k] = row[k] / sum + call.epsilon;
  }
  DivideBySums(m, /*rows=*/false, call.epsilon, matrix);
  for (uint32_t i = 1; i < call.iterations; ++i) {
    DivideBySums(m, /*rows=*/true, call.epsilon, matrix);
    DivideBySums(m, /*rows=*/false, call.epsilon, matrix);
  }
}

}  // namespace sluice
