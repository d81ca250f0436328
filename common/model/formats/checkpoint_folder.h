// OpenCheckpointFolder: a Hugging Face folder as a Checkpoint. Plain tensors are read unchanged, quantized
// layers as their dequantized matrices.
//
// Thread safety: a free function; the Checkpoint is immutable.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/formats/quantization.h"

namespace sluice {

// Opens the safetensors of `dir`; reads headers, and a few numbers of layers that store their shape in a
// tensor. Errors as TensorFolder::Open's and FindQuantizedLayer's.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpointFolder(const std::string& dir,
                                                                 const Quantization& quantization);

}  // namespace sluice
