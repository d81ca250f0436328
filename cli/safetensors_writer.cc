#include "cli/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/file_io.h"
#include "cli/json.h"
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

SafetensorsWriter::SafetensorsWriter(std::string path, UniqueFd fd, uint64_t header_bytes, uint64_t rows,
                                     uint64_t cols)
    : path_(std::move(path)), header_bytes_(header_bytes), rows_(rows), cols_(cols), fd_(std::move(fd)) {}

std::string SafetensorsWriter::temporary() const { return absl::StrCat(path_, ".tmp.", getpid()); }

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path,
                                                                             const std::string& tensor,
                                                                             uint64_t rows, uint64_t cols) {
  const std::string header = SafetensorsHeader(tensor, rows, cols);
  std::unique_ptr<SafetensorsWriter> writer(
      new SafetensorsWriter(path, UniqueFd(), header.size(), rows, cols));
  writer->fd_.reset(open(writer->temporary().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!writer->fd_.valid()) {
    return ErrnoToStatus(errno, absl::StrCat("cannot create ", writer->temporary()));
  }
  RETURN_IF_ERROR(WriteAt(writer->fd_.get(), 0, header.data(), header.size(), writer->temporary()));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_.valid()) {
    unlink(temporary().c_str());
  }
}

absl::Status SafetensorsWriter::WriteRows(uint64_t first, absl::Span<const float> values) {
  const uint64_t rows = values.size() / cols_;
  if (values.size() % cols_ != 0 || first > rows_ || rows > rows_ - first) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " values at row ", first, " do not fit into [", rows_, ", ", cols_, "]"));
  }
  rows_written_ += rows;
  return WriteAt(fd_.get(), header_bytes_ + first * cols_ * sizeof(float), values.data(),
                 values.size() * sizeof(float), temporary());
}

absl::Status SafetensorsWriter::Finish() {
  if (rows_written_ != rows_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ", rows_written_, " rows of ", rows_, " were written"));
  }
  if (rename(temporary().c_str(), path_.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot rename ", temporary(), " to ", path_));
  }
  fd_.reset();
  return absl::OkStatus();
}

}  // namespace sluice::cli
