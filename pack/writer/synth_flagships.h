// Shapes of published models whose attention is more than plain grouped attention: latents, indexers,
// windows, compressed entries, delta rules and streams. Their sizes are those of the releases' own
// config.json, in its words, so that the reader of a model's folder and `sluice synth` agree by construction.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace sluice {

// Names in the order of the help text.
std::vector<std::string> FlagshipNames();

// The model `name`, cut to its first `layers` layers; 0: all. NotFound for an unknown name; InvalidArgument
// for more layers than it has.
absl::StatusOr<ModelConfig> FlagshipModel(const std::string& name, uint32_t layers);

}  // namespace sluice
