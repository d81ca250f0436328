#include "inferd/engine/device_memory.h"

#include "absl/strings/str_cat.h"
#include "common/size.h"
#include "common/status.h"
#include "inferd/engine/slab_policies.h"
#include "inferd/model/dense_weights.h"

namespace sluice {

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

}  // namespace

std::string DeviceMemory::Describe(const Pack& pack) const {
  const uint64_t slots = experts > 0 ? experts : ExpertBytes(pack);
  return absl::StrCat(FormatSize(beside() + slots), ": dense weights ", FormatSize(dense), ", KV cache ",
                      FormatSize(kv), ", activations ", FormatSize(activations), ", experts ",
                      experts > 0 ? "" : "(all of them) ", FormatSize(slots));
}

absl::StatusOr<DeviceMemory> DivideDeviceMemory(const DeviceBudget& budget, const EnginePlan& plan,
                                                const Policies& policies, const Pack& pack) {
  DeviceMemory memory;
  memory.dense = DenseWeights::DeviceBytes(pack);
  memory.kv = plan.kv_bytes;
  memory.activations = plan.activation_bytes;
  if (policies.cache == CacheKind::kResident) {
    return memory;  // that is what the preset says
  }
  if (budget.expert_percent > 0) {
    memory.experts =
        static_cast<uint64_t>(budget.expert_percent / 100 * static_cast<double>(ExpertBytes(pack)));
  } else if (budget.bytes > 0) {
    if (budget.bytes <= memory.beside()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device-budget of ", budget.bytes, " bytes cannot hold the least working set: ", memory.dense,
          " bytes of dense weights, ", memory.kv, " of KV cache and ", memory.activations,
          " of activations lie there beside the experts"));
    }
    memory.experts = budget.bytes - memory.beside();
  }
  RETURN_IF_ERROR(CheckSlotBudget(policies, pack, memory.experts));
  return memory;
}

}  // namespace sluice
