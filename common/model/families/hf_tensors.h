// MapTensors: maps a checkpoint's tensor names to the canonical dense tensors and expert matrices.
//
// Thread safety: a free function on immutable input.
#pragma once

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/families/blocks/tensor_mapper.h"
#include "common/model/model_config.h"

namespace sluice {

// Finds every tensor that `config` needs in `checkpoint`. NotFound naming missing tensors, InvalidArgument
// naming unknown or misshapen ones (with both shapes), Unimplemented naming an element type other than 16-
// and 32-bit floats. The map points into `checkpoint`.
absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace sluice
