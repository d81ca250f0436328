// Where an engine computes: on a device, and beside it on the CPU where the policies give that experts which
// the device lacks. Who starts an engine says how the two are made.
//
// Thread safety: plain values. The places are made on the engine thread and belong to it.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "inferd/policy/preset/policy_kinds.h"
#include "kernels/backend.h"

namespace sluice {

struct PlacesNeeded {
  DeviceKind device = DeviceKind::kHost;
  BackendLimits limits;     // of either
  bool cpu_beside = false;  // experts may be the CPU's
};

struct ComputePlaces {
  std::unique_ptr<Backend> device;
  // Computes with the CPU when it is called; the engine gives it a thread. None unless it was needed.
  std::unique_ptr<Backend> cpu;
};

// Errors name what the machine lacks.
using PlacesFactory = std::function<absl::StatusOr<ComputePlaces>(const PlacesNeeded& needed)>;

}  // namespace sluice
