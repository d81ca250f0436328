// SafetensorsWriter: one f32 matrix as a safetensors file, row after row, without holding it in memory.
//
// The file appears under its name when Finish succeeds; until then it has a temporary name beside it.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/ui/partial_file.h"

namespace sluice::cli {

// The bytes before the data: little-endian u64 length of the JSON header, then the header, padded with spaces
// so that the data begins at a multiple of 8.
std::string SafetensorsHeader(const std::string& tensor, uint64_t rows, uint64_t cols);

class SafetensorsWriter {
 public:
  // A file with one tensor `tensor`, F32 [rows, cols].
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   const std::string& tensor, uint64_t rows,
                                                                   uint64_t cols);
  // Whole rows from row `first` on; any order. InvalidArgument for values outside of the matrix.
  absl::Status WriteRows(uint64_t first, absl::Span<const float> values);

  // Makes the file visible. FailedPrecondition if a row is missing.
  absl::Status Finish();

 private:
  SafetensorsWriter(PartialFile file, uint64_t header_bytes, uint64_t rows, uint64_t cols)
      : header_bytes_(header_bytes), rows_(rows), cols_(cols), file_(std::move(file)) {}

  const uint64_t header_bytes_;
  const uint64_t rows_;
  const uint64_t cols_;
  PartialFile file_;
  uint64_t rows_written_ = 0;
};

}  // namespace sluice::cli
