// What lies on a device with memory of its own, and what of its budget that leaves for experts.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/policy/preset/preset.h"
#include "pack/pack.h"

namespace sluice {

// What was asked for: bytes for everything of ours there, or a share of the routed experts beside all else.
// Neither: all experts, or on a real device as many as 95 % of what is free hold.
struct DeviceBudget {
  uint64_t bytes = 0;
  double expert_percent = 0;
};

// What a real device has, asked for once both processes have what they need to use it at all.
struct DeviceRoom {
  uint64_t total = 0;
  uint64_t free = 0;
  uint64_t contexts = 0;  // of both processes, and the backend's workspace: taken already
  uint64_t granule = 1;   // slabs take whole ones
};

// Bytes by what they are for.
struct DeviceMemory {
  uint64_t contexts = 0;  // and workspace; 0 on a modelled device
  uint64_t dense = 0;
  uint64_t kv = 0;           // recurrent states included
  uint64_t activations = 0;  // tables and staging memory included
  uint64_t experts = 0;      // the slots' at most; 0: as many as all experts take
  uint64_t beside() const { return contexts + dense + kv + activations; }
  // One line for the log.
  std::string Describe(const Pack& pack) const;
};

// The plan is the model's, the policies are those in effect. INVALID_ARGUMENT with the parts: the budget
// cannot hold what lies beside the experts and the least that these policies need of them. RESOURCE_EXHAUSTED
// with the parts: it is more than what is free in `room`.
absl::StatusOr<DeviceMemory> DivideDeviceMemory(const DeviceBudget& budget, const EnginePlan& plan,
                                                const Policies& policies, const Pack& pack,
                                                const std::optional<DeviceRoom>& room = std::nullopt);

}  // namespace sluice
