#include "pack/block_row.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "pack/code_planes.h"
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
  std::memcpy(out + at.scales + first, block.scales, count);
  if (mins) std::memcpy(out + at.mins + first, block.mins, count);
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

}  // namespace

void EncodeBlockRow(const EncodingDescriptor& descriptor, absl::Span<const CodeBlock> blocks, size_t columns,
                    std::byte* out) {
  const RowPlaces at(descriptor, columns);
  const size_t values = ValuesPerBlock(descriptor.encoding);
  const size_t groups = GroupsPerRow(descriptor, columns);
  std::memset(out, 0, RowBytes(descriptor, columns));
  std::vector<uint8_t> codes(columns);
  for (size_t b = 0; b < blocks.size(); ++b) {
    std::memcpy(codes.data() + b * values, blocks[b].codes, std::min(values, columns - b * values));
    StoreNumbers(descriptor, at, groups, blocks[b], b, out);
  }
  StoreCodes(descriptor.encoding, codes, out);
}

void DecodeBlockRow(const EncodingDescriptor& descriptor, const std::byte* row, absl::Span<float> values) {
  const RowPlaces at(descriptor, values.size());
  const size_t groups = GroupsPerRow(descriptor, values.size());
  const size_t length = ValuesPerBlock(descriptor.encoding);
  std::vector<uint8_t> codes(values.size());
  LoadCodes(descriptor.encoding, row, absl::MakeSpan(codes));
  float decoded[kMaxBlockValues];
  for (size_t first = 0, b = 0; first < values.size(); first += length, ++b) {
    CodeBlock block = {};
    const size_t count = std::min(length, values.size() - first);
    std::memcpy(block.codes, codes.data() + first, count);
    LoadNumbers(descriptor, at, groups, row, b, &block);
    DecodeCodeBlock(descriptor.encoding, block, decoded);
    std::memcpy(values.data() + first, decoded, count * sizeof(float));
  }
}

}  // namespace sluice
