// Reader of a source matrix: the pack's rows as float32 in order, with the digest of the matrix's source and
// a check for NaN and Inf.
//
// Thread safety: a reader is used by one thread at a time; several readers may share a Checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/checksum.h"
#include "common/model/checkpoint.h"
#include "common/model/tensor_mapper.h"

namespace sluice {

// Rows of a matrix in the pack's order, one after the other.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // Reads the next `count` rows of matrix.cols() values, row-major, into `out`. Errors name file, tensor and
  // index.
  virtual absl::Status Next(uint32_t count, absl::Span<float> out) = 0;
  // Reads the same rows as the source's blocks, row after row, and their values. REQUIRES: BlocksOf(matrix)
  // is valid; call either this or Next on one reader.
  virtual absl::Status NextBlocks(uint32_t count, absl::Span<float> out, absl::Span<CodeBlock> blocks) = 0;
  // Digest of the matrix's source bytes, line by line in the source's order, without the bytes between them;
  // for decoded tensors: of the rows' float32 values. REQUIRES: every row was read.
  virtual Digest128 digest() const = 0;
};

// Creates a reader of `matrix`; `checkpoint` outlives it. Rows that are lines of the source take the memory
// of one call; columns of the source take MatrixMemory bytes, from the first row read to the last.
std::unique_ptr<RowReader> MakeRowReader(const Checkpoint& checkpoint, const SourceMatrix& matrix);

// Bytes that a reader of `matrix` holds beside the rows of one call.
uint64_t MatrixMemory(const SourceMatrix& matrix);

// Encoding of the blocks that make up `matrix`'s rows, whole and unchanged; kInvalid if there is none.
Encoding BlocksOf(const SourceMatrix& matrix);

// "BF16", "MXFP4": for digests and messages.
const std::string& SourceTypeName(const SourceMatrix& matrix);

}  // namespace sluice
