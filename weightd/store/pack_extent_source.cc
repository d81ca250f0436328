#include "weightd/store/pack_extent_source.h"

#include "pack/pack.h"
#include "pack/row_layout.h"

namespace sluice::weightd {

ExtentInfo PackExtentSource::extent(uint32_t extent) const {
  const ExtentEntry& entry = pack_->extents()[extent];
  return ExtentInfo{entry.file, entry.offset, entry.length, entry.kind == ExtentKind::kDense};
}

ExtentList PackExtentSource::ExpertExtents(uint32_t layer, uint32_t expert, PartSet parts) const {
  // An expert's extents are consecutive, by stream; a stream may hold two parts.
  const ExtentRange range = pack_->expert_extents(layer, expert);
  uint32_t wanted = 0;  // bit per stream
  for (Part part : {Part::kUp, Part::kGate, Part::kDown}) {
    if ((parts & PartBit(part)) != 0) {
      wanted |= 1u << (pack_->part(layer, expert, part).extent - range.first);
    }
  }
  ExtentList list;
  for (uint32_t stream = 0; stream < kPartCount; ++stream) {
    if ((wanted >> stream & 1) != 0) {
      list.ids[list.count++] = range.first + stream;
    }
  }
  return list;
}

PartRows PackExtentSource::ExpertPart(uint32_t layer, uint32_t expert, Part part) const {
  const PartView view = pack_->part(layer, expert, part);
  return PartRows{view.extent, view.rows, view.base, view.stride, RowBytes(view.encoding, view.cols)};
}

absl::Status PackExtentSource::Verify(uint32_t extent, uint64_t offset,
                                      std::span<const std::byte> bytes) const {
  return VerifyChunks(*pack_, extent, offset, absl::MakeConstSpan(bytes.data(), bytes.size()));
}

}  // namespace sluice::weightd
