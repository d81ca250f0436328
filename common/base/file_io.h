// Files: bounded reads of whole files, positioned reads and writes that complete, durable writes.
//
// Errors name the path and, where there is one, the offset.
//
// Thread safety: free functions, safe to call from any thread. A File may be read and written (at different
// offsets) from several threads at once; moving it needs exclusive use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice {

// An open regular file; closed on destruction.
class File {
 public:
  // NOT_FOUND and so on by errno; INVALID_ARGUMENT if it is not a regular file (a fifo would block).
  static absl::StatusOr<File> OpenForRead(const std::string& path);
  // Opens for reading and writing; creates the file if needed and keeps its content.
  static absl::StatusOr<File> OpenForWrite(const std::string& path);

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  absl::StatusOr<uint64_t> Size() const;

  // Fills `bytes` from `offset`; DATA_LOSS with both numbers if the file ends earlier.
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> bytes) const;
  absl::Status WriteAt(uint64_t offset, absl::Span<const std::byte> bytes) const;
  absl::Status Truncate(uint64_t bytes) const;
  // Reserves `bytes` of disk space if the file system supports it; otherwise only sets the size.
  absl::Status Reserve(uint64_t bytes) const;
  absl::Status Sync() const;

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

// The content of a regular file of at most `max_bytes`; INVALID_ARGUMENT naming both numbers if it is larger.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t max_bytes);

// Creates or replaces `path` with `content` and syncs it.
absl::Status WriteFileDurably(const std::string& path, std::string_view content);

// Makes the entries of a folder durable.
absl::Status SyncFolder(const std::string& path);

bool FileExists(const std::string& path);

}  // namespace sluice
