#include "pack/code_planes.h"

#include <algorithm>
#include <cstring>

#include "common/vector_clones.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Packs bits of up to sixteen codes into their words. The loop over a whole unit has a compile-time length
// and becomes vector code.
SLUICE_ALWAYS_INLINE void AddUnit(const uint8_t* codes, size_t lanes, uint32_t code_shift, uint32_t mask,
                                  uint32_t shift, uint16_t* words) {
  const auto add = [&](size_t lane) {
    words[lane] |= static_cast<uint16_t>(((codes[lane] >> code_shift) & mask) << shift);
  };
  if (lanes == kPlaneLanes) {
    for (size_t lane = 0; lane < kPlaneLanes; ++lane) add(lane);
  } else {
    for (size_t lane = 0; lane < lanes; ++lane) add(lane);
  }
}

// Stores `bits` bits of each code, taken from `code_shift` up, in a plane. A plane is laid out in blocks of
// 16-bit lanes: successive codes go to successive lanes, and after the last lane to the next bits of each, so
// that a vector load, a shift and a mask give the kernels as many codes as there are lanes.
SLUICE_VECTOR_CLONES
void StorePlane(absl::Span<const uint8_t> codes, uint32_t bits, uint32_t code_shift, std::byte* plane) {
  const uint32_t mask = (1u << bits) - 1;
  const size_t codes_per_block = kPlaneBlockBytes * 8 / bits;
  for (size_t block = 0; block < codes.size(); block += codes_per_block, plane += kPlaneBlockBytes) {
    uint16_t words[kPlaneLanes] = {};
    const size_t end = std::min(codes.size(), block + codes_per_block);
    uint32_t shift = 0;
    for (size_t begin = block; begin < end; begin += kPlaneLanes, shift += bits) {
      AddUnit(&codes[begin], std::min<size_t>(kPlaneLanes, end - begin), code_shift, mask, shift, words);
    }
    std::memcpy(plane, words, kPlaneBlockBytes);
  }
}

// The same for bits at the positions of LocateHighCode.
SLUICE_VECTOR_CLONES
void StoreHighPlane(absl::Span<const uint8_t> codes, uint32_t bits, uint32_t code_shift, std::byte* plane) {
  for (size_t begin = 0; begin < codes.size(); begin += kPlaneLanes) {
    const CodeLocation location = LocateHighCode(bits, begin);
    uint16_t words[kPlaneLanes];
    std::memcpy(words, plane + location.byte_offset, kPlaneBlockBytes);
    AddUnit(&codes[begin], std::min<size_t>(kPlaneLanes, codes.size() - begin), code_shift, (1u << bits) - 1,
            location.shift, words);
    std::memcpy(plane + location.byte_offset, words, kPlaneBlockBytes);
  }
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
  const RowTraits traits = TraitsOf(encoding);
  StorePlane(codes, traits.low_bits, 0, row);
  if (traits.high_bits == 0) return;
  std::byte* const high = row + PlaneBytes(traits.low_bits, codes.size());
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

}  // namespace sluice
