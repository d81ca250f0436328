#include "common/pack/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/half.h"
#include "common/pack/pack_format.h"
#include "common/pack/row_layout.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr float kMaxQ8Code = 255.0f;
constexpr uint16_t kF16Infinity = 0x7c00;
constexpr float kSmallestNormalF16 = 0x1p-14f;

int64_t EncodeBf16(absl::Span<const float> values, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = FloatToBf16(values[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
  // Only values within half a step of 2^128 round to infinity: rare enough to look for afterwards.
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::fabs(values[i]) > 0x1.fep127f && (FloatToBf16(values[i]) & 0x7fff) == 0x7f80) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

int64_t EncodeF16(absl::Span<const float> values, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = FloatToF16(values[i]);
    if ((bits & 0x7fff) >= kF16Infinity) return static_cast<int64_t>(i);
    std::memcpy(out + 2 * i, &bits, 2);
  }
  return -1;
}

// The smallest step that spans `range` in 255 codes, as f16; infinity if there is none.
uint16_t Q8Scale(float range) {
  const float step = range / kMaxQ8Code;
  uint16_t scale = FloatToF16(step);
  // Subnormal halves are coarse: rounding down would cut the range, or make the step zero.
  if (step < kSmallestNormalF16 && F16ToFloat(scale) < step) ++scale;
  return scale;
}

// One group of at most 128 values: codes into `codes`, scale and zero as f16 bits. False if they do not fit.
bool EncodeQ8Group(absl::Span<const float> values, uint8_t* codes, uint16_t* scale, uint16_t* zero) {
  float low = 0;
  float high = 0;
  for (const float value : values) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  if (low == high) {
    *scale = 0;
    *zero = 0;
    std::fill_n(codes, values.size(), uint8_t{0});
    return true;
  }
  *scale = Q8Scale(high - low);
  if (*scale >= kF16Infinity) return false;
  const float step = F16ToFloat(*scale);
  *zero = FloatToF16(-low / step);
  const float shift = F16ToFloat(*zero);
  for (size_t i = 0; i < values.size(); ++i) {
    // The sum is rounded to even by adding 1.5 * 2^23, where float32 has no fraction bits left.
    constexpr float kRounder = 12582912.0f;
    const float code = (values[i] / step + shift + kRounder) - kRounder;
    codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0f, kMaxQ8Code));
  }
  return true;
}

int64_t EncodeQ8(const EncodingDescriptor& d, absl::Span<const float> values, std::byte* out) {
  const size_t columns = values.size();
  std::memset(out, 0, CodeBytes(d, columns));
  std::byte* const scales = out + ScaleOffset(d, columns);
  std::byte* const zeros = out + ZeroOffset(d, columns);
  uint8_t codes[128];
  for (size_t group = 0, begin = 0; begin < columns; ++group, begin += d.group) {
    const absl::Span<const float> members = values.subspan(begin, d.group);
    uint16_t scale = 0;
    uint16_t zero = 0;
    if (!EncodeQ8Group(members, codes, &scale, &zero)) return static_cast<int64_t>(begin);
    std::memcpy(scales + 2 * group, &scale, 2);
    std::memcpy(zeros + 2 * group, &zero, 2);
    for (size_t i = 0; i < members.size(); ++i) {
      const CodePlace place = PlaceOfCode(8, begin + i);
      out[place.byte_offset + place.shift / 8] = static_cast<std::byte>(codes[i]);
    }
  }
  return -1;
}

void DecodeQ8(const EncodingDescriptor& d, const std::byte* row, absl::Span<float> values) {
  const size_t columns = values.size();
  for (size_t i = 0; i < columns; ++i) {
    uint16_t scale = 0;
    uint16_t zero = 0;
    std::memcpy(&scale, row + ScaleOffset(d, columns) + 2 * (i / d.group), 2);
    std::memcpy(&zero, row + ZeroOffset(d, columns) + 2 * (i / d.group), 2);
    const CodePlace place = PlaceOfCode(8, i);
    const float code = static_cast<float>(static_cast<uint8_t>(row[place.byte_offset + place.shift / 8]));
    values[i] = (code - F16ToFloat(zero)) * F16ToFloat(scale);
  }
}

template <float (*Widen)(uint16_t)>
void DecodeHalves(const std::byte* row, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, row + 2 * i, 2);
    values[i] = Widen(bits);
  }
}

}  // namespace

bool CanEncode(Encoding encoding) {
  return encoding == Encoding::kBf16 || encoding == Encoding::kF16 || encoding == Encoding::kF32 ||
         encoding == Encoding::kQ8;
}

int64_t EncodeRow(const EncodingDescriptor& descriptor, absl::Span<const float> values, std::byte* out) {
  switch (descriptor.encoding) {
    case Encoding::kBf16:
      return EncodeBf16(values, out);
    case Encoding::kF16:
      return EncodeF16(values, out);
    case Encoding::kQ8:
      return EncodeQ8(descriptor, values, out);
    default:  // kF32, by REQUIRES
      std::memcpy(out, values.data(), values.size() * sizeof(float));
      return -1;
  }
}

absl::Status DecodeRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values) {
  switch (descriptor.encoding) {
    case Encoding::kBf16:
      DecodeHalves<Bf16ToFloat>(row, values);
      return absl::OkStatus();
    case Encoding::kF16:
      DecodeHalves<F16ToFloat>(row, values);
      return absl::OkStatus();
    case Encoding::kF32:
      std::memcpy(values.data(), row, values.size() * sizeof(float));
      return absl::OkStatus();
    case Encoding::kQ8:
      DecodeQ8(descriptor, row, values);
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrCat("rows of ", EncodingName(descriptor.encoding), " cannot be decoded yet"));
  }
}

}  // namespace sluice
