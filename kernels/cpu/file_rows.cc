#include "kernels/cpu/file_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "common/base/file_blocks.h"
#include "pack/row_layout.h"

namespace sluice::cpu {
namespace {

constexpr uint32_t kMaxValues = 256;  // of a block
constexpr float kZero = 128;          // of expanded codes

// One block's codes and scales.
struct Unpacked {
  alignas(32) int8_t codes[kMaxValues];
  float scales[kMaxValues / 16];
};

// Calls use(first value, values within the row, Unpacked) for each block of a row.
template <typename Use>
void ForEachBlock(const RowShape& shape, const uint8_t* row, const Use& use) {
  const RowTraits traits = TraitsOf(shape.encoding);
  const uint32_t values = uint32_t{traits.group} * traits.super_group;
  float factor = 1;
  if (HasRowFactor(shape.encoding)) {
    std::memcpy(&factor, row + FileBlockBytes(shape.encoding, shape.cols), sizeof(factor));
  }
  Unpacked block;
  for (uint32_t first = 0; first < shape.cols; first += values, row += traits.block_bytes) {
    UnpackFileBlock(shape.encoding, row, block.codes, block.scales);
    if (factor != 1) {
      for (uint32_t g = 0; g < traits.super_group; ++g) block.scales[g] *= factor;
    }
    use(first, std::min(values, shape.cols - first), block);
  }
}

// Writes 32 codes plus 128 as q8's plane has them: code i beside code i + 16.
void StorePlaneBlock(const int8_t* codes, uint8_t* out) {
  const __m128i bias = _mm_set1_epi8(-128);
  const __m128i low = _mm_xor_si128(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)), bias);
  const __m128i high = _mm_xor_si128(_mm_load_si128(reinterpret_cast<const __m128i*>(codes + 16)), bias);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi8(low, high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi8(low, high));
}

// Fetches the row that is expanded after the next one.
void Prefetch(const QuantDotCall& call, uint32_t r) {
  constexpr uint32_t kAhead = 2;
  if (r + kAhead >= std::max(call.rows, call.prefetch.listed)) return;
  const uint8_t* const row = call.w[r + kAhead];
  for (uint32_t at = 0; at < call.shape.bytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(row) + at, _MM_HINT_T0);
  }
}

}  // namespace

RowShape ExpandedShape(const RowShape& file_row) {
  RowShape shape;
  shape.cols = file_row.cols;
  shape.group = file_row.group;
  shape.groups = file_row.groups;
  shape.meta = RowMeta::kScale;
  shape.zero = kZero;
  shape.float_scales = true;
  shape.scales = static_cast<uint32_t>(PlaneBytes(8, file_row.cols));
  shape.high_plane = shape.scales;
  shape.zeros = shape.scales;
  shape.bytes = shape.scales + static_cast<uint32_t>(sizeof(float)) * shape.groups;
  return shape;
}

void ExpandFileRow(const RowShape& file_row, const uint8_t* row, uint8_t* out) {
  uint8_t* scales = out + PlaneBytes(8, file_row.cols);
  ForEachBlock(file_row, row, [&](uint32_t first, uint32_t count, const Unpacked& block) {
    // Codes behind the row's end are multiplied with zeros.
    for (uint32_t i = 0; i < count; i += 32) StorePlaneBlock(block.codes + i, out + first + i);
    const uint32_t groups = (count + file_row.group - 1) / file_row.group;
    std::memcpy(scales, block.scales, groups * sizeof(float));
    scales += groups * sizeof(float);
  });
}

void MultiplyExpanded(const QuantDotCall& call, uint32_t at_once, void (*product)(const QuantDotCall&)) {
  QuantDotCall part = call;
  part.shape = ExpandedShape(call.shape);
  part.prefetch = {};
  const uint32_t stride = RoundUp(part.shape.bytes, 64);
  auto* const expanded = reinterpret_cast<uint8_t*>(call.scratch + QuantGemmFloats(call.shape.cols));
  const uint8_t* rows[kMaxExpandedRows];
  for (uint32_t i = 0; i < at_once; ++i) rows[i] = expanded + uint64_t{i} * stride;
  part.w = rows;
  for (uint32_t r = 0; r < call.rows; r += at_once) {
    part.rows = std::min(at_once, call.rows - r);
    part.first = call.first + r;
    for (uint32_t i = 0; i < part.rows; ++i) {
      Prefetch(call, r + i);
      ExpandFileRow(call.shape, call.w[r + i], expanded + uint64_t{i} * stride);
    }
    product(part);
  }
}

void DecodeFileRow(const RowShape& file_row, const uint8_t* row, float scale, float* y) {
  ForEachBlock(file_row, row, [&](uint32_t first, uint32_t count, const Unpacked& block) {
    for (uint32_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(block.codes[i]) * block.scales[i / file_row.group];
      y[first + i] = scale * value;
    }
  });
}

}  // namespace sluice::cpu
