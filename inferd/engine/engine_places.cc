#include "inferd/engine/engine_places.h"

#include <utility>

#include "common/status.h"
#include "inferd/model/model_shapes.h"
#include "inferd/sim/measured_device.h"
#include "inferd/sim/own_memory_device.h"
#include "inferd/sim/virtual_device.h"
#include "inferd/sim/virtual_weight_client.h"
#include "inferd/weights/pull_client.h"
#include "kernels/threaded/threaded_backend.h"

namespace sluice::inferd {

absl::StatusOr<ComputeDevices> MakeDevices(const EnginePlan& plan, bool cpu_parallel,
                                           const ModelConfig& config, VirtualClock* clock,
                                           const DeviceFactory& factory) {
  const EngineOptions& options = plan.options;
  ASSIGN_OR_RETURN(ComputeDevices devices, factory({options.device, plan.backend, cpu_parallel}));
  if (clock != nullptr) {
    devices.device = std::make_unique<VirtualDevice>(std::move(devices.device), clock, options.costs,
                                                     Bf16ExpertBytes(config));
  } else if (!options.measure_costs.empty()) {
    ASSIGN_OR_RETURN(devices.device, MeasuredDevice::Create(std::move(devices.device), options.measure_costs,
                                                            Bf16ExpertBytes(config)));
  }
  if (options.device == DeviceKind::kSim) {
    devices.device = std::make_unique<OwnMemoryDevice>(std::move(devices.device));
  }
  if (cpu_parallel) {
    devices.cpu = std::make_unique<ThreadedBackend>(std::move(devices.cpu));
  }
  return devices;
}

std::unique_ptr<WeightClient> WithTransport(std::unique_ptr<WeightClient> client,
                                            const EngineOptions& options, VirtualClock* clock,
                                            std::vector<std::shared_ptr<Copier>> copiers) {
  if (clock != nullptr) {
    return std::make_unique<VirtualWeightClient>(std::move(client), clock);
  }
  if (options.device != DeviceKind::kHost && options.slab.transport == Transport::kPull) {
    return std::make_unique<PullClient>(std::move(client), std::move(copiers));
  }
  return client;
}

}  // namespace sluice::inferd
