// The index of a GGUF file or of a folder of safetensors: a pack folder without payload, whose manifest names
// the file. Its extents lie where those of a pack with `down` by outputs would.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pack/pack.h"
#include "pack/writer/pack_job.h"

namespace sluice {

// Writes the index of `model` (a GGUF file, of a split one the first, or a folder) into the new folder `dir`:
// complete, or not a pack. Reads the files' heads. Unimplemented naming the first part of an expert whose
// rows the files do not hold as the pack would, with its type; PackModel's errors; those of writing.
absl::Status WriteInPlaceIndex(const std::string& model, const std::string& dir);

// Plans the payload of an index from its model's heads. FailedPrecondition naming the model if its files are
// not those that the index was made of (name, size, time of change), or if this build would make another.
absl::StatusOr<PackJob> PlanInPlace(const Pack& index);

}  // namespace sluice
