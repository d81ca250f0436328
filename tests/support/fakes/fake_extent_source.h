// A pack that exists only as arithmetic: every byte of every extent is a function of its offset, so that any
// reader can make it and any test can check it. Each 256 KiB chunk's bytes name their file offset.
//
// Thread safety: immutable; every method may be called from any thread.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weightd/store/extent_source.h"

namespace sluice {

class FakeExtentSource final : public weightd::ExtentSource {
 public:
  struct Shape {
    std::string model_id = "00112233445566778899aabbccddeeff";
    std::vector<uint64_t> dense;  // lengths of the dense extents, multiples of 4096
    uint32_t layers = 2;
    uint32_t experts = 8;
    uint64_t part_bytes = 4096;  // of each of an expert's three parts
    uint64_t row_bytes = 256;    // of a neuron in a part
    bool compact = false;        // up | gate+down: two extents an expert, the second interleaved
    uint32_t outputs = 0;        // rows of down by outputs; 0: a row a neuron
    std::string path = "fake.bin";
  };

  explicit FakeExtentSource(Shape shape) : shape_(std::move(shape)) {
    uint64_t offset = 0;
    for (uint64_t length : shape_.dense) {
      extents_.push_back(weightd::ExtentInfo{0, offset, length, true});
      offset += length;
    }
    for (uint32_t i = 0; i < shape_.layers * shape_.experts * streams(); ++i) {
      const bool pair = shape_.compact && i % 2 == 1;
      extents_.push_back(weightd::ExtentInfo{0, offset, shape_.part_bytes * (pair ? 2 : 1), false});
      offset += extents_.back().length;
    }
    file_bytes_ = offset;
  }

  // The 8 bytes at `offset` (a multiple of 8) of the only file.
  static uint64_t WordAt(uint64_t offset) { return (offset + 1) * 0x9e3779b97f4a7c15ull; }
  static void FillBytes(uint64_t offset, std::span<std::byte> bytes) {
    for (uint64_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = WordAt(offset + i);
      std::memcpy(bytes.data() + i, &word, 8);
    }
  }
  bool BytesAreRight(uint32_t extent, std::span<const std::byte> bytes, uint64_t offset = 0) const {
    for (uint64_t i = 0; i + 8 <= bytes.size(); i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i, 8);
      if (word != WordAt(extents_[extent].offset + offset + i)) {
        return false;
      }
    }
    return true;
  }
  uint64_t file_bytes() const { return file_bytes_; }
  uint32_t FirstExpertExtent(uint32_t layer, uint32_t expert) const {
    return static_cast<uint32_t>(shape_.dense.size()) + (layer * shape_.experts + expert) * streams();
  }

  const std::string& model_id() const override { return shape_.model_id; }
  uint32_t file_count() const override { return 1; }
  std::string file_path(uint32_t) const override { return shape_.path; }
  uint32_t extent_count() const override { return static_cast<uint32_t>(extents_.size()); }
  weightd::ExtentInfo extent(uint32_t extent) const override { return extents_[extent]; }
  std::string ExtentName(uint32_t extent) const override { return absl::StrCat("extent ", extent); }
  uint32_t layer_count() const override { return shape_.layers; }
  uint32_t expert_count(uint32_t) const override { return shape_.experts; }
  weightd::ExtentList ExpertExtents(uint32_t layer, uint32_t expert, PartSet parts) const override {
    weightd::ExtentList list;
    for (uint32_t stream = 0; stream < streams(); ++stream) {
      const uint32_t held = shape_.compact && stream == 1 ? 0x6 : 1u << stream;
      if ((parts & held) != 0) {
        list.ids[list.count++] = FirstExpertExtent(layer, expert) + stream;
      }
    }
    return list;
  }
  weightd::PartRows ExpertPart(uint32_t layer, uint32_t expert, Part part) const override {
    const auto p = static_cast<uint32_t>(part);
    const bool paired = shape_.compact && part != Part::kUp;
    weightd::PartRows place;
    place.extent = FirstExpertExtent(layer, expert) + (paired ? 1 : p);
    place.rows = static_cast<uint32_t>(shape_.part_bytes / shape_.row_bytes);
    place.base = paired && part == Part::kDown ? shape_.row_bytes : 0;
    place.stride = shape_.row_bytes * (paired ? 2 : 1);
    place.row_bytes = shape_.row_bytes;
    if (shape_.outputs > 0 && part == Part::kDown) {
      place.rows = shape_.outputs;
      place.stride = place.row_bytes = shape_.part_bytes / shape_.outputs;
    }
    return place;
  }
  uint64_t dense_bytes() const override {
    uint64_t bytes = 0;
    for (uint64_t length : shape_.dense) {
      bytes += length;
    }
    return bytes;
  }
  uint64_t largest_expert_bytes() const override { return 3 * shape_.part_bytes; }
  absl::Status Verify(uint32_t extent, uint64_t offset, std::span<const std::byte> bytes) const override {
    return BytesAreRight(extent, bytes, offset)
               ? absl::OkStatus()
               : absl::DataLossError(absl::StrCat(ExtentName(extent), " at ", offset, ": wrong checksum"));
  }

 private:
  uint32_t streams() const { return shape_.compact ? 2 : 3; }

  const Shape shape_;
  std::vector<weightd::ExtentInfo> extents_;
  uint64_t file_bytes_ = 0;
};

}  // namespace sluice
