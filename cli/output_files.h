// Files that commands write: a lock between processes, a file that is renamed when complete, and a matrix as
// a safetensors file.
//
// Thread safety: stated at each part; LockFile() may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/file_io.h"
#include "common/base/unique_fd.h"

namespace sluice::cli {

// Opens `path` (creating it with mode 0600) and locks it, waiting up to `patience`. DEADLINE_EXCEEDED naming
// the path. CANCELLED once *cancel (may be null) is true. After a second of waiting `on_wait` (may be empty)
// receives the lock's holder: "process 123", or "another process" if the file does not name it.
absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration patience,
                                  const std::atomic<bool>* cancel,
                                  const std::function<void(const std::string& holder)>& on_wait = {});

// PartialFile: a file that gets its name only when it is complete.
//
// Thread safety: different offsets may be written from several threads; Create, Commit and the destructor
// need exclusive use.

class PartialFile {
 public:
  // Creates a temporary file beside `path`. INVALID_ARGUMENT if `path` is a folder, a device or anything else
  // that is not a regular file.
  static absl::StatusOr<PartialFile> Create(const std::string& path);
  PartialFile(PartialFile&&) = default;
  // Removes the file unless it was committed.
  ~PartialFile();

  // Sets the size; bytes that are not written are zero.
  absl::Status SetSize(uint64_t bytes) const { return file_.Truncate(bytes); }
  absl::Status WriteAt(uint64_t offset, absl::Span<const float> values) const;
  absl::Status WriteAt(uint64_t offset, const std::string& bytes) const;

  // Renames the file to `path`, replacing an existing one.
  absl::Status Commit();

  const std::string& path() const { return path_; }

 private:
  PartialFile(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  File file_;  // closed once committed
};

// SafetensorsWriter: writes one f32 matrix as a safetensors file, row by row, without holding it in memory.
//
// The file has a temporary name until Finish() succeeds.
//
// Thread safety: thread-compatible.

// Returns the bytes before the data: little-endian u64 length of the JSON header, then the header, padded
// with spaces so that the data begins at a multiple of 8.
std::string SafetensorsHeader(const std::string& tensor, uint64_t rows, uint64_t cols);

class SafetensorsWriter {
 public:
  // Creates a file with the tensor `tensor`, F32 [rows, cols].
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   const std::string& tensor, uint64_t rows,
                                                                   uint64_t cols);
  // Writes whole rows from row `first` on, in any order. INVALID_ARGUMENT for values outside of the matrix.
  absl::Status WriteRows(uint64_t first, absl::Span<const float> values);

  // Makes the file visible. FAILED_PRECONDITION if a row is missing.
  absl::Status Finish();

 private:
  SafetensorsWriter(PartialFile file, uint64_t header_bytes, uint64_t rows, uint64_t cols)
      : header_bytes_(header_bytes), rows_(rows), cols_(cols), file_(std::move(file)) {}

  const uint64_t header_bytes_;
  const uint64_t rows_;
  const uint64_t cols_;
  PartialFile file_;
  uint64_t rows_written_ = 0;
};

}  // namespace sluice::cli
