// Reading a source matrix: rows as float32 in order, with the digest of its bytes and a check for NaN and
// Inf.
//
// Thread safety: a reader is used by one thread at a time; several readers may share a TensorFolder.
#ifndef SLUICE_COMMON_PACK_MATRIX_READER_H_
#define SLUICE_COMMON_PACK_MATRIX_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checksum.h"
#include "common/model/hf_tensors.h"
#include "common/model/safetensors.h"

namespace sluice {

// Rows of a matrix that the pack wants, one after the other.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // The next `count` rows of `cols` values, row-major, into `out`. Errors name file, tensor and index.
  virtual absl::Status Next(uint32_t count, absl::Span<float> out) = 0;
  // Of all source bytes, in the source's order. REQUIRES: every row was read.
  virtual Digest128 digest() const = 0;
};

// Rows as they stand in the source. Memory: the rows of one call.
class StraightReader final : public RowReader {
 public:
  StraightReader(const TensorFolder& folder, const SourceMatrix& matrix) : folder_(folder), matrix_(matrix) {}
  absl::Status Next(uint32_t count, absl::Span<float> out) override;
  Digest128 digest() const override { return hasher_.Finish(); }

 private:
  const TensorFolder& folder_;
  const SourceMatrix matrix_;
  uint64_t next_row_ = 0;
  std::vector<std::byte> raw_;
  Hasher128 hasher_;
};

// Columns of the source as rows. Memory: the whole source matrix, from Load() on.
class TransposedReader final : public RowReader {
 public:
  TransposedReader(const TensorFolder& folder, const SourceMatrix& matrix)
      : folder_(folder), matrix_(matrix) {}
  absl::Status Load();
  absl::Status Next(uint32_t count, absl::Span<float> out) override;
  Digest128 digest() const override { return digest_; }

 private:
  const TensorFolder& folder_;
  const SourceMatrix matrix_;
  uint64_t next_column_ = 0;
  std::vector<std::byte> raw_;  // [rows][cols] of the source
  Digest128 digest_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_PACK_MATRIX_READER_H_
