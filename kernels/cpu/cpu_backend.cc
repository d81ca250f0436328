#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/machine_facts.h"
#include "common/base/status.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_isa.h"

namespace sluice::cpu {

Device::Device(const BackendLimits& limits, uint32_t threads, const KernelTable& kernels,
               const MemoryTuning& tuning, std::vector<uint32_t> cpus)
    : kernels(kernels),
      tuning(tuning),
      tiles(threads, std::move(cpus)),
      rounded(kernels, tiles),
      lists(kernels, space, rounded),
      index_select(kernels, space, tiles),
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
  RETURN_IF_ERROR(index_select.Reserve(limits, &scratch));
  RETURN_IF_ERROR(attention.Reserve(limits, &scratch));
  return experts.Reserve(limits, &scratch);
}

}  // namespace sluice::cpu

namespace sluice {

absl::StatusOr<std::unique_ptr<CpuBackend>> CpuBackend::Create(const BackendLimits& limits, uint32_t threads,
                                                               const cpu::KernelTable& kernels,
                                                               const cpu::MemoryTuning& tuning,
                                                               std::vector<uint32_t> cpus) {
  const bool pinned = !cpus.empty();
  ASSIGN_OR_RETURN(std::unique_ptr<cpu::Device> device,
                   cpu::Device::Create(limits, threads, kernels, tuning, std::move(cpus)));
  return std::unique_ptr<CpuBackend>(new CpuBackend(limits, std::move(device), pinned));
}

BackendCounters CpuBackend::Counters() const {
  BackendCounters counters = ImmediateBackend::Counters();
  device_->tiles.AddTo(&counters);
  return counters;
}

std::string CpuBackend::Describe() const {
  const uint32_t threads = device_->tiles.threads();
  return absl::StrCat("device host, ", device_->kernels.name, ", ", threads,
                      threads == 1 ? " thread" : " threads", pinned_ ? ", pinned" : "");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const BackendLimits& limits, uint32_t threads,
                                                          CpuIsa isa) {
  ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::ChooseKernels(isa));
  ASSIGN_OR_RETURN(threads, cpu::ChooseThreads(threads));
  return CpuBackend::Create(limits, threads, *kernels, cpu::TuningOfThisCpu());
}

absl::StatusOr<std::unique_ptr<Backend>> CreatePinnedCpuBackend(const BackendLimits& limits,
                                                                absl::Span<const uint32_t> cpus, CpuIsa isa) {
  ASSIGN_OR_RETURN(const cpu::KernelTable* kernels, cpu::ChooseKernels(isa));
  ASSIGN_OR_RETURN(const uint32_t threads, cpu::ChooseThreads(static_cast<uint32_t>(cpus.size())));
  if (cpus.empty()) {
    return absl::InvalidArgumentError("no CPU to pin a thread to");
  }
  const std::vector<uint32_t> allowed = AllowedCpus();
  for (const uint32_t cpu : cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu)) {
      return absl::InvalidArgumentError(absl::StrCat("this process may not use CPU ", cpu));
    }
  }
  return CpuBackend::Create(limits, threads, *kernels, cpu::TuningOfThisCpu(), {cpus.begin(), cpus.end()});
}

}  // namespace sluice
