#include "pack/mxfp4_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr EncodingDescriptor kDescriptor = MakeDescriptor(Encoding::kMxfp4);
constexpr float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
constexpr uint32_t kSignBit = 8;
constexpr int kScaleBias = 127;
constexpr int kLargestPower = 2;  // the largest code's binade: 4 and 6

// The scale byte that puts the largest of `values` into the largest code's binade.
int ScaleOf(absl::Span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  if (largest == 0) return kScaleBias;
  return std::max(0, std::ilogb(largest) - kLargestPower + kScaleBias);
}

// The code of `value` under `scale`, or -1.
int CodeOf(float value, int scale) {
  const double magnitude = std::ldexp(std::fabs(static_cast<double>(value)), kScaleBias - scale);
  for (uint32_t code = 0; code < kSignBit; ++code) {
    if (magnitude == kMagnitudes[code]) return static_cast<int>(std::signbit(value) ? code | kSignBit : code);
  }
  return -1;
}

}  // namespace

float Mxfp4Value(uint32_t code, int scale) {
  if (scale == kMxfp4NanScale) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = std::ldexp(kMagnitudes[code & (kSignBit - 1)], scale - kScaleBias);
  return (code & kSignBit) != 0 ? -magnitude : magnitude;
}

// The OCP MX format: 32 values share a power of two. Only values that the format holds exactly are encoded,
// so nothing is rounded here.
int64_t EncodeMxfp4Row(absl::Span<const float> values, std::byte* out) {
  std::memset(out, 0, RowBytes(kDescriptor, values.size()));
  std::byte* const scales = out + ScaleOffset(kDescriptor, values.size());
  for (size_t begin = 0; begin < values.size(); begin += kDescriptor.group) {
    const absl::Span<const float> group = values.subspan(begin, kDescriptor.group);
    const int scale = ScaleOf(group);
    scales[begin / kDescriptor.group] = static_cast<std::byte>(scale);
    for (size_t i = 0; i < group.size(); ++i) {
      const int code = CodeOf(group[i], scale);
      if (code < 0) return static_cast<int64_t>(begin + i);
      const CodeLocation location = LocateCode(4, begin + i);
      uint16_t word = 0;
      std::memcpy(&word, out + location.byte_offset, sizeof(word));
      word = static_cast<uint16_t>(word | code << location.shift);
      std::memcpy(out + location.byte_offset, &word, sizeof(word));
    }
  }
  return -1;
}

void DecodeMxfp4Row(const std::byte* row, absl::Span<float> values) {
  const std::byte* const scales = row + ScaleOffset(kDescriptor, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const CodeLocation location = LocateCode(4, i);
    uint16_t word = 0;
    std::memcpy(&word, row + location.byte_offset, sizeof(word));
    values[i] = Mxfp4Value(word >> location.shift & 15, static_cast<uint8_t>(scales[i / kDescriptor.group]));
  }
}

}  // namespace sluice
