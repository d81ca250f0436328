// A pack whose bytes encode their position and the fill that brought them, and an ExtentSource over it.
//
// Every 512 bytes begin with a cell: {position word, number of the fill}. The first word is the part that the
// checksum would protect; the second lets a reader see that bytes of two fills are mixed, or old.
//
// Thread safety: immutable; one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weightd/store/extent_source.h"

namespace sluice {

struct SimCell {
  uint64_t place = 0;
  uint64_t fill = 0;
};
inline constexpr uint64_t kSimCellBytes = 512;

// The first word of the cell at `offset` of the pack's file.
inline uint64_t SimPositionWord(uint32_t pack, uint64_t offset) {
  return (uint64_t{pack} << 48 ^ (offset + 1)) * 0x9e3779b97f4a7c15ull;
}

class SimPack final : public weightd::ExtentSource {
 public:
  struct Shape {
    uint32_t number = 0;  // also the reader's number of its file
    std::vector<uint64_t> dense;
    uint32_t layers = 2;
    uint32_t experts = 6;
    std::vector<uint64_t> part_bytes;  // of each extent of an expert
  };

  explicit SimPack(Shape shape) : shape_(std::move(shape)) {
    model_id_ = absl::StrCat("0123456789abcdef0123456789abcde", shape_.number);
    uint64_t offset = 0;
    const auto add = [&](uint64_t length, bool dense) {
      extents_.push_back(weightd::ExtentInfo{0, offset, length, dense});
      offset += length;
    };
    for (uint64_t length : shape_.dense) {
      add(length, true);
    }
    for (uint32_t i = 0; i < shape_.layers * shape_.experts; ++i) {
      for (uint64_t length : shape_.part_bytes) {
        add(length, false);
      }
    }
  }

  const std::string& model_id() const override { return model_id_; }
  uint32_t file_count() const override { return 1; }
  std::string file_path(uint32_t) const override { return "simulated"; }
  uint32_t extent_count() const override { return static_cast<uint32_t>(extents_.size()); }
  weightd::ExtentInfo extent(uint32_t extent) const override { return extents_[extent]; }
  std::string ExtentName(uint32_t extent) const override { return absl::StrCat("extent ", extent); }
  uint32_t layer_count() const override { return shape_.layers; }
  uint32_t expert_count(uint32_t) const override { return shape_.experts; }
  weightd::ExtentList ExpertExtents(uint32_t layer, uint32_t expert, PartSet parts) const override {
    weightd::ExtentList list;
    const auto streams = static_cast<uint32_t>(shape_.part_bytes.size());
    const auto first =
        static_cast<uint32_t>(shape_.dense.size()) + (layer * shape_.experts + expert) * streams;
    for (uint32_t part = 0; part < 3; ++part) {
      // With fewer streams than parts the last ones share a stream.
      const uint32_t id = first + std::min(part, streams - 1);
      if ((parts >> part & 1) != 0 && (list.count == 0 || list.ids[list.count - 1] != id)) {
        list.ids[list.count++] = id;
      }
    }
    return list;
  }
  // Rows of one cell; parts that share a stream are interleaved cell by cell.
  weightd::PartRows ExpertPart(uint32_t layer, uint32_t expert, Part part) const override {
    const auto p = static_cast<uint32_t>(part);
    const auto last = static_cast<uint32_t>(shape_.part_bytes.size()) - 1;
    const uint32_t sharing = p < last ? 1 : 3 - last;
    weightd::PartRows rows;
    rows.extent = ExpertExtents(layer, expert, PartBit(part)).ids[0];
    rows.base = (p < last ? 0 : p - last) * kSimCellBytes;
    rows.stride = sharing * kSimCellBytes;
    rows.rows = static_cast<uint32_t>(shape_.part_bytes[std::min(p, last)] / rows.stride);
    rows.row_bytes = kSimCellBytes;
    return rows;
  }
  uint64_t dense_bytes() const override {
    uint64_t bytes = 0;
    for (uint64_t length : shape_.dense) {
      bytes += length;
    }
    return bytes;
  }
  uint64_t largest_expert_bytes() const override {
    uint64_t bytes = 0;
    for (uint64_t length : shape_.part_bytes) {
      bytes += length;
    }
    return bytes;
  }
  absl::Status Verify(uint32_t extent, uint64_t offset, std::span<const std::byte> bytes) const override {
    for (uint64_t at = 0; at < bytes.size(); at += kSimCellBytes) {
      if (Cell(bytes, at).place != SimPositionWord(shape_.number, extents_[extent].offset + offset + at)) {
        return absl::DataLossError(absl::StrCat(ExtentName(extent), " at ", offset + at, ": wrong checksum"));
      }
    }
    return absl::OkStatus();
  }

  static SimCell Cell(std::span<const std::byte> bytes, uint64_t at) {
    SimCell cell;
    std::memcpy(&cell, bytes.data() + at, sizeof(cell));
    return cell;
  }

 private:
  const Shape shape_;
  std::string model_id_;
  std::vector<weightd::ExtentInfo> extents_;
};

}  // namespace sluice
