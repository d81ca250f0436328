// The file of a base run (`sluice perplexity --save-base`, `--kl-base`): log probabilities of every scored
// position over the whole vocabulary. Little-endian:
//
//   bytes   0..7    magic "SLUICELP"
//           8..11   u32 version, 1
//          12..15   u32 type of the values, 1: f32
//          16..23   u64 positions
//          24..27   u32 vocabulary
//          28..31   u32 window
//          32..35   u32 stride
//          36..39   u32 zero
//          40..47   u64 XXH3-64 of the scored token ids as int32
//          48..79   model_id of the run, 32 hex digits
//          80..127  zero
//          128..    positions x vocabulary natural-log probabilities, position after position; zeros for a
//                   position without a prediction (the first of a window of a model without BOS)
//
// Thread safety: const methods and WriteRow may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/output_files.h"
#include "common/base/file_io.h"

namespace sluice::cli {

// Properties by which two runs are compared; model_id is only for information.
struct BaseRunHeader {
  uint64_t positions = 0;
  uint32_t vocab = 0;
  uint32_t window = 0;
  uint32_t stride = 0;
  uint64_t token_hash = 0;
  std::string model_id;
};

uint64_t HashTokens(absl::Span<const int32_t> tokens);

inline constexpr uint64_t kBaseRunHeaderBytes = 128;
std::string SerializeBaseRunHeader(const BaseRunHeader& header);
// INVALID_ARGUMENT naming the field; also if `file_bytes` differs from the size that the header implies.
absl::StatusOr<BaseRunHeader> ParseBaseRunHeader(const std::string& bytes, uint64_t file_bytes);

class BaseRunWriter {
 public:
  static absl::StatusOr<std::unique_ptr<BaseRunWriter>> Create(const std::string& path,
                                                               const BaseRunHeader& header);
  // REQUIRES: position < positions, row.size() == vocab.
  absl::Status WriteRow(uint64_t position, absl::Span<const float> row);
  // Renames the file to its final name. REQUIRES: the row of every position with a prediction was written.
  absl::Status Finish();

 private:
  BaseRunWriter(const BaseRunHeader& header, PartialFile file) : header_(header), file_(std::move(file)) {}
  const BaseRunHeader header_;
  PartialFile file_;
};

class BaseRunReader {
 public:
  // `expected`: properties of this run; INVALID_ARGUMENT naming the difference.
  static absl::StatusOr<std::unique_ptr<BaseRunReader>> Open(const std::string& path,
                                                             const BaseRunHeader& expected);
  const BaseRunHeader& header() const { return header_; }
  // DATA_LOSS naming the position if a value is NaN.
  absl::Status ReadRow(uint64_t position, absl::Span<float> row) const;

 private:
  BaseRunReader(BaseRunHeader header, File file) : header_(std::move(header)), file_(std::move(file)) {}
  const BaseRunHeader header_;
  const File file_;
};

}  // namespace sluice::cli
