#include "pack/in_place/in_place_payload.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "pack/in_place/in_place_index.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "pack/writer/matrix_reader.h"

namespace sluice {
namespace {

// Bytes of rows that are made from values at once.
constexpr uint64_t kBatchBytes = 256 << 10;

// Copies what lies in both: `bytes` are those of an extent from `at`, `out` those from `offset`.
void CopyOverlap(uint64_t at, absl::Span<const std::byte> bytes, uint64_t offset, absl::Span<std::byte> out) {
  const uint64_t first = std::max(at, offset);
  const uint64_t last = std::min(at + bytes.size(), offset + out.size());
  if (first < last) std::memcpy(out.data() + (first - offset), bytes.data() + (first - at), last - first);
}

// Writes a matrix' rows one after the other, from the values or blocks that a RowReader returns.
class RowWriter {
 public:
  RowWriter(const Checkpoint& checkpoint, const SourceMatrix& matrix, const EncodingDescriptor& encoding,
            uint64_t stride)
      : cols_(matrix.cols()),
        encoding_(encoding),
        stride_(stride),
        name_(matrix.tensor->name),
        reader_(MakeRowReader(checkpoint, matrix)) {}

  absl::Status Write(uint32_t rows, std::byte* out) {
    const auto batch =
        static_cast<uint32_t>(std::clamp<uint64_t>(kBatchBytes / stride_, 1, std::max(rows, 1u)));
    values_.resize(uint64_t{batch} * cols_);
    for (uint32_t done = 0; done < rows;) {
      const uint32_t count = std::min(batch, rows - done);
      std::byte* const to = out + done * stride_;
      RETURN_IF_ERROR(IsBlockEncoding(encoding_.encoding) ? WriteBlocks(count, to) : WriteValues(count, to));
      done += count;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteBlocks(uint32_t count, std::byte* out) {
    const uint64_t of_row = cols_ / ValuesPerBlock(encoding_.encoding);
    blocks_.resize(count * of_row);
    RETURN_IF_ERROR(
        reader_->NextBlocks(count, absl::MakeSpan(values_).first(count * cols_), absl::MakeSpan(blocks_)));
    for (uint32_t r = 0; r < count; ++r) {
      EncodeBlockRow(encoding_, absl::MakeConstSpan(blocks_).subspan(r * of_row, of_row), cols_,
                     out + r * stride_);
    }
    return absl::OkStatus();
  }

  absl::Status WriteValues(uint32_t count, std::byte* out) {
    RETURN_IF_ERROR(reader_->Next(count, absl::MakeSpan(values_).first(count * cols_)));
    for (uint32_t r = 0; r < count; ++r) {
      const auto row = absl::MakeConstSpan(values_).subspan(r * cols_, cols_);
      if (const int64_t bad = EncodeRow(encoding_, row, out + r * stride_); bad >= 0) {
        return absl::InvalidArgumentError(absl::StrCat("tensor ", name_, " column ", bad, ": ",
                                                       row[static_cast<size_t>(bad)], " does not fit ",
                                                       DescribeEncoding(encoding_)));
      }
    }
    return absl::OkStatus();
  }

  const uint64_t cols_;
  const EncodingDescriptor encoding_;
  const uint64_t stride_;
  const std::string name_;
  const std::unique_ptr<RowReader> reader_;
  std::vector<float> values_;
  std::vector<CodeBlock> blocks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InPlacePayload>> InPlacePayload::Open(const Pack& index) {
  ASSIGN_OR_RETURN(PackJob job, PlanInPlace(index));
  std::unique_ptr<InPlacePayload> payload(new InPlacePayload(std::move(job)));
  RETURN_IF_ERROR(payload->NoteFiles());
  return payload;
}

absl::StatusOr<InPlacePayload::FileState> InPlacePayload::StateOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoToStatus(errno, path);
  return FileState{static_cast<uint64_t>(info.st_size),
                   info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec, info.st_dev,
                   info.st_ino};
}

absl::Status InPlacePayload::NoteFiles() {
  std::set<std::string> paths;
  for (const CheckpointTensor& tensor : job_.checkpoint->tensors()) {
    paths.insert(job_.checkpoint->PathOf(tensor));
  }
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const FileState state, StateOf(path));
    paths_.push_back(path);
    states_.push_back(state);
  }
  return absl::OkStatus();
}

uint32_t InPlacePayload::FileOf(const std::string& path) const {
  return static_cast<uint32_t>(std::lower_bound(paths_.begin(), paths_.end(), path) - paths_.begin());
}

absl::Status InPlacePayload::CheckUnchanged(uint32_t file) const {
  const absl::StatusOr<FileState> now = StateOf(paths_[file]);
  if (now.ok() && *now == states_[file]) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(paths_[file], " was changed or replaced while it is served"));
}

absl::Status InPlacePayload::Read(PackFile file, uint64_t offset, absl::Span<std::byte> out,
                                  const ReadSource& read) const {
  const bool dense = file == PackFile::kDense;
  const auto begin = job_.extents.begin() + (dense ? 0 : job_.dense_extents);
  const auto end = dense ? job_.extents.begin() + job_.dense_extents : job_.extents.end();
  // Extents follow each other without gaps.
  auto entry = std::prev(std::upper_bound(
      begin, end, offset, [](uint64_t at, const ExtentEntry& extent) { return at < extent.offset; }));
  while (!out.empty()) {
    const uint64_t within = offset - entry->offset;
    const absl::Span<std::byte> part = out.first(std::min<uint64_t>(out.size(), entry->length - within));
    RETURN_IF_ERROR(ReadExtent(static_cast<uint32_t>(entry - job_.extents.begin()), within, part, read));
    out.remove_prefix(part.size());
    offset += part.size();
    ++entry;
  }
  return absl::OkStatus();
}

std::vector<InPlacePayload::Rows> InPlacePayload::RowsOf(uint32_t extent) const {
  std::vector<Rows> rows;
  if (extent < job_.dense_extents) {
    const auto [first, last] = job_.dense_range(extent);
    for (size_t i = first; i < last; ++i) {
      const DenseTensor& tensor = job_.manifest.dense_tensors[i];
      rows.push_back({tensor.offset, tensor.stride, tensor.rows, tensor.encoding, &job_.dense[i]});
    }
    return rows;
  }
  const ExtentEntry& entry = job_.extents[extent];
  const ExpertFormat& format = job_.manifest.expert_formats[entry.format];
  const ExpertPlan& plan = job_.plans.Of(entry.layer, entry.format);
  const ExpertSource& source = job_.experts[entry.layer][entry.expert];
  const SourceMatrix* const matrices[kPartCount] = {&source.up, &source.gate, &source.down};
  for (int p = 0; p < kPartCount; ++p) {
    const bool stored = (StoredParts(format) & PartBit(static_cast<Part>(p))) != 0;
    if (!stored || plan.parts[p].stream != entry.stream) continue;
    rows.push_back(
        {plan.parts[p].base, plan.parts[p].stride, plan.parts[p].rows, format.parts[p], matrices[p]});
  }
  return rows;
}

absl::Status InPlacePayload::ReadExtent(uint32_t extent, uint64_t offset, absl::Span<std::byte> out,
                                        const ReadSource& read) const {
  // Gaps between rows, and the extent's end behind them, are zero.
  std::fill(out.begin(), out.end(), std::byte{0});
  for (const Rows& rows : RowsOf(extent)) {
    const uint64_t end = rows.base + rows.count * rows.stride;
    if (rows.base >= offset + out.size() || end <= offset) continue;
    RETURN_IF_ERROR(ReadRows(rows, offset, out, read));
  }
  return absl::OkStatus();
}

absl::Status InPlacePayload::ReadRows(const Rows& rows, uint64_t offset, absl::Span<std::byte> out,
                                      const ReadSource& read) const {
  const std::optional<FileRows> source = FindFileRows(*job_.checkpoint, *rows.matrix, rows.encoding);
  return source.has_value() ? ConvertFromFile(rows, *source, offset, out, read) : CopyMade(rows, offset, out);
}

absl::Status InPlacePayload::ConvertFromFile(const Rows& rows, const FileRows& source, uint64_t offset,
                                             absl::Span<std::byte> out, const ReadSource& read) const {
  const uint64_t end = offset + out.size();
  const uint64_t first = offset <= rows.base ? 0 : (offset - rows.base) / rows.stride;
  const uint64_t last = std::min<uint64_t>(rows.count, (end - rows.base + rows.stride - 1) / rows.stride);
  if (first >= last) return absl::OkStatus();
  const uint64_t row_bytes = source.row_bytes;
  ASSIGN_OR_RETURN(const absl::Span<const std::byte> lines,
                   read(FileOf(source.path), source.offset + first * row_bytes, (last - first) * row_bytes));
  const auto line = [&](uint64_t row) { return lines.subspan((row - first) * row_bytes, row_bytes); };
  // Rows that `out` has only a part of are made beside it: at most the first and the last.
  uint64_t whole = first;
  uint64_t whole_end = last;
  std::vector<std::byte> record(rows.stride);
  const auto make_beside = [&](uint64_t row) -> absl::Status {
    RETURN_IF_ERROR(ConvertRows(source, row, 1, line(row), rows.stride, absl::MakeSpan(record)));
    CopyOverlap(rows.base + row * rows.stride, record, offset, out);
    return absl::OkStatus();
  };
  if (rows.base + first * rows.stride < offset) {
    RETURN_IF_ERROR(make_beside(first));
    ++whole;
  }
  if (whole < whole_end && rows.base + last * rows.stride > end) {
    std::fill(record.begin(), record.end(), std::byte{0});
    RETURN_IF_ERROR(make_beside(last - 1));
    --whole_end;
  }
  if (whole >= whole_end) return absl::OkStatus();
  return ConvertRows(source, whole, static_cast<uint32_t>(whole_end - whole),
                     lines.subspan((whole - first) * row_bytes, (whole_end - whole) * row_bytes), rows.stride,
                     out.subspan(rows.base + whole * rows.stride - offset));
}

absl::Status InPlacePayload::CopyMade(const Rows& rows, uint64_t offset, absl::Span<std::byte> out) const {
  std::shared_ptr<MadeRows> made;
  {
    const MutexLock lock(&mutex_);
    std::shared_ptr<MadeRows>& known = made_[rows.matrix];
    if (known == nullptr) known = std::make_shared<MadeRows>();
    made = known;
  }
  bool over = false;
  {
    const MutexLock lock(&made->mutex);
    if (made->bytes.empty()) {
      std::vector<std::byte> bytes(rows.count * rows.stride);
      RETURN_IF_ERROR(MakeRows(rows, absl::MakeSpan(bytes)));
      made->bytes = std::move(bytes);
    }
    CopyOverlap(rows.base, made->bytes, offset, out);
    const uint64_t first = std::max(offset, rows.base);
    made->served += std::min(offset + out.size(), rows.base + made->bytes.size()) - first;
    over = made->served >= made->bytes.size();
  }
  if (over) {
    const MutexLock lock(&mutex_);
    made_.erase(rows.matrix);
  }
  return absl::OkStatus();
}

absl::Status InPlacePayload::MakeRows(const Rows& rows, absl::Span<std::byte> out) const {
  RowWriter writer(*job_.checkpoint, *rows.matrix, rows.encoding, rows.stride);
  return writer.Write(rows.count, out.data());
}

absl::StatusOr<std::unique_ptr<InPlaceReader>> InPlaceReader::Open(const Pack& index) {
  ASSIGN_OR_RETURN(std::unique_ptr<InPlacePayload> payload, InPlacePayload::Open(index));
  std::unique_ptr<InPlaceReader> reader(new InPlaceReader(std::move(payload)));
  for (const std::string& path : reader->payload_->files()) {
    ASSIGN_OR_RETURN(File file, File::OpenForRead(path));
    reader->files_.push_back(std::move(file));
  }
  return reader;
}

absl::Status InPlaceReader::Read(PackFile file, uint64_t offset, absl::Span<std::byte> out) {
  return payload_->Read(
      file, offset, out,
      [this](uint32_t source, uint64_t at, uint64_t bytes) -> absl::StatusOr<absl::Span<const std::byte>> {
        buffer_.resize(bytes);
        RETURN_IF_ERROR(files_[source].ReadAt(at, absl::MakeSpan(buffer_)));
        return absl::MakeConstSpan(buffer_);
      });
}

}  // namespace sluice
