#include "inferd/engine/device_setup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "inferd/engine/cache_setup.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/model_shapes.h"
#include "inferd/model/pull_client.h"
#include "inferd/sim/measured_device.h"
#include "inferd/sim/own_memory_device.h"
#include "inferd/sim/virtual_device.h"
#include "inferd/sim/virtual_weight_client.h"
#include "kernels/threaded_backend.h"
#include "pack/row_layout.h"

namespace sluice::inferd {

namespace {

uint64_t ExpertBytes(const Pack& pack) {
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      bytes += pack.expert_bytes(layer, expert);
    }
  }
  return bytes;
}

uint64_t Up(uint64_t bytes, uint64_t granule) { return (bytes + granule - 1) / granule * granule; }

// Share of a real device's free memory that is used: other processes and the driver allocate there too.
constexpr double kShareOfFree = 0.95;

std::string Beside(const DeviceMemory& memory) {
  return absl::StrCat(
      memory.contexts > 0 ? absl::StrCat(memory.contexts, " bytes of contexts and workspace, ") : "",
      memory.dense, " bytes of dense weights, ", memory.kv, " of KV cache and ", memory.activations,
      " of activations");
}

}  // namespace

std::string DeviceMemory::Describe(const Pack& pack) const {
  const uint64_t slots = experts > 0 ? experts : ExpertBytes(pack);
  return absl::StrCat(FormatSize(beside() + slots), ": ",
                      contexts > 0 ? absl::StrCat("contexts and workspace ", FormatSize(contexts), ", ") : "",
                      "dense weights ", FormatSize(dense), ", KV cache ", FormatSize(kv), ", activations ",
                      FormatSize(activations), ", experts ", experts > 0 ? "" : "(all of them) ",
                      FormatSize(slots));
}

absl::StatusOr<DeviceMemory> DivideDeviceMemory(const DeviceBudget& budget, const EnginePlan& plan,
                                                const Policies& policies, const Pack& pack,
                                                const std::optional<DeviceCapacity>& room) {
  // Only a GPU has a capacity.
  if (room.has_value() && (pack.manifest().incompatible_features & kFeatureFileBlocks) != 0) {
    return absl::UnimplementedError(
        "device cuda cannot compute with rows in blocks of IQ1, IQ2, IQ3, TQ, Q1_0, Q2_0 or NVFP4; serve "
        "this pack "
        "on device host, or pack the model with --bits");
  }
  const uint64_t granule = room.has_value() ? room->granule : 1;
  const uint64_t all = Up(ExpertBytes(pack), granule);
  DeviceMemory memory;
  memory.contexts = room.has_value() ? room->contexts : 0;
  memory.dense = Up(DenseWeights::DeviceBytes(pack), granule);
  memory.kv = plan.kv_bytes;
  memory.activations = plan.activation_bytes;
  const bool resident = policies.cache == CacheKind::kResident;  // required by the preset
  uint64_t bytes = budget.bytes;
  if (room.has_value() && bytes == 0 && budget.expert_percent == 0) {
    bytes = memory.contexts + static_cast<uint64_t>(kShareOfFree * static_cast<double>(room->free));
    if (memory.beside() + all <= bytes) {
      bytes = 0;  // 0: all experts
    }
  }
  if (!resident && budget.expert_percent > 0) {
    memory.experts =
        static_cast<uint64_t>(budget.expert_percent / 100 * static_cast<double>(ExpertBytes(pack)));
  } else if (!resident && bytes > 0) {
    const uint64_t left = bytes - std::min(bytes, memory.beside());
    memory.experts = left - left % granule;
    if (memory.experts == 0 && budget.bytes > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device-budget of ", bytes, " bytes cannot hold the least working set: ", Beside(memory),
          " lie there beside the experts"));
    }
  }
  if (!resident) {
    RETURN_IF_ERROR(CheckSlotBudget(policies, pack, memory.experts));
  }
  const uint64_t more = memory.beside() - memory.contexts + (memory.experts > 0 ? memory.experts : all);
  if (room.has_value() && more > room->free) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the device has ", room->free, " of ", room->total, " bytes free, and ", more,
                     " are wanted: ", memory.dense, " of dense weights, ", memory.kv, " of KV cache, ",
                     memory.activations, " of activations and ", memory.experts > 0 ? memory.experts : all,
                     " of experts; a smaller --device-budget, --kv-budget or --context takes less"));
  }
  return memory;
}

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
