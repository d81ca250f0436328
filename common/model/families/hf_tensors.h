// Which source tensor holds what: a checkpoint's names -> the canonical dense tensors and expert matrices.
//
// Thread safety: a free function on immutable input.
#pragma once

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/families/blocks/tensor_mapper.h"
#include "common/model/model_config.h"

namespace sluice {

// Finds every tensor that `config` needs in `checkpoint`. NotFound naming missing tensors, InvalidArgument
// naming those that are not known or have another shape (with both shapes), Unimplemented naming an element
// type that is no float of 16 or 32 bits. The map points into `checkpoint`.
absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace sluice
