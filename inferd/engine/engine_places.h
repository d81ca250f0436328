// Creates the places and the weightd client for an engine's options: wraps a device by the model, the cost
// measurement or the own-memory simulation, and selects the device's transport for experts.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transfer/copier.h"
#include "inferd/engine/parts/compute_places.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/sim/virtual_clock.h"
#include "inferd/weights/weight_client.h"

namespace sluice::inferd {

// Creates the places. `clock` null: real time.
absl::StatusOr<ComputeDevices> MakeDevices(const EnginePlan& plan, bool cpu_parallel,
                                           const ModelConfig& config, VirtualClock* clock,
                                           const DeviceFactory& factory);

// Wraps the client for the device's transport. `copiers` are used if this process pulls.
std::unique_ptr<WeightClient> WithTransport(std::unique_ptr<WeightClient> client,
                                            const EngineOptions& options, VirtualClock* clock,
                                            std::vector<std::shared_ptr<Copier>> copiers);

}  // namespace sluice::inferd
