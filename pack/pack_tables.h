// The two tables of a pack, manifest.json and extents.bin: pure parsers over untrusted bytes, and
// serializers.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "pack/pack_format.h"

namespace sluice {

// manifest.json: pure parser over untrusted bytes, and writer.

// Checks the closing digest, the version and features first, then every field. DataLoss: not a manifest or
// damaged. Unimplemented: a version or incompatible feature that this build does not support.
absl::StatusOr<Manifest> ParseManifest(std::string_view text);

// The file's exact bytes; equal manifests give equal bytes. Sets `manifest->model_id`.
std::string SerializeManifest(Manifest* manifest);

// extents.bin: pure parser over untrusted bytes, and writer.
//
// Thread safety: free functions, safe to call from any thread.

inline constexpr char kExtentTableMagic[9] = "SLUICEXT";  // 8 bytes are stored
inline constexpr uint32_t kExtentTableHeaderBytes = 64;
inline constexpr uint32_t kExtentEntryBytes = 40;

// Checks magic, version, counts against the size before allocating, and each entry in itself: known kind and
// file, alignment, extents of a file contiguous from 0, checksum indices contiguous. DataLoss naming entry
// and field.
absl::StatusOr<ExtentTable> ParseExtentTable(absl::Span<const std::byte> bytes);

// The file's exact bytes.
std::string SerializeExtentTable(const ExtentTable& table);

}  // namespace sluice
