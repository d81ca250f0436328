// The shapes of `sluice synth`: the sizes of real models, with plain grouped attention.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "pack/synth/synth.h"

namespace sluice {

// The model of `options.shape` with its overrides. InvalidArgument naming the option.
absl::StatusOr<ModelConfig> SynthModel(const SynthOptions& options);

}  // namespace sluice
