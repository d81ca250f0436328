#include "pack/writer/unit_encoder.h"

#include <algorithm>
#include <array>
#include <memory>

#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"

namespace sluice {
namespace {

// Values of a row block: 1 MiB as float32, so that the block stays in the second-level cache while it is
// widened, checked and encoded.
constexpr uint64_t kBlockValues = 256 * 1024;

}  // namespace

absl::Status UnitEncoder::WriteRecords(absl::Span<const Column> columns, uint32_t rows, uint32_t cols,
                                       uint32_t stride, ExtentWriter* writer) {
  const uint32_t block = static_cast<uint32_t>(std::clamp<uint64_t>(kBlockValues / cols, 1, rows));
  values_.resize(static_cast<uint64_t>(block) * cols);
  records_.resize(static_cast<uint64_t>(block) * stride);
  for (uint32_t first = 0; first < rows; first += block) {
    const uint32_t count = std::min(block, rows - first);
    const absl::Span<std::byte> records =
        absl::MakeSpan(records_).first(static_cast<uint64_t>(count) * stride);
    // Gaps between the rows of a record are zero, so that the same input gives the same file.
    std::fill(records.begin(), records.end(), std::byte{0});
    for (const Column& column : columns) {
      if (IsBlockEncoding(column.encoding.encoding)) {
        RETURN_IF_ERROR(TakeBlocks(column, count, cols, stride));
        continue;
      }
      RETURN_IF_ERROR(column.reader->Next(count, absl::MakeSpan(values_)));
      for (uint32_t r = 0; r < count; ++r) {
        const absl::Span<const float> row =
            absl::MakeConstSpan(values_).subspan(static_cast<uint64_t>(r) * cols, cols);
        const int64_t bad =
            EncodeRow(column.encoding, row, records.data() + static_cast<uint64_t>(r) * stride + column.base);
        if (bad >= 0) {
          return absl::InvalidArgumentError(absl::StrCat(column.name, " row ", first + r, " column ", bad,
                                                         ": ", row[bad], " does not fit ",
                                                         DescribeEncoding(column.encoding)));
        }
      }
    }
    RETURN_IF_ERROR(writer->Append(records));
    RETURN_IF_ERROR(meter_->Add(records.size()));
  }
  return absl::OkStatus();
}

absl::Status UnitEncoder::TakeBlocks(const Column& column, uint32_t count, uint32_t cols, uint32_t stride) {
  const uint64_t of_row = cols / ValuesPerBlock(column.encoding.encoding);
  if (blocks_.size() < count * of_row) blocks_.resize(count * of_row);
  RETURN_IF_ERROR(column.reader->NextBlocks(count, absl::MakeSpan(values_),
                                            absl::MakeSpan(blocks_).first(count * of_row)));
  for (uint32_t r = 0; r < count; ++r) {
    EncodeBlockRow(column.encoding, absl::MakeConstSpan(blocks_).subspan(r * of_row, of_row), cols,
                   records_.data() + static_cast<uint64_t>(r) * stride + column.base);
  }
  return absl::OkStatus();
}

absl::Status UnitEncoder::EncodeDense(uint32_t unit, JournalRecord* record) {
  const ExtentEntry& entry = job_.extents[unit];
  ExtentWriter writer(staging_.file(entry.file), entry);
  const auto [first, last] = job_.dense_range(unit);
  uint64_t written = 0;
  for (size_t i = first; i < last; ++i) {
    const DenseTensor& tensor = job_.manifest.dense_tensors[i];
    const std::unique_ptr<RowReader> reader = MakeRowReader(*job_.checkpoint, job_.dense[i]);
    RETURN_IF_ERROR(writer.PadTo(tensor.offset));
    const Column column{reader.get(), tensor.encoding, 0, job_.dense[i].tensor->name};
    RETURN_IF_ERROR(WriteRecords({&column, 1}, tensor.rows, tensor.cols, tensor.stride, &writer));
    record->digests.push_back(reader->digest());
    written += static_cast<uint64_t>(tensor.rows) * tensor.stride;
  }
  RETURN_IF_ERROR(writer.Finish());
  record->checksums = writer.checksums();
  return meter_->Add(entry.length - written);
}

absl::Status UnitEncoder::EncodeRows(uint32_t unit, JournalRecord* record) {
  const RowUnit& rows = job_.row_units[unit - job_.dense_extents];
  const DenseTensor& tensor = job_.manifest.dense_tensors[rows.tensor];
  const uint32_t each = RowsPerExtent(tensor.stride);
  const uint32_t end =
      static_cast<uint32_t>(std::min<uint64_t>(tensor.rows, rows.first_row + uint64_t{rows.extents} * each));
  const SourceMatrix source = RowRange(job_.dense[rows.tensor], rows.first_row, end - rows.first_row);
  const std::unique_ptr<RowReader> reader = MakeRowReader(*job_.checkpoint, source);
  const Column column{reader.get(), tensor.encoding, 0, source.tensor->name};
  uint32_t row = rows.first_row;
  for (uint32_t i = 0; i < rows.extents; ++i) {
    const ExtentEntry& entry = job_.extents[rows.first_extent + i];
    const uint32_t count = std::min(each, end - row);
    ExtentWriter writer(staging_.file(entry.file), entry);
    RETURN_IF_ERROR(WriteRecords({&column, 1}, count, tensor.cols, tensor.stride, &writer));
    RETURN_IF_ERROR(writer.Finish());
    record->checksums.insert(record->checksums.end(), writer.checksums().begin(), writer.checksums().end());
    RETURN_IF_ERROR(meter_->Add(entry.length - static_cast<uint64_t>(count) * tensor.stride));
    row += count;
  }
  record->digests.push_back(reader->digest());
  return absl::OkStatus();
}

absl::Status UnitEncoder::EncodeExpert(uint32_t unit, JournalRecord* record) {
  const ExpertUnit& location = job_.expert_units[unit - job_.first_expert_unit()];
  const ExpertSource& source = job_.experts[location.layer][location.expert];
  const ExpertFormat& format = job_.manifest.expert_formats[location.format];
  const std::array<std::unique_ptr<RowReader>, kPartCount> readers = {
      MakeRowReader(*job_.checkpoint, source.up),
      format.gates ? MakeRowReader(*job_.checkpoint, source.gate) : nullptr,
      MakeRowReader(*job_.checkpoint, source.down)};
  const ExpertPlan& plan = job_.plans.Of(location.layer, location.format);
  for (uint32_t stream = 0; stream < plan.streams; ++stream) {
    std::vector<Column> columns;
    uint32_t cols = 0;
    for (int p = 0; p < kPartCount; ++p) {
      if (readers[p] == nullptr || plan.parts[p].stream != stream) continue;
      const std::string name =
          absl::StrCat(dense::LayerName(location.layer, absl::StrCat("experts.", location.expert, ".")),
                       PartName(static_cast<Part>(p)));
      columns.push_back({readers[p].get(), format.parts[p], plan.parts[p].base, name});
      cols = plan.parts[p].cols;
    }
    const ExtentEntry& entry = job_.extents[location.first_extent + stream];
    const uint32_t stride = plan.stream_stride[stream];
    const uint32_t rows = plan.stream_rows[stream];
    ExtentWriter writer(staging_.file(entry.file), entry);
    RETURN_IF_ERROR(WriteRecords(columns, rows, cols, stride, &writer));
    RETURN_IF_ERROR(writer.Finish());
    record->checksums.insert(record->checksums.end(), writer.checksums().begin(), writer.checksums().end());
    RETURN_IF_ERROR(meter_->Add(entry.length - static_cast<uint64_t>(rows) * stride));
  }
  for (const auto& reader : readers) {
    record->digests.push_back(reader == nullptr ? Digest128{} : reader->digest());
  }
  return absl::OkStatus();
}

absl::Status UnitEncoder::Encode(uint32_t unit, JournalRecord* record) {
  record->unit = unit;
  return unit < job_.dense_extents         ? EncodeDense(unit, record)
         : unit < job_.first_expert_unit() ? EncodeRows(unit, record)
                                           : EncodeExpert(unit, record);
}

absl::StatusOr<bool> UnitEncoder::IsWritten(const JournalRecord& record) {
  size_t next = 0;
  for (const ExtentEntry& entry : job_.unit_extents(record.unit)) {
    for (uint64_t at = 0; at < entry.length; at += kChecksumChunkBytes, ++next) {
      records_.resize(std::min(kChecksumChunkBytes, entry.length - at));
      RETURN_IF_ERROR(staging_.file(entry.file).ReadAt(entry.offset + at, absl::MakeSpan(records_)));
      if (next >= record.checksums.size() ||
          ChunkChecksum(entry.file, entry.offset + at, records_) != record.checksums[next]) {
        return false;
      }
    }
  }
  return next == record.checksums.size();
}

}  // namespace sluice
