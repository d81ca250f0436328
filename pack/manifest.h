// manifest.json: pure parser over untrusted bytes, and writer.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "pack/pack_format.h"

namespace sluice {

// Checks the closing digest, the version and features first, then every field. DataLoss: not a manifest or
// damaged. Unimplemented: a version or incompatible feature that this build does not support.
absl::StatusOr<Manifest> ParseManifest(std::string_view text);

// The file's exact bytes; equal manifests give equal bytes. Sets `manifest->model_id`.
std::string SerializeManifest(Manifest* manifest);

}  // namespace sluice
