// Checkpoint: tensors of a published model and their values, whatever its files; and blocks of block formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/encoding.h"
#include "common/model/safetensors.h"

namespace sluice {

// CodeBlock: one block of a row as block formats store it (GGUF's Q4_K and so on): codes and the numbers that
// its groups share. The traits of the block's encoding (common/base/encoding.h) turn it into values.
//
// Thread safety: plain values and a pure function.

inline constexpr uint32_t kMaxBlockValues = 256;

struct CodeBlock {
  // Left uninitialized on purpose: blocks are made by the million. File blocks have their bytes in `codes`.
  uint8_t codes[kMaxBlockValues];  // per value, as stored in rows: IQ4's index, Q8_0's number plus 128
  // Group g has scale d * scales[g] and minimum dmin * mins[g]. Blocks of a single group use only d and dmin.
  uint8_t scales[kMaxBlockValues / 16];  // RowMeta::kSuperScale: signed
  uint8_t mins[kMaxBlockValues / 16];
  uint16_t d = 0;  // f16
  uint16_t dmin = 0;
  float factor = 1;  // file blocks of encodings with HasRowFactor; all blocks of a row have the same
};

// Returns the number of values in a block of this encoding: a super-group, or a group if there are none.
uint32_t ValuesPerBlock(Encoding encoding);

// Decodes the block's values to float32. REQUIRES: IsBlockEncoding(encoding).
void DecodeCodeBlock(Encoding encoding, const CodeBlock& block, float* out);

// Checkpoint: the tensors of a published model under the names of Hugging Face folders, and their values,
// independent of the file format. Safetensors folders, plain or quantized, and GGUF files implement it;
// weight readers see nothing else.
//
// A tensor is a matrix of lines in file order: the last dimension is the length of a line, the other
// dimensions count the lines. Formats that store a linear layer input-major keep the layer's shape and set
// `by_columns`: a line then holds one input's weights for all outputs.
//
// Thread safety: a Checkpoint is immutable once it is open; const methods may be called from any thread.

struct CheckpointTensor {
  std::string name;
  std::vector<uint64_t> shape;            // a linear layer's is [outputs, inputs]
  ElementType type = ElementType::kBf16;  // of the values that Read returns
  std::string format;                     // storage format in the file ("BF16", "F8_E4M3", "Q4_K")
  bool decoded = false;                   // Read computes the values; otherwise they are the file's own bytes
  bool by_columns = false;                // two dimensions, and the lines are columns
  bool mxfp4 = false;                     // every 32 values of a line: E2M1 codes, one power-of-two scale
  // Row encoding that holds the blocks of a line exactly (ReadBlocks). kInvalid: there is none, or the lines
  // are not the file's.
  Encoding blocks = Encoding::kInvalid;
  // True if the tensor changes nothing (a bias of zeros, a scale of ones): a family may leave it out.
  bool is_neutral = false;
  uint32_t source_index = 0;  // index private to the implementation

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

// Where a file holds a tensor's lines, in order and without gaps.
struct StoredLines {
  std::string path;
  uint64_t offset = 0;      // of line 0
  uint64_t line_bytes = 0;  // a line is its values, or whole blocks of the tensor's format
  float factor = 1;         // of all values: CodeBlock::factor
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // Sorted by name.
  absl::Span<const CheckpointTensor> tensors() const { return tensors_; }
  const CheckpointTensor* Find(std::string_view name) const {
    const auto it = by_name_.find(absl::string_view(name.data(), name.size()));
    return it == by_name_.end() ? nullptr : &tensors_[it->second];
  }

  // Reads the values of `rect` in `tensor.type`, line by line without gaps; `out` holds exactly them. Invalid
  // codes of the file (NaN codes) become NaN. REQUIRES: `rect` lies within the tensor. Memory: a fraction of
  // `out` in addition to it. Errors name the file.
  virtual absl::Status Read(const CheckpointTensor& tensor, const TensorRect& rect,
                            absl::Span<std::byte> out) const = 0;

  // Reads the blocks that hold the values of `rect`, line by line; `out` holds exactly them. REQUIRES:
  // IsBlockEncoding(tensor.blocks), and `rect` begins and ends on block boundaries (ValuesPerBlock).
  virtual absl::Status ReadBlocks(const CheckpointTensor& tensor, const TensorRect& rect,
                                  absl::Span<CodeBlock> out) const;

  // Returns the place of the tensor's lines if a file holds them as `tensor.format` defines them, unchanged.
  virtual std::optional<StoredLines> LinesInFile(const CheckpointTensor& /*tensor*/) const {
    return std::nullopt;
  }

  // Path of the file that holds the tensor, for messages.
  virtual const std::string& PathOf(const CheckpointTensor& tensor) const = 0;

  // Fingerprint that changes when the files do; a resumed conversion compares it.
  virtual std::string fingerprint() const = 0;

 protected:
  // Returns InvalidArgument naming a tensor that is listed twice.
  absl::Status SetTensors(std::vector<CheckpointTensor> tensors);

 private:
  std::vector<CheckpointTensor> tensors_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
};

}  // namespace sluice
