#include "cli/ui/safetensors_writer.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/ui/json.h"
#include "common/status.h"

namespace sluice::cli {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, written as it lies");

std::string SafetensorsHeader(const std::string& tensor, uint64_t rows, uint64_t cols) {
  const uint64_t bytes = rows * cols * sizeof(float);
  std::string json = Json::Object()
                         .Set(tensor, Json::Object()
                                          .Set("dtype", "F32")
                                          .Set("shape", std::vector<uint64_t>{rows, cols})
                                          .Set("data_offsets", std::vector<uint64_t>{0, bytes}))
                         .Dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path,
                                                                             const std::string& tensor,
                                                                             uint64_t rows, uint64_t cols) {
  ASSIGN_OR_RETURN(PartialFile file, PartialFile::Create(path));
  const std::string header = SafetensorsHeader(tensor, rows, cols);
  RETURN_IF_ERROR(file.WriteAt(0, header));
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(std::move(file), header.size(), rows, cols));
}

absl::Status SafetensorsWriter::WriteRows(uint64_t first, absl::Span<const float> values) {
  const uint64_t rows = values.size() / cols_;
  if (values.size() % cols_ != 0 || first > rows_ || rows > rows_ - first) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " values at row ", first, " do not fit into [", rows_, ", ", cols_, "]"));
  }
  rows_written_ += rows;
  return file_.WriteAt(header_bytes_ + first * cols_ * sizeof(float), values);
}

absl::Status SafetensorsWriter::Finish() {
  if (rows_written_ != rows_) {
    return absl::FailedPreconditionError(
        absl::StrCat(file_.path(), ": ", rows_written_, " rows of ", rows_, " were written"));
  }
  return file_.Commit();
}

}  // namespace sluice::cli
