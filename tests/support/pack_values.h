// A pack opened for looking at values, decoded row by row and checked against its checksums on the way.
//
// Thread safety: an object is used by one thread.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/file_io.h"
#include "pack/pack.h"
#include "pack/row_codec.h"

namespace sluice {

class PackValues {
 public:
  static PackValues Of(const std::string& dir) {
    PackValues values;
    auto pack = Pack::Open(dir);
    EXPECT_TRUE(pack.ok()) << pack.status();
    if (pack.ok()) values.pack_ = *std::move(pack);
    return values;
  }
  const Pack& pack() const { return *pack_; }

  std::vector<float> Dense(const std::string& name) {
    const DenseTensor* tensor = pack_->FindDense(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    return Rows(tensor->extent, tensor->offset, tensor->stride, tensor->rows, tensor->cols, tensor->encoding);
  }

  std::vector<float> Expert(uint32_t layer, uint32_t expert, Part part) {
    const PartView view = pack_->part(layer, expert, part);
    return Rows(view.extent, view.base, view.stride, view.rows, view.cols, view.encoding);
  }

 private:
  std::vector<float> Rows(uint32_t extent, uint64_t base, uint32_t stride, uint32_t rows, uint32_t cols,
                          const EncodingDescriptor& encoding) {
    const ExtentEntry& entry = pack_->extents()[extent];
    std::vector<std::byte> bytes(entry.length);
    auto file = File::OpenForRead(pack_->file_path(static_cast<PackFile>(entry.file)));
    EXPECT_TRUE(file.ok() && file->ReadAt(entry.offset, absl::MakeSpan(bytes)).ok());
    EXPECT_TRUE(VerifyExtent(*pack_, extent, bytes).ok());
    std::vector<float> values(static_cast<size_t>(rows) * cols);
    for (uint32_t r = 0; r < rows; ++r) {
      EXPECT_TRUE(DecodeRow(encoding, bytes.data() + base + static_cast<uint64_t>(r) * stride,
                            absl::MakeSpan(values).subspan(static_cast<size_t>(r) * cols, cols))
                      .ok());
    }
    return values;
  }

  std::unique_ptr<Pack> pack_;
};

}  // namespace sluice
