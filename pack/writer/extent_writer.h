// Writes one extent front to back: buffers whole chunks, checksums them, writes them at their offset.
//
// Thread safety: an ExtentWriter is used by one thread; writers of different extents of a file may run at
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/file_io.h"
#include "pack/pack_format.h"

namespace sluice {

class ExtentWriter {
 public:
  // `file` outlives this.
  ExtentWriter(const File& file, const ExtentEntry& entry);

  // REQUIRES: the appended bytes do not exceed the extent's length in total.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // Appends zeros up to `position` of the extent; nothing if that is reached already.
  absl::Status PadTo(uint64_t position);
  // Pads to the extent's length and writes the rest of the buffer.
  absl::Status Finish();

  // One checksum for each chunk, complete after Finish().
  const std::vector<uint64_t>& checksums() const { return checksums_; }

 private:
  absl::Status Flush();

  const File& file_;
  const ExtentEntry entry_;
  uint64_t position_ = 0;  // of the next byte, in the extent
  std::vector<std::byte> buffer_;
  std::vector<uint64_t> checksums_;
};

}  // namespace sluice
