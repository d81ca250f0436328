// Rows of a matrix that a model's file holds line by line, turned into rows of a pack. Block formats keep
// their codes and numbers: nothing is rounded.
//
// Thread safety: a FileRows is immutable; ConvertRows is a pure function of the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/model/checkpoint.h"
#include "common/model/tensor_mapper.h"

namespace sluice {

struct FileRows {
  // Relation of a line in the file to a row of the pack.
  enum class Form : uint8_t {
    kValues,      // the same values: f32, f16, bf16
    kFileBlocks,  // the same blocks, and behind them the factor of encodings with HasRowFactor
    kBlocks,      // the blocks' codes and numbers go into planes and tables
    kMxfp4        // likewise; blocks of a scale and 32 codes
  };
  Form form = Form::kValues;
  EncodingDescriptor encoding;  // of the pack's rows
  uint32_t cols = 0;
  std::string name;  // of the tensor, for messages
  std::string path;
  uint64_t offset = 0;     // of the matrix' first line in the file
  uint64_t row_bytes = 0;  // of a line; lines follow each other without gaps
  float factor = 1;
};

// Finds the rows of `matrix` in a file of the checkpoint. None if the file does not hold them in order, or
// not the values that rows of `encoding` would have.
std::optional<FileRows> FindFileRows(const Checkpoint& checkpoint, const SourceMatrix& matrix,
                                     const EncodingDescriptor& encoding);

// Converts `rows` consecutive lines at `lines` to rows `stride` bytes apart. Bytes between rows stay as they
// are. REQUIRES: lines.size() == rows * source.row_bytes, out.size() >= (rows - 1) * stride + RowBytes.
// InvalidArgument naming file, tensor and row for a value or number that is not finite; `first` is the number
// of the first line, for the message.
absl::Status ConvertRows(const FileRows& source, uint64_t first, uint32_t rows,
                         absl::Span<const std::byte> lines, uint64_t stride, absl::Span<std::byte> out);

}  // namespace sluice
