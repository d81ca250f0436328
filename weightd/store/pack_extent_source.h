// An open pack (pack/pack.h) as weightd's ExtentSource.
//
// Thread safety: immutable; every method may be called from any thread.
#pragma once

#include <memory>
#include <string>

#include "pack/pack.h"
#include "weightd/store/extent_source.h"

namespace sluice::weightd {

class PackExtentSource : public ExtentSource {
 public:
  explicit PackExtentSource(std::unique_ptr<Pack> pack) : pack_(std::move(pack)) {}

  const std::string& model_id() const override { return pack_->model_id(); }
  const Pack* pack() const override { return pack_.get(); }
  uint32_t file_count() const override { return pack_->file_count(); }
  std::string file_path(uint32_t file) const override {
    return pack_->file_path(static_cast<PackFile>(file));
  }
  uint32_t extent_count() const override { return pack_->extent_count(); }
  ExtentInfo extent(uint32_t extent) const override;
  std::string ExtentName(uint32_t extent) const override { return pack_->ExtentName(extent); }
  uint32_t layer_count() const override { return static_cast<uint32_t>(pack_->config().layers.size()); }
  uint32_t expert_count(uint32_t layer) const override { return pack_->expert_count(layer); }
  ExtentList ExpertExtents(uint32_t layer, uint32_t expert, PartSet parts) const override;
  PartRows ExpertPart(uint32_t layer, uint32_t expert, Part part) const override;
  uint64_t dense_bytes() const override { return pack_->dense_bytes(); }
  uint64_t largest_expert_bytes() const override { return pack_->largest_demand_bytes(); }
  absl::Status Verify(uint32_t extent, uint64_t offset, std::span<const std::byte> bytes) const override;

 private:
  const std::unique_ptr<const Pack> pack_;
};

}  // namespace sluice::weightd
