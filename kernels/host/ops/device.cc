#include "kernels/host/ops/device.h"

#include <utility>

#include "common/status.h"

namespace sluice::cpu {

Device::Device(const BackendLimits& limits, uint32_t threads, const KernelTable& kernels,
               const MemoryTuning& tuning, std::vector<uint32_t> cpus)
    : kernels(kernels),
      tuning(tuning),
      tiles(threads, std::move(cpus)),
      rounded(kernels, tiles),
      lists(kernels, space, rounded),
      attention(limits, kernels, space, tiles),
      experts(limits, kernels, this->tuning, space, tiles, rounded, lists) {}

absl::StatusOr<std::unique_ptr<Device>> Device::Create(const BackendLimits& limits, uint32_t threads,
                                                       const KernelTable& kernels, const MemoryTuning& tuning,
                                                       std::vector<uint32_t> cpus) {
  std::unique_ptr<Device> device(new Device(limits, threads, kernels, tuning, std::move(cpus)));
  RETURN_IF_ERROR(device->Reserve(limits));
  return device;
}

absl::Status Device::Reserve(const BackendLimits& limits) {
  RETURN_IF_ERROR(space.Reserve(limits, tiles.threads(), &scratch));
  RETURN_IF_ERROR(rounded.Reserve(limits.max_tokens, space.cols, &scratch));
  lists.Reserve(tiles.threads());
  RETURN_IF_ERROR(attention.Reserve(limits, &scratch));
  return experts.Reserve(limits, &scratch);
}

}  // namespace sluice::cpu
