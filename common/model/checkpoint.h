// Checkpoint: what a published model is, whatever its files: a directory of tensors under the names that the
// families know, and their values. Folders of safetensors, plain or quantized, and GGUF files implement it;
// whoever reads weights sees nothing else.
//
// A tensor is a matrix of lines as its file keeps them: the last dimension is a line's length, the others are
// its lines. Formats that keep a linear layer by its inputs have the layer's shape and `by_columns`: a line
// is then one input's weights for all outputs.
//
// Thread safety: a Checkpoint is immutable once it is open; const methods may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/encoding.h"
#include "common/model/code_block.h"
#include "common/model/safetensors.h"

namespace sluice {

struct CheckpointTensor {
  std::string name;
  std::vector<uint64_t> shape;            // a linear layer's is [outputs, inputs]
  ElementType type = ElementType::kBf16;  // of the values that Read gives
  std::string format;                     // how the file keeps them ("BF16", "F8_E4M3", "Q4_K")
  bool decoded = false;                   // Read computes the values; else they are the file's own bytes
  bool by_columns = false;                // two dimensions, and the lines are columns
  bool mxfp4 = false;                     // each 32 values along a line are E2M1 times one power of two
  // Lines are kept in blocks whose values rows of this encoding hold exactly (ReadBlocks); kInvalid: they are
  // not, or the lines are not the file's.
  Encoding blocks = Encoding::kInvalid;
  // Known to change nothing (a bias of zeros, a scale of ones): a family may leave it out.
  bool is_neutral = false;
  uint32_t place = 0;  // the implementation's own

  uint64_t line_length() const {
    if (shape.empty()) return 1;
    return by_columns ? shape.front() : shape.back();
  }
};

// Columns [column, column + columns) of lines [line, line + lines).
struct TensorRect {
  uint64_t line = 0;
  uint64_t lines = 0;
  uint64_t column = 0;
  uint64_t columns = 0;
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // In the order of their names.
  absl::Span<const CheckpointTensor> tensors() const { return tensors_; }
  const CheckpointTensor* Find(std::string_view name) const {
    const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
  }

  // The values of `rect` in `tensor.type`, line by line without gaps; `out` holds exactly them. What the file
  // says is no number (NaN codes) comes as NaN. REQUIRES: `rect` lies within the tensor. Memory: a fraction
  // of `out` beside it. Errors name the file.
  virtual absl::Status Read(const CheckpointTensor& tensor, const TensorRect& rect,
                            absl::Span<std::byte> out) const = 0;

  // The blocks that hold the values of `rect`, line by line; `out` holds exactly them. REQUIRES:
  // IsBlockEncoding(tensor.blocks), and `rect` begins and ends between blocks (BlockValuesOf).
  virtual absl::Status ReadBlocks(const CheckpointTensor& tensor, const TensorRect& rect,
                                  absl::Span<CodeBlock> out) const;

  // The file that holds the tensor, for messages.
  virtual const std::string& PathOf(const CheckpointTensor& tensor) const = 0;

  // Changes when the files do: what a resumed conversion compares.
  virtual std::string fingerprint() const = 0;

 protected:
  // InvalidArgument naming a tensor that is there twice.
  absl::Status SetTensors(std::vector<CheckpointTensor> tensors);

 private:
  std::vector<CheckpointTensor> tensors_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
};

}  // namespace sluice
