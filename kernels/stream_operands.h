// Resolved calls on residual streams; as operands.h, and kernels of a GPU get them by value too.
//
// Thread safety: plain values; valid during the call only.
#pragma once

#include <cstdint>

#include "kernels/operands.h"

namespace sluice {

struct StreamMixCall {
  InRows x;
  InRows raw;
  const float* scale = nullptr;
  const float* base = nullptr;
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  float norm_epsilon = 0;
  float epsilon = 0;
  uint32_t iterations = 0;
  OutRows y;
  OutRows factors;  // base nullptr: none
  bool operator==(const StreamMixCall&) const = default;
};

struct StreamWriteCall {
  InRows x;
  InRows y;
  InRows factors;
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  OutRows out;
  bool operator==(const StreamWriteCall&) const = default;
};

struct StreamMeanCall {
  InRows x;
  InRows gate;
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  OutRows y;
  bool operator==(const StreamMeanCall&) const = default;
};

struct StreamAddCall {
  InRows x;  // base nullptr: zeros
  InRows y;
  InRows gate;
  float scale = 1;
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  OutRows out;
  bool operator==(const StreamAddCall&) const = default;
};

struct StreamMatchCall {
  InRows x;
  InRows y;
  float scale = 0;  // of the dot products
  uint32_t tokens = 0;
  uint32_t streams = 0;
  uint32_t hidden = 0;
  OutRows out;
  bool operator==(const StreamMatchCall&) const = default;
};

}  // namespace sluice
