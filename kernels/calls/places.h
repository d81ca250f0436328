// The tensors of a resolved call: addresses of the device that computes it, with their shapes. Made by the
// Resolver (resolver.h); valid during the call only.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace sluice {

// Float rows; the operation defines the length of Row(i).
struct InRows {
  const float* base = nullptr;
  uint64_t stride = 0;  // floats
  const float* Row(uint64_t i) const { return base + i * stride; }
};

struct OutRows {
  float* base = nullptr;
  uint64_t stride = 0;
  float* Row(uint64_t i) const { return base + i * stride; }
};

// An encoded matrix. Row(i) is nullptr for an absent row.
struct CallWeights {
  EncodingDescriptor encoding;
  const uint8_t* base = nullptr;
  uint64_t stride = 0;  // bytes
  uint32_t rows = 0;
  uint32_t cols = 0;
  const int32_t* positions = nullptr;  // [rows], host data; nullptr: row i is the i-th
  const uint8_t* Row(uint32_t i) const {
    if (positions == nullptr) {
      return base + i * stride;
    }
    return positions[i] < 0 ? nullptr : base + static_cast<uint64_t>(positions[i]) * stride;
  }
};

struct CallNorm {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // nullptr: no norm
  const float* bias = nullptr;    // kLayer: nullptr: none
  float epsilon = 0;
};

struct CallKv {
  KvType type = KvType::kF16;
  uint8_t* k = nullptr;  // written by RopeKv and LatentKv only
  uint8_t* v = nullptr;  // k where values lie within K rows
  uint64_t page_stride = 0;
  uint32_t pages = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t value_dim = 0;  // head_dim; less: values lie within K rows
};

// The first position that the query at `position` sees; it never decreases with `position`.
inline uint32_t FirstVisible(uint32_t position, uint32_t sliding_window, uint32_t chunk) {
  const uint32_t window =
      sliding_window == 0 || position < sliding_window ? 0 : position - sliding_window + 1;
  const uint32_t chunk_start = chunk == 0 ? 0 : position / chunk * chunk;
  return window > chunk_start ? window : chunk_start;
}

}  // namespace sluice
