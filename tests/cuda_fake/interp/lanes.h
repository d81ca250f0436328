// The loops over a warp's lanes that instructions are made of: an operation is a struct with a static Do().
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "tests/cuda_fake/interp/decoder.h"
#include "tests/cuda_fake/interp/execution.h"
#include "tests/cuda_fake/interp/warp.h"

namespace sluice::cuda_fake {

// f(lane) for the lanes of `mask`; the full warp as a loop that vectorises (a row aliases another entirely or
// not at all).
template <typename F>
inline void ForLanes(uint32_t mask, F f) {
  if (mask == kFullMask) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      f(lane);
    }
  } else {
    ForEachLane(mask, f);
  }
}

// d[lane] = f(lane) for the lanes of `mask`. f may be asked for other lanes too.
template <typename D, typename F>
inline void SetLanes(D* d, uint32_t mask, F f) {
  constexpr int kFew = 4;
  if (mask == kFullMask) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      d[lane] = f(lane);
    }
  } else if (__builtin_popcount(mask) <= kFew) {
    ForEachLane(mask, [=](int lane) { d[lane] = f(lane); });
  } else {
    D values[kWarpLanes];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      values[lane] = f(lane);
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      d[lane] = (mask >> lane & 1) != 0 ? values[lane] : d[lane];
    }
  }
}

template <typename D, typename A, typename Op>
Outcome Unary(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  D* const d = warp.Row<D>(in.d);
  const A* const a = warp.Row<A>(in.a);
  SetLanes(d, mask, [=](int l) { return Op::Do(a[l]); });
  return Outcome::kNext;
}

template <typename D, typename A, typename B, typename Op>
Outcome Binary(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  D* const d = warp.Row<D>(in.d);
  const A* const a = warp.Row<A>(in.a);
  const B* const b = warp.Row<B>(in.b);
  SetLanes(d, mask, [=](int l) { return Op::Do(a[l], b[l]); });
  return Outcome::kNext;
}

template <typename D, typename A, typename C, typename Op>
Outcome Ternary(Execution&, Warp& warp, const Instruction& in, uint32_t mask) {
  D* const d = warp.Row<D>(in.d);
  const A* const a = warp.Row<A>(in.a);
  const A* const b = warp.Row<A>(in.b);
  const C* const c = warp.Row<C>(in.c);
  SetLanes(d, mask, [=](int l) { return Op::Do(a[l], b[l], c[l]); });
  return Outcome::kNext;
}

// True if all lanes that in.c names have come to this instruction, counting those in *mask. Then *mask is all
// of them; otherwise the lanes have been set to wait, and the instruction has jumped.
bool GatherLanes(Execution& execution, Warp& warp, const Instruction& in, uint32_t* mask);

// Decoders for float types of opcodes that integers have too (float_ops.cc).
absl::Status DecodeFloat(Decoder& decoder, const Statement& statement, Instruction* in);

}  // namespace sluice::cuda_fake
