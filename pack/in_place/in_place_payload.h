// The bytes that a pack's payload files would hold, made from the model's own file when they are read.
//
// Thread safety: an InPlacePayload may be used from any thread at once; ReadSource functions must be, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_io.h"
#include "common/base/mutex.h"
#include "pack/in_place/file_rows.h"
#include "pack/pack.h"
#include "pack/writer/pack_job.h"

namespace sluice {

class InPlacePayload {
 public:
  // Reads bytes [offset, offset + bytes) of files()[file]; the result is valid until the thread's next call.
  using ReadSource = std::function<absl::StatusOr<absl::Span<const std::byte>>(uint32_t file, uint64_t offset,
                                                                               uint64_t bytes)>;

  // Opens the model of an index. PlanInPlace's errors.
  static absl::StatusOr<std::unique_ptr<InPlacePayload>> Open(const Pack& index);

  // The model's files: one, or those of a split model.
  const std::vector<std::string>& files() const { return paths_; }

  // Fills `out` with the bytes of payload file `file` from `offset`. REQUIRES: they lie within it. Errors
  // name file and tensor: InvalidArgument for values that are not finite; those of `read`.
  absl::Status Read(PackFile file, uint64_t offset, absl::Span<std::byte> out, const ReadSource& read) const;

  // FailedPrecondition naming the file if files()[file] was changed or replaced since Open().
  absl::Status CheckUnchanged(uint32_t file) const;

 private:
  // State of a file: another one has other numbers.
  struct FileState {
    uint64_t bytes = 0;
    int64_t changed_nanos = 0;
    uint64_t device = 0;
    uint64_t inode = 0;
    bool operator==(const FileState&) const = default;
  };
  // Rows within an extent: row r is at base + r * stride.
  struct Rows {
    uint64_t base = 0;
    uint64_t stride = 0;
    uint32_t count = 0;
    EncodingDescriptor encoding;
    const SourceMatrix* matrix = nullptr;
  };
  // Rows that no file holds in order: made at once when the first of them is read, dropped when all were.
  struct MadeRows {
    Mutex mutex;
    std::vector<std::byte> bytes ABSL_GUARDED_BY(mutex);
    uint64_t served ABSL_GUARDED_BY(mutex) = 0;
  };

  explicit InPlacePayload(PackJob job) : job_(std::move(job)) {}

  static absl::StatusOr<FileState> StateOf(const std::string& path);
  absl::Status NoteFiles();
  uint32_t FileOf(const std::string& path) const;
  std::vector<Rows> RowsOf(uint32_t extent) const;
  absl::Status ReadExtent(uint32_t extent, uint64_t offset, absl::Span<std::byte> out,
                          const ReadSource& read) const;
  // Fills the part of `out`, bytes of an extent from `offset`, that `rows` cover.
  absl::Status ReadRows(const Rows& rows, uint64_t offset, absl::Span<std::byte> out,
                        const ReadSource& read) const;
  absl::Status ConvertFromFile(const Rows& rows, const FileRows& source, uint64_t offset,
                               absl::Span<std::byte> out, const ReadSource& read) const;
  absl::Status CopyMade(const Rows& rows, uint64_t offset, absl::Span<std::byte> out) const;
  absl::Status MakeRows(const Rows& rows, absl::Span<std::byte> out) const;

  const PackJob job_;
  std::vector<std::string> paths_;
  std::vector<FileState> states_;  // by path
  mutable Mutex mutex_;
  mutable std::map<const SourceMatrix*, std::shared_ptr<MadeRows>> made_ ABSL_GUARDED_BY(mutex_);
};

// Reads through the page cache by descriptors of its own, for tools that read a payload once.
class InPlaceReader {
 public:
  static absl::StatusOr<std::unique_ptr<InPlaceReader>> Open(const Pack& index);
  // InPlacePayload::Read. Thread-compatible.
  absl::Status Read(PackFile file, uint64_t offset, absl::Span<std::byte> out);

 private:
  explicit InPlaceReader(std::unique_ptr<InPlacePayload> payload) : payload_(std::move(payload)) {}

  const std::unique_ptr<InPlacePayload> payload_;
  std::vector<File> files_;
  std::vector<std::byte> buffer_;
};

}  // namespace sluice
