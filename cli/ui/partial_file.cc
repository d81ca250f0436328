#include "cli/ui/partial_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace sluice::cli {

absl::StatusOr<PartialFile> PartialFile::Create(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is ",
                                                   S_ISDIR(info.st_mode) ? "a folder" : "no regular file",
                                                   " and cannot be replaced by the result"));
  }
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(absl::StrCat(path, ".tmp.", getpid())));
  RETURN_IF_ERROR(file.Truncate(0));
  return PartialFile(path, std::move(file));
}

PartialFile::~PartialFile() {
  if (file_.fd() >= 0) {
    unlink(file_.path().c_str());
  }
}

absl::Status PartialFile::WriteAt(uint64_t offset, absl::Span<const float> values) const {
  return file_.WriteAt(offset, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                                                   values.size() * sizeof(float)));
}

absl::Status PartialFile::WriteAt(uint64_t offset, const std::string& bytes) const {
  return file_.WriteAt(offset,
                       absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

absl::Status PartialFile::Commit() {
  if (rename(file_.path().c_str(), path_.c_str()) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("cannot rename ", file_.path(), " to ", path_));
  }
  file_ = File();
  return absl::OkStatus();
}

}  // namespace sluice::cli
