#include "pack/row_codec.h"

#include <cmath>
#include <cstring>

#include "common/half.h"
#include "pack/block_row.h"
#include "pack/mxfp4_row.h"
#include "pack/pack_format.h"
#include "pack/quant_row.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

constexpr uint16_t kF16Infinity = 0x7c00;

// Both return the index of the first value that the encoding cannot hold, or -1.
int64_t EncodeBf16(absl::Span<const float> values, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = FloatToBf16(values[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
  // Only values within half a step of 2^128 round to infinity: rare enough to check afterwards.
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
    // bf16 checkpoints may hold values beyond f16's range, which would silently become infinite.
    if ((bits & 0x7fff) >= kF16Infinity) return static_cast<int64_t>(i);
    std::memcpy(out + 2 * i, &bits, 2);
  }
  return -1;
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
  return encoding != Encoding::kInvalid && encoding != Encoding::kMxfp4 && !IsBlockEncoding(encoding);
}

int64_t EncodeRow(const EncodingDescriptor& descriptor, absl::Span<const float> values, std::byte* out) {
  switch (descriptor.encoding) {
    case Encoding::kBf16:
      return EncodeBf16(values, out);
    case Encoding::kF16:
      return EncodeF16(values, out);
    case Encoding::kQ8:
    case Encoding::kQ4:
    case Encoding::kQ3:
    case Encoding::kQ2:
      return EncodeQuantizedRow(descriptor, values, out);
    case Encoding::kMxfp4:
      return EncodeMxfp4Row(values, out);
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
    case Encoding::kQ4:
    case Encoding::kQ3:
    case Encoding::kQ2:
      DecodeQuantizedRow(descriptor, row, values);
      return absl::OkStatus();
    case Encoding::kMxfp4:
      DecodeMxfp4Row(row, values);
      return absl::OkStatus();
    default:
      if (IsBlockEncoding(descriptor.encoding)) {
        DecodeBlockRow(descriptor, row, values);
        return absl::OkStatus();
      }
      return absl::UnimplementedError(
          absl::StrCat("rows of ", EncodingName(descriptor.encoding), " cannot be decoded"));
  }
}

}  // namespace sluice
