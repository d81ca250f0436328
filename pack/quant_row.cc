#include "pack/quant_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/half.h"
#include "common/base/hqq.h"
#include "common/base/vector_clones.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

using CodeUnit = uint8_t __attribute__((vector_size(kPlaneLanes)));       // sixteen codes
using WordUnit = uint16_t __attribute__((vector_size(2 * kPlaneLanes)));  // a block of a plane

// Shift of unit `unit` of a block's codes within their words; `high`: in the second plane beside 4-bit codes
// (LocateHighCode).
constexpr uint32_t UnitShift(uint32_t bits, bool high, uint32_t unit) {
  return high ? 8 * (unit % 4 / 2) + bits * (2 * (unit / 4) + unit % 2) : bits * unit;
}

// Stores kBits bits of each code, taken from `code_shift` up, in a plane.
template <uint32_t kBits, bool kHigh>
SLUICE_ALWAYS_INLINE void StorePlaneOf(absl::Span<const uint8_t> codes, uint32_t code_shift,
                                       std::byte* plane) {
  constexpr uint32_t kUnits = 16 / kBits;  // of a block
  constexpr size_t kBlockCodes = kUnits * kPlaneLanes;
  for (size_t block = 0; block < codes.size(); block += kBlockCodes, plane += kPlaneBlockBytes) {
    const uint8_t* from = codes.data() + block;
    uint8_t rest[kBlockCodes] = {};
    if (codes.size() - block < kBlockCodes) {
      std::memcpy(rest, from, codes.size() - block);
      from = rest;
    }
    WordUnit words = {};
#pragma GCC unroll 16
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      CodeUnit unit_codes;
      std::memcpy(&unit_codes, from + unit * kPlaneLanes, kPlaneLanes);
      unit_codes = (unit_codes >> code_shift) & static_cast<uint8_t>((1u << kBits) - 1);
      words |= __builtin_convertvector(unit_codes, WordUnit) << UnitShift(kBits, kHigh, unit);
    }
    std::memcpy(plane, &words, kPlaneBlockBytes);
  }
}

// A plane is laid out in blocks of 16-bit lanes: successive codes go to successive lanes, and after the last
// lane to the next bits of each, so that a vector load, a shift and a mask give the kernels as many codes as
// there are lanes.
SLUICE_VECTOR_CLONES
void StorePlane(absl::Span<const uint8_t> codes, uint32_t bits, uint32_t code_shift, std::byte* plane) {
  switch (bits) {
    case 1:
      return StorePlaneOf<1, false>(codes, code_shift, plane);
    case 2:
      return StorePlaneOf<2, false>(codes, code_shift, plane);
    case 4:
      return StorePlaneOf<4, false>(codes, code_shift, plane);
    default:  // 8: no plane has other bits
      return StorePlaneOf<8, false>(codes, code_shift, plane);
  }
}

// The same for the bits of a second plane beside one of 4 bits.
SLUICE_VECTOR_CLONES
void StoreHighPlane(absl::Span<const uint8_t> codes, uint32_t bits, uint32_t code_shift, std::byte* plane) {
  return bits == 1 ? StorePlaneOf<1, true>(codes, code_shift, plane)
                   : StorePlaneOf<2, true>(codes, code_shift, plane);
}

// Adds a plane's codes, shifted left by `code_shift`, to `codes`; place(column) returns each one's position.
template <typename Locator>
void LoadPlane(const std::byte* plane, uint32_t bits, uint32_t code_shift, absl::Span<uint8_t> codes,
               const Locator& location) {
  const uint32_t mask = (1u << bits) - 1;
  for (size_t column = 0; column < codes.size(); ++column) {
    const CodeLocation at = location(column);
    uint16_t word = 0;
    std::memcpy(&word, plane + at.byte_offset, 2);
    codes[column] |= static_cast<uint8_t>(((word >> at.shift) & mask) << code_shift);
  }
}

}  // namespace

void StoreCodes(Encoding encoding, absl::Span<const uint8_t> codes, std::byte* row) {
  StoreSomeCodes(encoding, codes, 0, codes.size(), row);
}

void StoreSomeCodes(Encoding encoding, absl::Span<const uint8_t> codes, size_t first, size_t columns,
                    std::byte* row) {
  const RowTraits traits = TraitsOf(encoding);
  StorePlane(codes, traits.low_bits, 0, row + first * traits.low_bits / 8);
  if (traits.high_bits == 0) return;
  std::byte* const high = row + PlaneBytes(traits.low_bits, columns) + first * traits.high_bits / 8;
  traits.low_bits == 4 ? StoreHighPlane(codes, traits.high_bits, traits.low_bits, high)
                       : StorePlane(codes, traits.high_bits, traits.low_bits, high);
}

void LoadCodes(Encoding encoding, const std::byte* row, absl::Span<uint8_t> codes) {
  const RowTraits traits = TraitsOf(encoding);
  std::fill(codes.begin(), codes.end(), uint8_t{0});
  LoadPlane(row, traits.low_bits, 0, codes,
            [&](uint64_t column) { return LocateCode(traits.low_bits, column); });
  if (traits.high_bits == 0) return;
  LoadPlane(row + PlaneBytes(traits.low_bits, codes.size()), traits.high_bits, traits.low_bits, codes,
            [&](uint64_t column) {
              return traits.low_bits == 4 ? LocateHighCode(traits.high_bits, column)
                                          : LocateCode(traits.high_bits, column);
            });
}

namespace {

constexpr uint32_t kMetaCodeBits = 8;

void StoreF16(float value, std::byte* out) {
  const uint16_t bits = FloatToF16(value);
  std::memcpy(out, &bits, 2);
}

float LoadF16(const std::byte* from) {
  uint16_t bits = 0;
  std::memcpy(&bits, from, 2);
  return F16ToFloat(bits);
}

// A row cut into its groups, with the results for each so far.
class RowGroups {
 public:
  RowGroups(const EncodingDescriptor& d, absl::Span<const float> values)
      : bits_(BitsOf(d.encoding)),
        group_(d.group),
        values_(values),
        codes_(values.size()),
        quantizers_(GroupsPerRow(d, values.size())) {}

  size_t count() const { return quantizers_.size(); }
  absl::Span<const float> members(size_t g) const { return values_.subspan(g * group_, group_); }
  absl::Span<uint8_t> codes(size_t g) { return absl::MakeSpan(codes_).subspan(g * group_, group_); }
  GroupQuantizer& quantizer(size_t g) { return quantizers_[g]; }
  absl::Span<const uint8_t> all_codes() const { return codes_; }
  uint32_t bits() const { return bits_; }

  // Index of the largest value of the first group whose range no f16 scale spans, or -1.
  int64_t FirstTooWide() const {
    // A row that fits as a whole, as nearly all do, also fits in parts.
    if (GroupFits(values_, bits_)) return -1;
    for (size_t g = 0; g < count(); ++g) {
      const absl::Span<const float> group = members(g);
      if (GroupFits(group, bits_)) continue;
      const auto less = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
      return std::max_element(group.begin(), group.end(), less) - values_.begin();
    }
    return -1;
  }

 private:
  const uint32_t bits_;
  const size_t group_;
  const absl::Span<const float> values_;
  std::vector<uint8_t> codes_;
  std::vector<GroupQuantizer> quantizers_;
};

void EncodeWithHalves(const EncodingDescriptor& d, RowGroups* groups, size_t columns, std::byte* out) {
  for (size_t g = 0; g < groups->count(); ++g) {
    groups->quantizer(g) = QuantizeGroupHqq(groups->members(g), groups->bits(), groups->codes(g));
    StoreF16(groups->quantizer(g).scale, out + ScaleOffset(d, columns) + 2 * g);
    StoreF16(groups->quantizer(g).zero, out + ZeroOffset(d, columns) + 2 * g);
  }
}

// Replaces a super-group's `values` by their 8-bit codes with one f16 scale and zero, and stores both.
void StoreSuperGroup(absl::Span<float> values, std::byte* codes_out, std::byte* pair_out) {
  uint8_t codes[kMaxQuantGroup];
  const absl::Span<uint8_t> used = absl::MakeSpan(codes, values.size());
  const GroupQuantizer pair = QuantizeGroupNearest(values, kMetaCodeBits, used);
  std::memcpy(codes_out, codes, values.size());
  StoreF16(pair.scale, pair_out);
  StoreF16(pair.zero, pair_out + 2);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<float>(codes[i]) - pair.zero) * pair.scale;
  }
}

// True if each of the groups holds one value. Their steps may then be the values themselves, which is exact;
// beside other groups, such large steps would leave the small ones no codes.
bool AllConstant(const RowGroups& groups, size_t first, size_t count) {
  for (size_t g = first; g < first + count; ++g) {
    const absl::Span<const float> members = groups.members(g);
    if (std::any_of(members.begin(), members.end(), [&](float value) { return value != members[0]; })) {
      return false;
    }
  }
  return true;
}

// Computes scales first; then solves every zero for the stored scale, and chooses codes for the stored scale
// and zero, which the reader will use.
void EncodeWithSuperGroups(const EncodingDescriptor& d, RowGroups* groups, size_t columns, std::byte* out) {
  std::byte* const quadruples = out + SuperGroupOffset(d, columns);
  float numbers[kMaxQuantGroup];
  for (size_t first = 0; first < groups->count(); first += d.super_group) {
    const size_t count = std::min<size_t>(d.super_group, groups->count() - first);
    const absl::Span<float> of_super = absl::MakeSpan(numbers, count);
    std::byte* const quadruple = quadruples + first / d.super_group * 8;
    const bool constant = AllConstant(*groups, first, count);
    for (size_t i = 0; i < count; ++i) {
      const absl::Span<const float> members = groups->members(first + i);
      of_super[i] = constant ? std::fabs(members[0]) : ScaleOverZero(members, groups->bits());
    }
    StoreSuperGroup(of_super, out + ScaleOffset(d, columns) + first, quadruple);
    for (size_t i = 0; i < count; ++i) {
      groups->quantizer(first + i).scale = of_super[i];
      of_super[i] = SolveZero(groups->members(first + i), groups->bits(), of_super[i]);
    }
    StoreSuperGroup(of_super, out + ZeroOffset(d, columns) + first, quadruple + 4);
    for (size_t i = 0; i < count; ++i) {
      GroupQuantizer& quantizer = groups->quantizer(first + i);
      quantizer.zero = of_super[i];
      AssignCodes(groups->members(first + i), groups->bits(), quantizer, groups->codes(first + i));
    }
  }
}

// The scale or the zero of group `g`; `part` 0 for scales, 1 for zeros.
float LoadMeta(const EncodingDescriptor& d, const std::byte* row, size_t columns, size_t g, size_t part) {
  const std::byte* const numbers = row + (part == 0 ? ScaleOffset(d, columns) : ZeroOffset(d, columns));
  if (d.super_group == 0) return LoadF16(numbers + 2 * g);
  const std::byte* const pair = row + SuperGroupOffset(d, columns) + g / d.super_group * 8 + 4 * part;
  return (static_cast<float>(static_cast<uint8_t>(numbers[g])) - LoadF16(pair + 2)) * LoadF16(pair);
}

}  // namespace

int64_t EncodeQuantizedRow(const EncodingDescriptor& descriptor, absl::Span<const float> values,
                           std::byte* out) {
  const size_t columns = values.size();
  RowGroups groups(descriptor, values);
  // A range that f16 cannot span would give an infinite scale, and NaN in every reader.
  const int64_t bad = groups.FirstTooWide();
  if (bad >= 0) return bad;
  std::memset(out, 0, RowBytes(descriptor, columns));
  if (descriptor.super_group == 0) {
    EncodeWithHalves(descriptor, &groups, columns, out);
  } else {
    EncodeWithSuperGroups(descriptor, &groups, columns, out);
  }
  StoreCodes(descriptor.encoding, groups.all_codes(), out);
  return -1;
}

void DecodeQuantizedRow(const EncodingDescriptor& descriptor, const std::byte* row,
                        absl::Span<float> values) {
  const size_t columns = values.size();
  std::vector<uint8_t> codes(columns);
  LoadCodes(descriptor.encoding, row, absl::MakeSpan(codes));
  for (size_t begin = 0, g = 0; begin < columns; begin += descriptor.group, ++g) {
    const float scale = LoadMeta(descriptor, row, columns, g, 0);
    const float zero = LoadMeta(descriptor, row, columns, g, 1);
    const size_t end = std::min<size_t>(columns, begin + descriptor.group);
    for (size_t i = begin; i < end; ++i) values[i] = (static_cast<float>(codes[i]) - zero) * scale;
  }
}

}  // namespace sluice
