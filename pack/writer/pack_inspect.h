// The contents of a pack, from its tables alone, as `sluice inspect` shows them.
//
// Thread safety: plain values and free functions, safe to call from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "pack/pack_format.h"

namespace sluice {

// Matrices stored alike. Bits count codes, scales and zeros, but not the padding to a row's stride.
struct StoredRows {
  EncodingDescriptor encoding;
  uint64_t matrices = 0;
  uint64_t weights = 0;
  uint64_t row_bytes = 0;

  void Add(const EncodingDescriptor& of, uint64_t rows, uint64_t cols);
};
// Bits per weight of all of `rows` together; 0 if there are no weights.
double BitsPerWeight(const std::vector<StoredRows>& rows);

// Consecutive layers whose experts are stored alike, and the number of each layer's experts in each format.
struct LayerFormats {
  uint32_t first = 0;
  uint32_t last = 0;
  std::vector<uint32_t> experts;  // by expert format
};

struct PackInspection {
  Manifest manifest;
  uint64_t dense_extents = 0;
  uint64_t expert_extents = 0;
  uint64_t checksums = 0;
  uint64_t dense_bytes = 0;
  uint64_t expert_bytes = 0;
  uint64_t row_bytes = 0;  // of tables of which a token reads a few rows
  uint64_t experts = 0;
  uint64_t largest_expert_bytes = 0;
  uint64_t total_bytes = 0;        // of all the pack's files
  uint64_t parameters = 0;         // weights, padding not counted
  uint64_t active_parameters = 0;  // per token: dense plus top-k experts of each layer
  bool has_profile = false;
  std::array<std::vector<StoredRows>, kPartCount> parts;  // by Part, most weights first
  std::vector<StoredRows> dense;                          // matrices only, most weights first
  std::vector<LayerFormats> layers;                       // those with experts

  // Bits of an expert weight, over all parts.
  double ExpertBitsPerWeight() const;
  // The same with padding: rows are a stride apart, extents begin on pages.
  double StoredBitsPerWeight() const;

  // A JSON object of all this on one line, and a screen for people.
  std::string ToJson() const;
  std::string ToText() const;
};

// Errors as Pack::Open's.
absl::StatusOr<PackInspection> InspectPack(const std::string& dir);

}  // namespace sluice
