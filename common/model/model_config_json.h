// ModelConfig and GenerationDefaults as JSON: the `config` and `generation` members of a pack's manifest.
//
// Every field is written under its name, enums by name; equal values give equal JSON. Fields added after the
// first version are written only if they differ from their default. A config with an unknown member is
// refused; the result is checked with ValidateModelConfig.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace sluice {

class JsonObject;

nlohmann::json ModelConfigToJson(const ModelConfig& config);
nlohmann::json GenerationToJson(const GenerationDefaults& generation);

// InvalidArgument naming the member.
absl::StatusOr<ModelConfig> ModelConfigFromJson(const JsonObject& object);
absl::StatusOr<GenerationDefaults> GenerationFromJson(const JsonObject& object);

}  // namespace sluice
