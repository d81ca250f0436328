// PartialFile: a file that has its name only once it is whole.
//
// Thread safety: as File: writes at different places from several threads; Create, Commit and the destructor
// need exclusive use.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/file_io.h"

namespace sluice::cli {

class PartialFile {
 public:
  // Creates `path` under a temporary name beside it. INVALID_ARGUMENT if a folder, a device or anything else
  // that is no regular file has the name: it must not be replaced.
  static absl::StatusOr<PartialFile> Create(const std::string& path);
  PartialFile(PartialFile&&) = default;
  // Removes the file unless it was committed.
  ~PartialFile();

  // Unwritten bytes are zero.
  absl::Status SetSize(uint64_t bytes) const { return file_.Truncate(bytes); }
  absl::Status WriteAt(uint64_t offset, absl::Span<const float> values) const;
  absl::Status WriteAt(uint64_t offset, const std::string& bytes) const;

  // Gives the file its name, replacing what had it.
  absl::Status Commit();

  const std::string& path() const { return path_; }

 private:
  PartialFile(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  File file_;  // none once committed
};

}  // namespace sluice::cli
