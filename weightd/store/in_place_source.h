// A pack in place (pack/in_place) as weightd's ExtentSource: its payload comes from the model's own file,
// from the page cache or by reads past it, and the checksum of a chunk is taken when it is first read and
// kept in the pack's folder for later starts.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pack/in_place/in_place_checksums.h"
#include "pack/in_place/in_place_payload.h"
#include "weightd/store/pack_extent_source.h"
#include "weightd/store/read_file.h"

namespace sluice::weightd {

class InPlaceSource final : public PackExtentSource {
 public:
  // `report` receives the reasons of failed reads. Errors of InPlacePayload::Open and of `opener`.
  static absl::StatusOr<std::unique_ptr<InPlaceSource>> Open(std::unique_ptr<Pack> pack,
                                                             const FileOpener& opener,
                                                             std::function<void(const std::string&)> report);

  std::unique_ptr<ReadFile> OpenFile(uint32_t file) const override;
  absl::Status Verify(uint32_t extent, uint64_t offset, std::span<const std::byte> bytes) const override;

 private:
  // Parts shared by the files of this source.
  struct Model;

  InPlaceSource(std::unique_ptr<Pack> pack, std::shared_ptr<const Model> model,
                std::unique_ptr<LearnedChecksums> checksums);

  const std::shared_ptr<const Model> model_;
  const std::unique_ptr<LearnedChecksums> checksums_;
};

}  // namespace sluice::weightd
