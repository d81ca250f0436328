// Encodes one unit of a conversion (a dense extent or an expert): source rows in, checksummed extents out.
//
// Thread safety: an encoder is used by one thread; several encoders may share a job and the payload files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/encoding.h"
#include "pack/writer/matrix_reader.h"
#include "pack/writer/pack_job.h"
#include "pack/writer/parallel_units.h"
#include "pack/writer/staging.h"

namespace sluice {

class UnitEncoder {
 public:
  // All three outlive this.
  UnitEncoder(const PackJob& job, const Staging& staging, ProgressMeter* meter)
      : job_(job), staging_(staging), meter_(meter) {}

  // Writes the unit's extents and fills `record`. Errors name file, tensor and index.
  absl::Status Encode(uint32_t unit, JournalRecord* record);

  // True if the payload already holds the data of `record`: re-reads the unit's extents and compares.
  absl::StatusOr<bool> IsWritten(const JournalRecord& record);

 private:
  // One matrix to be encoded into records: the source of its rows, their encoding, and their place.
  struct Column {
    RowReader* reader;
    EncodingDescriptor encoding;
    uint32_t base;
    std::string name;  // for errors
  };

  absl::Status EncodeDense(uint32_t unit, JournalRecord* record);
  absl::Status EncodeRows(uint32_t unit, JournalRecord* record);
  absl::Status EncodeExpert(uint32_t unit, JournalRecord* record);
  // Writes `rows` records of `stride` bytes, each holding a row of `cols` values of every column.
  absl::Status WriteRecords(absl::Span<const Column> columns, uint32_t rows, uint32_t cols, uint32_t stride,
                            ExtentWriter* writer);
  // Encodes the next `count` rows of a column into as many records, as the source's blocks.
  absl::Status TakeBlocks(const Column& column, uint32_t count, uint32_t cols, uint32_t stride);

  const PackJob& job_;
  const Staging& staging_;
  ProgressMeter* const meter_;
  std::vector<float> values_;
  std::vector<CodeBlock> blocks_;
  std::vector<std::byte> records_;
};

}  // namespace sluice
