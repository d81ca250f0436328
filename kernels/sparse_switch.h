// The rule for computing a masked expert densely. Leaving rows out saves memory traffic and multiplications,
// but the kept rows are read by lists, row by row, token by token: with many tokens, or with few neurons left
// out, reading everything once is faster. The break-even point depends on the machine, the shapes and the
// encodings, so it is measured (sparse_profile.h) and set in a backend.
//
// Only the time depends on it: a masked neuron has coefficient 0 either way, so the result has the same bits
// and no token depends on its batch.
//
// Thread safety: plain values.
#pragma once

#include <bit>
#include <cstdint>

#include "common/encoding.h"
#include "kernels/ops.h"

namespace sluice {

struct SparseSwitch {
  // Entry i is for experts with up to 2^i tokens in the call; the last one also for all above.
  static constexpr uint32_t kBatches = 8;
  // The share of coefficients kept from which on all rows are read, 0..1. 0: always; 1: only if all are kept.
  float dense_above[kBatches] = {0.75f, 0.75f, 0.75f, 0.7f, 0.6f, 0.5f, 0.4f, 0.2f};

  float DenseAbove(uint64_t tokens) const {
    const uint32_t i = static_cast<uint32_t>(std::bit_width(tokens <= 1 ? uint64_t{0} : tokens - 1));
    return dense_above[i < kBatches ? i : kBatches - 1];
  }
  bool operator==(const SparseSwitch&) const = default;
};

// A switch for experts of one kind.
struct SparseSwitchEntry {
  SparsityOrder order = SparsityOrder::kNone;
  EncodingDescriptor up, gate, down;
  SparseSwitch at;
};

// Maximum number of entries in a backend.
inline constexpr uint32_t kMaxSparseSwitches = 32;

}  // namespace sluice
