// Resolved calls (*_calls.h) without lists of the host, and the operands of the others: addresses of the
// device that computes them, with their shapes. Kernels of a GPU get them by value, so this header includes
// neither Abseil nor the device interface.
//
// Thread safety: plain values; valid during the call only.
#pragma once

#include <cstdint>

#include "common/model/model_config.h"

namespace sluice {

// Float rows; the operation defines the length of Row(i).
struct InRows {
  const float* base = nullptr;
  uint64_t stride = 0;  // floats
  constexpr const float* Row(uint64_t i) const { return base + i * stride; }
  constexpr const float& At(uint64_t row, uint64_t col) const { return base[row * stride + col]; }
  bool operator==(const InRows&) const = default;
};

struct OutRows {
  float* base = nullptr;
  uint64_t stride = 0;
  constexpr float* Row(uint64_t i) const { return base + i * stride; }
  constexpr float& At(uint64_t row, uint64_t col) const { return base[row * stride + col]; }
  bool operator==(const OutRows&) const = default;
};

struct CallNorm {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;  // nullptr: no norm
  const float* bias = nullptr;    // kLayer: nullptr: none
  float epsilon = 0;
  bool operator==(const CallNorm&) const = default;
};

// ---------------------------------------------------------------- rows

struct OutputGateCall {
  OutRows x;
  InRows gate;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  uint32_t width = 1;  // values of x that share a gate
  GateActivation activation = GateActivation::kSigmoid;
  constexpr uint32_t Gates() const { return cols / width; }
  bool operator==(const OutputGateCall&) const = default;
};

struct SoftCapCall {
  OutRows x;
  uint32_t tokens = 0;
  uint32_t cols = 0;
  float cap = 0;
  bool operator==(const SoftCapCall&) const = default;
};

struct ScaleRowsCall {
  InRows x;
  const float* weights = nullptr;  // [tokens, ranks], nullptr: 1
  uint32_t tokens = 0;
  uint32_t ranks = 0;
  uint32_t cols = 0;
  OutRows y;
  bool operator==(const ScaleRowsCall&) const = default;
};

struct CombineCall {
  InRows y;
  const float* weights = nullptr;  // nullptr: 1 everywhere
  uint32_t tokens = 0;
  uint32_t top_k = 0;
  uint32_t hidden = 0;
  InRows residual;  // base nullptr: zeros
  OutRows out;
  float scale = 1;
  const float* gain = nullptr;  // nullptr: 1
  bool operator==(const CombineCall&) const = default;
};

inline constexpr uint32_t kMaxTopLogits = 1024;
struct TopLogitsCall {
  InRows logits;
  uint32_t tokens = 0;
  uint32_t vocab = 0;
  uint32_t k = 0;  // up to kMaxTopLogits
  int32_t* ids = nullptr;
  float* values = nullptr;
  float* log_sum_exp = nullptr;  // nullptr: not wanted
  bool operator==(const TopLogitsCall&) const = default;
};

// ---------------------------------------------------------------- recurrent states

struct GatedDeltaOperands {
  InRows qkv;
  InRows z;
  InRows beta;
  InRows decay;
  uint32_t tokens = 0;
  DeltaConfig shape;
  InRows conv;  // [conv_cols] rows
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  CallNorm norm;
  OutRows out;
  // Decays of a value head.
  constexpr uint32_t HeadDecays() const { return shape.channel_decay ? shape.key_dim : 1; }
  constexpr uint32_t ConvCols() const {
    return 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
  }
  bool operator==(const GatedDeltaOperands&) const = default;
};

struct MambaOperands {
  InRows z;
  InRows xbc;  // x by head, B by group, C by group: ConvCols()
  InRows dt;
  uint32_t tokens = 0;
  MambaConfig shape;
  InRows conv;  // [conv_kernel] rows
  const float* conv_bias = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  const float* skip = nullptr;
  CallNorm norm;
  OutRows out;
  constexpr uint32_t Values() const { return shape.heads * shape.head_dim; }
  constexpr uint32_t ConvCols() const { return Values() + 2 * shape.groups * shape.state; }
  bool operator==(const MambaOperands&) const = default;
};

struct ShortConvOperands {
  InRows bcx;
  uint32_t tokens = 0;
  ShortConvConfig shape;
  uint32_t dilation = 1;
  // Rows before a token's own that its convolution reaches.
  constexpr uint32_t Reach() const { return (shape.kernel - 1) * dilation; }
  bool gated = true;            // out = c * convolution(b * x), else silu(convolution(x))
  InRows conv;                  // [kernel] rows
  const float* bias = nullptr;  // [width], nullptr: none
  OutRows out;
  bool operator==(const ShortConvOperands&) const = default;
};

struct SelectiveScanOperands {
  InRows x;
  InRows z;
  InRows step;
  InRows b;
  InRows c;
  uint32_t tokens = 0;
  uint32_t channels = 0;
  uint32_t state_size = 0;
  InRows a_log;  // [state_size] rows
  const float* skip = nullptr;
  OutRows out;
  bool operator==(const SelectiveScanOperands&) const = default;
};

}  // namespace sluice
