// Quantized linear layers as published folders keep them: which tensors make one, checked against each other,
// and their values as float32.
//
// Thread safety: a QuantizedLayer is immutable; Read may be called from any thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/checkpoint.h"
#include "common/model/formats/quantization.h"
#include "common/model/safetensors.h"

namespace sluice {

class QuantizedLayer {
 public:
  virtual ~QuantizedLayer() = default;

  // The values of `rect`, line by line; `out` holds exactly them. REQUIRES: `rect` lies within the layer.
  virtual absl::Status Read(const TensorRect& rect, absl::Span<float> out) const = 0;
};

// A layer, the name and shape that the families know it by, and the tensors that it is made of.
struct LayerParts {
  CheckpointTensor tensor;  // decoded; `place` is not set
  std::unique_ptr<QuantizedLayer> layer;
  std::vector<const TensorInfo*> used;  // the first one holds the codes
};

// The layer whose codes are in `codes`, by the method of its folder; `layer` is null if the tensor is none's.
// InvalidArgument naming tensors that are missing, misshapen or of another type; Unimplemented naming a
// layout that is not supported. The layer reads `folder`, which outlives it.
absl::StatusOr<LayerParts> LayerOfCodes(const TensorFolder& folder, const Quantization& quantization,
                                        const TensorInfo& codes);

// Whether the tensor says something about activations or a KV cache, which no weight needs.
bool IsActivationScale(const Quantization& quantization, const TensorInfo& tensor);

}  // namespace sluice
