// The places that compute and the client of weightd as an engine's options want them: what models, measures
// or confines a device stands before it, and experts come by the device's transport.
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

namespace sluice {

// `clock` null: real time.
absl::StatusOr<ComputePlaces> MakePlaces(const EnginePlan& plan, bool cpu_beside, const ModelConfig& config,
                                         VirtualClock* clock, const PlacesFactory& factory);

// The client as the device's transport needs it. `copiers`: what this process copies with, where it pulls.
std::unique_ptr<WeightClient> Transported(std::unique_ptr<WeightClient> client, const EngineOptions& options,
                                          VirtualClock* clock, std::vector<std::shared_ptr<Copier>> copiers);

}  // namespace sluice
