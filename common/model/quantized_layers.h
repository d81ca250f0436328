// QuantizedLayer: a quantized linear layer of a published folder. Finds its tensors, checks them against each
// other, and decodes them to float32.
//
// Thread safety: a QuantizedLayer is immutable; Read may be called from any thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/checkpoint.h"
#include "common/model/quantization.h"
#include "common/model/safetensors.h"

namespace sluice {

class QuantizedLayer {
 public:
  virtual ~QuantizedLayer() = default;

  // Reads the values of `rect`, line by line; `out` holds exactly them. REQUIRES: `rect` lies within the
  // layer.
  virtual absl::Status Read(const TensorRect& rect, absl::Span<float> out) const = 0;
};

// A layer, its name and shape in the family's terms, and the tensors that it is made of.
struct LayerParts {
  CheckpointTensor tensor;  // decoded; `source_index` is not set
  std::unique_ptr<QuantizedLayer> layer;
  std::vector<const TensorInfo*> used;  // the first one holds the codes
};

// Finds the layer whose codes are in `codes`, by the method of its folder; `layer` is null if the tensor
// belongs to none. InvalidArgument naming tensors that are missing, misshapen or of another type;
// Unimplemented naming an unsupported layout. The layer reads `folder`, which outlives it.
absl::StatusOr<LayerParts> FindQuantizedLayer(const TensorFolder& folder, const Quantization& quantization,
                                              const TensorInfo& codes);

// True if the tensor only scales activations or a KV cache, which no weight needs.
bool IsActivationScale(const Quantization& quantization, const TensorInfo& tensor);

}  // namespace sluice
