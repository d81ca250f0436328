// Placement of all data: from a model description to dense tensors, extents and file sizes. The writers build
// packs by it, and Pack::Open checks a pack's tables against it: one source of truth for both.
//
// Thread safety: free functions on plain values; an ExtentPlanner is used by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"
#include "pack/pack_format.h"

namespace sluice {

enum class DenseKind : uint8_t {
  kMatrix,  // stored in the dense encoding
  kSummed,  // the same, but its rows are summed with weights (transposed down): no block encoding
  kVector,  // f32: one row, or a small table of them
  kRouter,  // bf16 or f32: matrices with few rows and a large effect
  kRows,    // not quantized: a table in a file of its own, of which a token reads a few rows
};

// A dense tensor of a model, before its placement.
struct DenseSpec {
  std::string name;
  uint32_t layer = ExtentEntry::kNone;  // kNone: the embedding and head groups
  uint32_t group = 0;                   // 0 embedding, 1 + layer, 1 + layers: head
  uint32_t rows = 0;
  uint32_t cols = 0;
  DenseKind kind = DenseKind::kMatrix;
};

// Every dense tensor of a model in storage order, the tables of rows last; `by_outputs`: down tensors are
// [hidden, width], not transposed. REQUIRES: ValidateModelConfig accepts `config`.
std::vector<DenseSpec> DenseSpecs(const ModelConfig& config, bool by_outputs = false);

// True if `encoding` may store a tensor of `kind`.
bool DenseEncodingAllowed(DenseKind kind, const EncodingDescriptor& encoding);

// Places tensors: `encodings[i]` stores `specs[i]`; a group's extent is closed where the next tensor would
// make it longer than `extent_bytes`.
std::vector<DenseTensor> PlaceDense(const std::vector<DenseSpec>& specs,
                                    const std::vector<EncodingDescriptor>& encodings, uint64_t extent_bytes);

// Appends extents in id order and keeps files and checksum indices contiguous.
class ExtentPlanner {
 public:
  // Appends dense extents of `tensors` (as PlaceDense makes them), without tables of rows. DataLoss if they
  // are not in the order of `specs`, overlap, or mix groups in an extent.
  absl::Status AddDense(const std::vector<DenseSpec>& specs, const std::vector<DenseTensor>& tensors);
  // Appends the extents of tables of rows, the last of `tensors`. DataLoss if they are out of place.
  absl::Status AddRows(const std::vector<DenseSpec>& specs, const std::vector<DenseTensor>& tensors);
  // Appends one expert. ResourceExhausted if the pack exceeds the format's address range.
  absl::Status AddExpert(uint32_t layer, uint32_t expert, uint32_t format, const ExpertPlan& plan);

  const std::vector<ExtentEntry>& extents() const { return extents_; }
  std::vector<ExtentEntry> TakeExtents() { return std::move(extents_); }
  uint64_t file_bytes(PackFile file) const { return file_bytes_[static_cast<size_t>(file)]; }
  uint64_t checksum_count() const { return checksum_count_; }

 private:
  absl::Status Add(ExtentEntry entry, uint64_t used_bytes);

  std::vector<ExtentEntry> extents_;
  std::array<uint64_t, kPackFileCount> file_bytes_ = {};
  uint64_t checksum_count_ = 0;
};

}  // namespace sluice
