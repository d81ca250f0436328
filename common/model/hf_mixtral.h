// Mixtral: its config.json, and where its checkpoints keep each tensor.
//
// Private to common/model: the rows of the families' tables.
//
// Thread safety: free functions, safe to call from any thread.
#ifndef SLUICE_COMMON_MODEL_HF_MIXTRAL_H_
#define SLUICE_COMMON_MODEL_HF_MIXTRAL_H_

#include "absl/status/statusor.h"
#include "common/model/hf_tensors.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/strict_json.h"

namespace sluice {

// Absent members take transformers' MixtralConfig defaults, where those do not shape the tensors.
absl::StatusOr<ModelConfig> ReadMixtralConfig(const JsonObject& config);

// Both generations of names: block_sparse_moe.experts.E.{w1,w3,w2}.weight, and mlp.experts.{gate_up_proj,
// down_proj} with the experts stacked.
absl::Status MapMixtralTensors(const ModelConfig& config, TensorMapper* mapper);

}  // namespace sluice

#endif  // SLUICE_COMMON_MODEL_HF_MIXTRAL_H_
