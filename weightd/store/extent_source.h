// weightd's view of a pack: its extents, the extents of each expert, and the verification of their bytes.
// PackExtentSource (pack_extent_source.h) is the real one; tests use
// tests/support/fakes/fake_extent_source.h.
//
// Thread safety: implementations are immutable; every method may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/base/encoding.h"
#include "weightd/store/read_file.h"

namespace sluice {
class Pack;
}  // namespace sluice

namespace sluice::weightd {

struct ExtentInfo {
  uint32_t file = 0;    // index below ExtentSource::file_count()
  uint64_t offset = 0;  // in the file, a multiple of 4096
  uint64_t length = 0;  // a multiple of 4096, not 0
  bool dense = false;
};

// The extents that hold some parts of one expert: at most one per part.
struct ExtentList {
  std::array<uint32_t, kPartCount> ids = {};
  uint32_t count = 0;
};

// One part of an expert: row r is row_bytes bytes at base + r * stride of its extent.
struct PartRows {
  uint32_t extent = 0;
  uint32_t rows = 0;
  uint64_t base = 0;
  uint64_t stride = 0;
  uint64_t row_bytes = 0;
};

class ExtentSource {
 public:
  virtual ~ExtentSource() = default;

  virtual const std::string& model_id() const = 0;
  // The open pack behind it; null: there is none.
  virtual const Pack* pack() const { return nullptr; }
  virtual uint32_t file_count() const = 0;
  virtual std::string file_path(uint32_t file) const = 0;  // to open, or, with OpenFile, for messages
  // Opens a file whose bytes no file of the system holds so; null: file_path is to be opened.
  virtual std::unique_ptr<ReadFile> OpenFile(uint32_t /*file*/) const { return nullptr; }
  virtual uint32_t extent_count() const = 0;
  // REQUIRES: extent < extent_count().
  virtual ExtentInfo extent(uint32_t extent) const = 0;
  virtual std::string ExtentName(uint32_t extent) const = 0;

  virtual uint32_t layer_count() const = 0;
  virtual uint32_t expert_count(uint32_t layer) const = 0;  // REQUIRES: layer < layer_count()
  // The extents of `parts` of an expert, ascending. REQUIRES: layer < layer_count(), expert <
  // expert_count(layer), parts a non-empty subset of kAllParts.
  virtual ExtentList ExpertExtents(uint32_t layer, uint32_t expert, PartSet parts) const = 0;

  // REQUIRES: layer and expert as above. All rows lie within the extent.
  virtual PartRows ExpertPart(uint32_t layer, uint32_t expert, Part part) const = 0;

  virtual uint64_t dense_bytes() const = 0;  // bytes of all dense extents
  virtual uint64_t largest_expert_bytes()
      const = 0;  // of the largest expert, or of an extent of rows if that is larger

  // Checks bytes read from `offset` of the extent; `offset` is a multiple of the checksum's chunk, and the
  // bytes end at a chunk's end or the extent's. DATA_LOSS naming the failed chunk.
  virtual absl::Status Verify(uint32_t extent, uint64_t offset, std::span<const std::byte> bytes) const = 0;
};

}  // namespace sluice::weightd
