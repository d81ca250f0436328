#include "pack/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "common/base/half.h"
#include "pack/pack_format.h"
#include "pack/quant_row.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Offsets of a row's tables.
struct RowPlaces {
  RowPlaces(const EncodingDescriptor& d, uint64_t columns)
      : scales(ScaleOffset(d, columns)), mins(ZeroOffset(d, columns)), supers(SuperGroupOffset(d, columns)) {}
  uint64_t scales;
  uint64_t mins;
  uint64_t supers;
};

// Copies a block's numbers of 8 or 16 groups by one instruction.
void CopyNumbers(const uint8_t* from, size_t count, std::byte* to) {
  if (count == 8) {
    std::memcpy(to, from, 8);
  } else if (count == 16) {
    std::memcpy(to, from, 16);
  } else {
    std::memcpy(to, from, count);
  }
}

void StoreNumbers(const EncodingDescriptor& d, const RowPlaces& at, size_t groups, const CodeBlock& block,
                  size_t index, std::byte* out) {
  const RowTraits traits = TraitsOf(d.encoding);
  const bool mins = HasMins(traits.meta);
  if (traits.super_group == 0) {
    std::memcpy(out + at.scales + 2 * index, &block.d, 2);
    if (mins) std::memcpy(out + at.mins + 2 * index, &block.dmin, 2);
    return;
  }
  const size_t first = index * traits.super_group;
  const size_t count = std::min<size_t>(traits.super_group, groups - first);
  CopyNumbers(block.scales, count, out + at.scales + first);
  if (mins) CopyNumbers(block.mins, count, out + at.mins + first);
  std::byte* const numbers = out + at.supers + index * SuperGroupBytes(d.encoding);
  std::memcpy(numbers, &block.d, 2);
  if (mins) std::memcpy(numbers + 2, &block.dmin, 2);
}

void LoadNumbers(const EncodingDescriptor& d, const RowPlaces& at, size_t groups, const std::byte* row,
                 size_t index, CodeBlock* block) {
  const RowTraits traits = TraitsOf(d.encoding);
  const bool mins = HasMins(traits.meta);
  if (traits.super_group == 0) {
    std::memcpy(&block->d, row + at.scales + 2 * index, 2);
    if (mins) std::memcpy(&block->dmin, row + at.mins + 2 * index, 2);
    return;
  }
  const size_t first = index * traits.super_group;
  const size_t count = std::min<size_t>(traits.super_group, groups - first);
  std::memcpy(block->scales, row + at.scales + first, count);
  if (mins) std::memcpy(block->mins, row + at.mins + first, count);
  const std::byte* const numbers = row + at.supers + index * SuperGroupBytes(d.encoding);
  std::memcpy(&block->d, numbers, 2);
  if (mins) std::memcpy(&block->dmin, numbers + 2, 2);
}

// Writes the file's blocks, which fill the row, and the factor that all of them have.
void EncodeFileBlocks(const EncodingDescriptor& d, absl::Span<const CodeBlock> blocks, size_t columns,
                      std::byte* out) {
  const size_t bytes = TraitsOf(d.encoding).block_bytes;
  for (size_t b = 0; b < blocks.size(); ++b) std::memcpy(out + b * bytes, blocks[b].codes, bytes);
  if (!HasRowFactor(d.encoding)) return;
  const float factor = blocks.empty() ? 1 : blocks[0].factor;
  std::memcpy(out + FileBlockBytes(d.encoding, columns), &factor, sizeof(factor));
}

void LoadFileBlock(const EncodingDescriptor& d, const std::byte* row, size_t columns, size_t index,
                   CodeBlock* block) {
  const size_t bytes = TraitsOf(d.encoding).block_bytes;
  std::memcpy(block->codes, row + index * bytes, bytes);
  if (!HasRowFactor(d.encoding)) return;
  std::memcpy(&block->factor, row + FileBlockBytes(d.encoding, columns), sizeof(block->factor));
}

}  // namespace

void EncodeBlockRow(const EncodingDescriptor& descriptor, absl::Span<const CodeBlock> blocks, size_t columns,
                    std::byte* out) {
  if (IsFileBlock(descriptor.encoding)) return EncodeFileBlocks(descriptor, blocks, columns, out);
  const RowPlaces at(descriptor, columns);
  const size_t values = ValuesPerBlock(descriptor.encoding);
  const size_t groups = GroupsPerRow(descriptor, columns);
  // Planes are written whole; tables may have a gap.
  std::memset(out + at.scales, 0, RowBytes(descriptor, columns) - at.scales);
  if (values == kMaxBlockValues) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      const size_t count = std::min(values, columns - b * values);
      StoreSomeCodes(descriptor.encoding, absl::MakeConstSpan(blocks[b].codes, count), b * values, columns,
                     out);
      StoreNumbers(descriptor, at, groups, blocks[b], b, out);
    }
    return;
  }
  const auto codes = std::make_unique_for_overwrite<uint8_t[]>(columns);
  for (size_t b = 0; b < blocks.size(); ++b) {
    std::memcpy(codes.get() + b * values, blocks[b].codes, std::min(values, columns - b * values));
    StoreNumbers(descriptor, at, groups, blocks[b], b, out);
  }
  StoreCodes(descriptor.encoding, absl::MakeConstSpan(codes.get(), columns), out);
}

void DecodeBlockRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values) {
  const RowPlaces at(descriptor, values.size());
  const size_t groups = GroupsPerRow(descriptor, values.size());
  const size_t length = ValuesPerBlock(descriptor.encoding);
  const bool in_file = IsFileBlock(descriptor.encoding);
  std::vector<uint8_t> codes(in_file ? 0 : values.size());
  if (!in_file) LoadCodes(descriptor.encoding, row, absl::MakeSpan(codes));
  float decoded[kMaxBlockValues];
  for (size_t first = 0, b = 0; first < values.size(); first += length, ++b) {
    CodeBlock block = {};
    const size_t count = std::min(length, values.size() - first);
    if (in_file) {
      LoadFileBlock(descriptor, row, values.size(), b, &block);
    } else {
      std::memcpy(block.codes, codes.data() + first, count);
      LoadNumbers(descriptor, at, groups, row, b, &block);
    }
    DecodeCodeBlock(descriptor.encoding, block, decoded);
    std::memcpy(values.data() + first, decoded, count * sizeof(float));
  }
}

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
