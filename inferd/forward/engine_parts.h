// The places of an engine: a device, and beside it the CPU if the policies let it compute experts that the
// device lacks. The program that starts an engine provides the factory for both.
//
// Thread safety: plain values. The places are created on the engine thread and belong to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inferd/forward/engine_options.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/expert_source.h"
#include "inferd/policy/policies.h"
#include "kernels/backend.h"

namespace sluice::inferd {

struct DeviceNeeds {
  DeviceKind device = DeviceKind::kHost;
  BackendLimits limits;       // of either device
  bool cpu_parallel = false;  // the CPU may compute experts
};

struct ComputeDevices {
  std::unique_ptr<Backend> device;
  // The CPU's synchronous backend; the engine gives it a thread. Null unless it was needed.
  std::unique_ptr<Backend> cpu;
};

// Creates the places. Errors name the feature that the machine lacks.
using DeviceFactory = std::function<absl::StatusOr<ComputeDevices>(const DeviceNeeds& needed)>;

// The engine's parts that work beside the serving steps (calibration) borrows.
//
// Thread safety: plain values; what they point to belongs to the engine thread.

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
