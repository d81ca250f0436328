// An open pack, and verification of its payload bytes.
//
// Thread safety: immutable after Open(); safe to use from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/model/model_config.h"
#include "pack/pack_format.h"

namespace sluice {

// An open pack: its contents and their locations, without any payload. weightd reads extents by it, inferd
// finds tensors and experts by it. pack/FORMAT.md specifies the files.
//
// Extent ids are indices into extents(): dense extents first (0 .. dense_extent_count() - 1), then those of
// tables of rows, then those of the experts ordered by (layer, expert, stream); an expert's extents are
// consecutive ids and one contiguous run of experts.bin.
//
// Thread safety: immutable after Open; all const methods may be called from any thread at once.

class ExtentPlanner;

// One part of one expert: row r is RowBytes(encoding, cols) bytes at `base + r * stride` of the extent. up
// and gate: rows = neurons, cols = hidden. down is stored transposed, so it has the same shape; by outputs it
// has rows = hidden, cols = neurons.
struct PartView {
  uint32_t extent = 0;
  uint32_t base = 0;
  uint32_t stride = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  EncodingDescriptor encoding;
};

struct ExtentRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

class Pack {
 public:
  // Reads manifest.json and extents.bin of `dir` and checks them against each other and against the payload
  // files' sizes; reads no payload. NotFound: no pack there. DataLoss: damaged (names file and fault).
  // Unimplemented: an unknown format version or incompatible feature.
  static absl::StatusOr<std::unique_ptr<Pack>> Open(const std::string& dir);

  // Opens from parsed tables, for tests and the fuzzer: `dir` is only stored.
  static absl::StatusOr<std::unique_ptr<Pack>> FromTables(const std::string& dir, Manifest manifest,
                                                          ExtentTable table);

  const std::string& dir() const { return dir_; }
  const std::string& model_id() const { return manifest_.model_id; }  // 32 hex digits
  const ModelConfig& config() const { return manifest_.config; }
  const GenerationDefaults& generation() const { return manifest_.generation; }
  const std::string& chat_template() const { return manifest_.chat_template; }
  const Manifest& manifest() const { return manifest_; }

  absl::Span<const ExtentEntry> extents() const { return table_.entries; }
  uint32_t extent_count() const { return static_cast<uint32_t>(table_.entries.size()); }
  uint32_t dense_extent_count() const { return dense_extent_count_; }
  uint32_t row_extent_count() const { return row_extent_count_; }
  uint32_t first_expert_extent() const { return dense_extent_count_ + row_extent_count_; }
  // Chunk checksums of an extent, ChecksumChunkCount(length) of them. REQUIRES: extent < extent_count().
  absl::Span<const uint64_t> checksums(uint32_t extent) const;
  // "dense extent 3 (layer 1)", "extent 17 (layer 2, expert 5, stream 1 up)": for errors and logs.
  std::string ExtentName(uint32_t extent) const;

  // Experts of a layer (0 for a layer with a dense FFN). REQUIRES: layer < config().layers.size().
  uint32_t expert_count(uint32_t layer) const { return config().layers[layer].moe.experts; }
  // REQUIRES for the following: layer < layers, expert < expert_count(layer).
  ExtentRange expert_extents(uint32_t layer, uint32_t expert) const;
  PartView part(uint32_t layer, uint32_t expert, Part part) const;
  const ExpertFormat& expert_format(uint32_t layer, uint32_t expert) const;
  // True if down matrices, of experts and dense ones, are stored by outputs: an expert can only be computed
  // whole.
  bool by_outputs() const { return IsByOutputs(manifest_.expert_formats); }
  uint64_t expert_bytes(uint32_t layer, uint32_t expert) const;  // stored bytes of its extents

  // Finds a tensor by canonical name (common/model/dense_names.h); null if there is none. With tied
  // embeddings there is no "head": use "embed".
  const DenseTensor* FindDense(std::string_view name) const;
  absl::Span<const DenseTensor> dense_tensors() const { return manifest_.dense_tensors; }

  // The file that holds the payload; of a pack in place the model's, which has it in another form
  // (pack/in_place/in_place_payload.h reads it).
  std::string file_path(PackFile file) const;
  bool in_place() const { return manifest_.in_place.has_value(); }
  uint64_t file_bytes(PackFile file) const { return manifest_.payload[static_cast<size_t>(file)].bytes; }

  // Stored bytes of all dense extents, of all experts and of the largest expert.
  uint64_t dense_bytes() const { return file_bytes(PackFile::kDense); }
  uint64_t total_expert_bytes() const { return file_bytes(PackFile::kExperts); }
  uint64_t row_bytes() const { return file_bytes(PackFile::kRows); }  // of tables of rows
  uint32_t file_count() const { return row_bytes() > 0 ? kPackFileCount : kPackFileCount - 1; }
  uint64_t largest_expert_bytes() const { return largest_expert_bytes_; }
  // Bytes of the largest expert or extent of rows: what a reader wants at once.
  uint64_t largest_demand_bytes() const {
    return row_extent_count_ == 0 ? largest_expert_bytes_
                                  : std::max(largest_expert_bytes_, extents()[dense_extent_count_].length);
  }
  uint64_t expert_total() const { return expert_total_; }  // experts of all layers

  // Reads the tokenizer's files by base name, checked against their digests. DataLoss naming the file. Empty
  // if the model has none.
  absl::StatusOr<std::map<std::string, std::string>> ReadTokenizerFiles() const;

  Pack(const Pack&) = delete;
  Pack& operator=(const Pack&) = delete;

 private:
  Pack() = default;
  absl::Status Index();
  absl::Status IndexExperts(ExtentPlanner* planner);

  std::string dir_;
  Manifest manifest_;
  ExtentTable table_;
  uint32_t dense_extent_count_ = 0;
  uint32_t row_extent_count_ = 0;
  uint64_t expert_total_ = 0;
  uint64_t largest_expert_bytes_ = 0;
  std::vector<uint64_t> layer_first_expert_;   // by layer: running number of its first expert
  std::vector<uint32_t> expert_first_extent_;  // by running expert number
  ExpertPlans plans_;
  absl::flat_hash_map<std::string, uint32_t> dense_by_name_;
};

// Verification of a pack's payload bytes before any reader uses them.
//
// Thread safety: free functions on immutable data, safe to call from any thread.

// Checks `bytes`, read from `offset` of the extent, against the extent table. `offset` is a multiple of
// kChecksumChunkBytes; `bytes` ends at a chunk's end or at the extent's. DataLoss naming pack, extent (layer,
// expert, stream), chunk and file offset at the first mismatch. InvalidArgument for a range that does not
// consist of whole chunks of the extent. REQUIRES: !pack.in_place(), whose checksums are not known when it is
// made.
absl::Status VerifyChunks(const Pack& pack, uint32_t extent, uint64_t offset,
                          absl::Span<const std::byte> bytes);

// Checks the whole extent: bytes.size() is its length.
inline absl::Status VerifyExtent(const Pack& pack, uint32_t extent, absl::Span<const std::byte> bytes) {
  return VerifyChunks(pack, extent, 0, bytes);
}

}  // namespace sluice
