#include "kernels/host/host_backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/host/isa/host_isa.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<HostBackend>> HostBackend::Create(const BackendLimits& limits,
                                                                 uint32_t threads,
                                                                 const host::KernelTable& kernels,
                                                                 const host::MemoryTuning& tuning) {
  ASSIGN_OR_RETURN(std::unique_ptr<host::Device> device,
                   host::Device::Create(limits, threads, kernels, tuning));
  return std::unique_ptr<HostBackend>(new HostBackend(limits, std::move(device)));
}

BackendCounters HostBackend::Counters() const {
  BackendCounters counters = CpuBackend::Counters();
  device_->tiles.AddTo(&counters);
  return counters;
}

std::string HostBackend::Describe() const {
  const uint32_t threads = device_->tiles.threads();
  return absl::StrCat("device host, ", device_->kernels.name, ", ", threads,
                      threads == 1 ? " thread" : " threads");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateHostBackend(const BackendLimits& limits, uint32_t threads,
                                                           HostIsa isa) {
  ASSIGN_OR_RETURN(const host::KernelTable* kernels, host::ChooseKernels(isa));
  ASSIGN_OR_RETURN(threads, host::ChooseThreads(threads));
  return HostBackend::Create(limits, threads, *kernels, host::TuningOfThisCpu());
}

}  // namespace sluice
