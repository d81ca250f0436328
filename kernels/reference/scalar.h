// ARITHMETIC.md sections 0-2, 5 and 7 in scalar code: sums, encoded values, dot products, exp.
//
// Thread safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/encoding.h"
#include "kernels/ops.h"
#include "kernels/resolver.h"

namespace sluice::reference {

// Thirty-two lanes, the tree, the closing +0 (section 0).
class LaneSum {
 public:
  void Add(uint64_t i, float term) { lanes_[i % 32] += term; }
  void AddProduct(uint64_t i, float a, float b) { lanes_[i % 32] = std::fma(a, b, lanes_[i % 32]); }
  float Total() const;

 private:
  float lanes_[32] = {};
};

// Section 7.
float Exp(float x);
inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// The factors of a neuron's coefficient (section 3).
float GateFactor(const ActivationSpec& activation, float g);
float UpFactor(const ActivationSpec& activation, float u);

// Value k of a row in an unquantized encoding.
float PlainValue(Encoding encoding, const uint8_t* row, uint64_t k);

// Codes [first, first + count) of a quantized row of `cols` values, all in one group (mxfp4: twice the E2M1
// value; IQ4: its table's), and the scale and zero of a group, or its min if the encoding has mins.
void ReadCodes(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t first, uint64_t count,
               int32_t* codes);
float ScaleAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group);
float ZeroAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group);

float MinAt(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t group);
// Value k of a quantized row.
float QuantizedValue(const EncodingDescriptor& d, const uint8_t* row, uint64_t cols, uint64_t k);

// Rounds values to int8 codes with one scale, as section 2 (b) and section 3 do: codes[i] ~ values[i] /
// scale. Returns the scale, 0 (and codes 0) if all values are tiny.
float RoundToInt8(const float* values, uint64_t count, int8_t* codes);

// x . row by section 2, (a) or (b) by the encoding; cols values.
float Dot(const EncodingDescriptor& d, const uint8_t* row, const float* x, uint64_t cols);

// Section 6: rotates the first `dims` values of a head.
void RopeHead(const float* cos_sin, uint32_t dims, bool interleaved, float* head);
// Section 6: writes a row of the cache, and returns its scale (q8; else 1); reads its first `count` values
// (q8: the codes).
float StoreKvRow(KvType type, const float* values, uint32_t dim, uint8_t* row);
void LoadKvRow(KvType type, const uint8_t* row, uint32_t count, float* values);

// Section 5, by the norm's kind; missing weights count as 1. y may be x.
void NormRow(const CallNorm& norm, const float* x, uint64_t cols, float* y);

}  // namespace sluice::reference
