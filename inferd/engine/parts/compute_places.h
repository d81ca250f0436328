// The places of an engine: a device, and beside it the CPU if the policies let it compute experts that the
// device lacks. The program that starts an engine provides the factory for both.
//
// Thread safety: plain values. The places are created on the engine thread and belong to it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "inferd/policy/preset/policy_kinds.h"
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

}  // namespace sluice::inferd
