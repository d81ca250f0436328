// The engine's parts that work beside the serving steps (calibration) borrows.
//
// Thread safety: plain values; what they point to belongs to the engine thread.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/experts/expert_source.h"
#include "inferd/experts/residency_view.h"
#include "inferd/model/dense_weights.h"
#include "kernels/backend.h"

namespace sluice::inferd {

struct ModelParts {
  const ModelConfig* config = nullptr;
  const EnginePlan* plan = nullptr;
  Backend* backend = nullptr;
  const DenseWeights* weights = nullptr;
  ExpertSource* experts = nullptr;
  const ResidencyView* residency = nullptr;  // residency of the same experts
};

// Runs on the engine thread between two steps. `step` exceeds every earlier step number.
using EngineWork = std::function<absl::Status(const ModelParts& parts, uint64_t step)>;

}  // namespace sluice::inferd
