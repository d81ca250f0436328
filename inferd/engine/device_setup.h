// Setup of an engine's devices, and the division of a device's memory: the parts on a device with its own
// memory, and the bytes left for experts.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/protocol/copier.h"
#include "inferd/forward/engine_options.h"
#include "inferd/forward/engine_parts.h"
#include "inferd/model/weight_client.h"
#include "inferd/policy/policies.h"
#include "inferd/sim/virtual_clock.h"
#include "pack/pack.h"

namespace sluice::inferd {

// The requested budget: bytes for everything on the device, or a share of the routed experts besides
// everything else. Neither: all experts, or on a real device as many as fit 95 % of the free memory.
struct DeviceBudget {
  uint64_t bytes = 0;
  double expert_percent = 0;
};

// Memory of a real device, measured once both processes have created their contexts.
struct DeviceCapacity {
  uint64_t total = 0;
  uint64_t free = 0;
  uint64_t contexts = 0;  // of both processes, with the backend's workspace: already allocated
  uint64_t granule = 1;   // slabs are a multiple of it
};

// Bytes by purpose.
struct DeviceMemory {
  uint64_t contexts = 0;  // with workspace; 0 on a modelled device
  uint64_t dense = 0;
  uint64_t kv = 0;           // includes recurrent states
  uint64_t activations = 0;  // includes tables and staging memory
  uint64_t experts = 0;      // maximum for the slots; 0: enough for all experts
  uint64_t beside() const { return contexts + dense + kv + activations; }
  // Returns one line for the log.
  std::string Describe(const Pack& pack) const;
};

// Divides the budget by the model's plan and the effective policies. INVALID_ARGUMENT with the parts: the
// budget cannot hold everything else plus the minimum of experts for these policies. RESOURCE_EXHAUSTED with
// the parts: it exceeds the free memory in `room`. UNIMPLEMENTED for a GPU (`room`) and rows that it lacks.
absl::StatusOr<DeviceMemory> DivideDeviceMemory(const DeviceBudget& budget, const EnginePlan& plan,
                                                const Policies& policies, const Pack& pack,
                                                const std::optional<DeviceCapacity>& room = std::nullopt);

// Creates the devices and the weightd client for an engine's options: wraps a device by the model, the cost
// measurement or the own-memory simulation, and selects the device's transport for experts.
//
// Thread safety: free functions.

// Creates the devices. `clock` null: real time.
absl::StatusOr<ComputeDevices> MakeDevices(const EnginePlan& plan, bool cpu_parallel,
                                           const ModelConfig& config, VirtualClock* clock,
                                           const DeviceFactory& factory);

// Wraps the client for the device's transport. `copiers` are used if this process pulls.
std::unique_ptr<WeightClient> WithTransport(std::unique_ptr<WeightClient> client,
                                            const EngineOptions& options, VirtualClock* clock,
                                            std::vector<std::shared_ptr<Copier>> copiers);

}  // namespace sluice::inferd
