#include "kernels/host/host_backend.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cpu/cpu_topology.h"
#include "common/status.h"
#include "kernels/host/isa/host_isa.h"
#include "kernels/pinned_backend.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<HostBackend>> HostBackend::Create(const BackendLimits& limits,
                                                                 uint32_t threads,
                                                                 const host::KernelTable& kernels,
                                                                 const host::MemoryTuning& tuning,
                                                                 std::vector<uint32_t> cpus) {
  const bool pinned = !cpus.empty();
  ASSIGN_OR_RETURN(std::unique_ptr<host::Device> device,
                   host::Device::Create(limits, threads, kernels, tuning, std::move(cpus)));
  return std::unique_ptr<HostBackend>(new HostBackend(limits, std::move(device), pinned));
}

BackendCounters HostBackend::Counters() const {
  BackendCounters counters = CpuBackend::Counters();
  device_->tiles.AddTo(&counters);
  return counters;
}

std::string HostBackend::Describe() const {
  const uint32_t threads = device_->tiles.threads();
  return absl::StrCat("device host, ", device_->kernels.name, ", ", threads,
                      threads == 1 ? " thread" : " threads", pinned_ ? ", pinned" : "");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateHostBackend(const BackendLimits& limits, uint32_t threads,
                                                           HostIsa isa) {
  ASSIGN_OR_RETURN(const host::KernelTable* kernels, host::ChooseKernels(isa));
  ASSIGN_OR_RETURN(threads, host::ChooseThreads(threads));
  return HostBackend::Create(limits, threads, *kernels, host::TuningOfThisCpu());
}

absl::StatusOr<std::unique_ptr<Backend>> CreatePinnedHostBackend(const BackendLimits& limits,
                                                                 absl::Span<const uint32_t> cpus,
                                                                 HostIsa isa) {
  ASSIGN_OR_RETURN(const host::KernelTable* kernels, host::ChooseKernels(isa));
  ASSIGN_OR_RETURN(const uint32_t threads, host::ChooseThreads(static_cast<uint32_t>(cpus.size())));
  if (cpus.empty()) {
    return absl::InvalidArgumentError("no CPU to pin a thread to");
  }
  const std::vector<uint32_t> allowed = AllowedCpus();
  for (const uint32_t cpu : cpus) {
    if (!std::binary_search(allowed.begin(), allowed.end(), cpu)) {
      return absl::InvalidArgumentError(absl::StrCat("this process may not use CPU ", cpu));
    }
  }
  return HostBackend::Create(limits, threads, *kernels, host::TuningOfThisCpu(), {cpus.begin(), cpus.end()});
}

}  // namespace sluice
