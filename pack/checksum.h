// Verification of a pack's payload bytes before any reader uses them.
//
// Thread safety: free functions on immutable data, safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "pack/pack.h"

namespace sluice {

// Checks `bytes`, read from `offset` of the extent, against the extent table. `offset` is a multiple of
// kChecksumChunkBytes; `bytes` ends at a chunk's end or at the extent's. DataLoss naming pack, extent (layer,
// expert, stream), chunk and file offset at the first mismatch. InvalidArgument for a range that does not
// consist of whole chunks of the extent.
absl::Status VerifyChunks(const Pack& pack, uint32_t extent, uint64_t offset,
                          absl::Span<const std::byte> bytes);

// Checks the whole extent: bytes.size() is its length.
inline absl::Status VerifyExtent(const Pack& pack, uint32_t extent, absl::Span<const std::byte> bytes) {
  return VerifyChunks(pack, extent, 0, bytes);
}

}  // namespace sluice
