// A conversion before it starts: the source read and mapped, every byte placed, nothing written.
//
// Thread safety: const after PreparePack; several threads may read it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/model/checkpoint.h"
#include "common/model/hf_config.h"
#include "pack/pack_format.h"
#include "pack/writer/pack_writer.h"

namespace sluice {

// An expert as a unit of work.
struct ExpertUnit {
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint32_t first_extent = 0;
  uint32_t format = 0;
};

// Neighbouring extents of a table of rows as a unit of work.
struct RowUnit {
  size_t tensor = 0;  // index of the table among the dense tensors
  uint32_t first_extent = 0;
  uint32_t extents = 0;
  uint32_t first_row = 0;
};

// Units are numbered: dense extents first, then tables of rows, then experts.
struct PackJob {
  PackOptions options;
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<SourceMatrix> dense;                 // by dense tensor, in storage order
  std::vector<std::vector<ExpertSource>> experts;  // [layer][expert]; points into checkpoint
  Manifest manifest;                               // all but digests, sizes and provenance's source digest
  std::vector<ExtentEntry> extents;
  uint64_t checksum_count = 0;
  std::array<uint64_t, kPackFileCount> payload_bytes = {};
  uint32_t dense_extents = 0;
  std::vector<RowUnit> row_units;
  std::vector<ExpertUnit> expert_units;
  ExpertPlans plans;
  std::map<std::string, std::string> tokenizer_files;
  std::string profile_source;  // source digest of the usage that chose the formats; empty: none
  std::string rows_note;       // formats chosen for a GGUF file's rows, and what is left out, for people
  Digest128 fingerprint;       // of the source's files and of the options: a resumed run must have the same

  uint32_t first_expert_unit() const { return dense_extents + static_cast<uint32_t>(row_units.size()); }
  uint32_t units() const { return first_expert_unit() + static_cast<uint32_t>(expert_units.size()); }
  uint64_t total_bytes() const;  // of all payload files
  // Extents of a unit.
  absl::Span<const ExtentEntry> unit_extents(uint32_t unit) const;
  // Dense tensors of dense extent `unit`: [first, last).
  std::pair<size_t, size_t> dense_range(uint32_t unit) const;
  uint64_t unit_bytes(uint32_t unit) const;
  // Peak bytes of one worker's buffers.
  uint64_t worker_bytes() const;
};

// Reads headers and small files only. Returns PackModel's errors.
absl::StatusOr<PackJob> PreparePack(const std::string& model_dir, const PackOptions& options);

// `digests`: of the source bytes, by dense tensor, then up, gate and down of each expert.
std::string SourceDigest(const PackJob& job, absl::Span<const Digest128> digests);

}  // namespace sluice
