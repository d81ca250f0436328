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

// Returns OK if `model` (a GGUF file, of a split one the first, or a folder) can be served in place: every
// expert's rows are in the file as the pack would hold them. Unimplemented naming the first part that is not,
// with its type; else PackModel's errors. Reads the files' heads.
absl::Status CheckInPlace(const std::string& model);

// Writes the index of `model` into the new folder `dir`: complete, or not a pack. CheckInPlace's errors;
// those of writing.
absl::Status WriteInPlaceIndex(const std::string& model, const std::string& dir);

// Plans the payload of an index from its model's heads. FailedPrecondition naming the model if its files are
// not those that the index was made of (name, size, time of change), or if this build would make another.
absl::StatusOr<PackJob> PlanInPlace(const Pack& index);

}  // namespace sluice
