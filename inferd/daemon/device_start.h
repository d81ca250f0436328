// Start of device cuda: creates its backend, tests whether weightd can write there, and sizes the expert
// cache.
//
// Thread safety: a free function; `client` belongs to the caller's thread during the call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/cuda_module.h"
#include "inferd/engine/device_setup.h"
#include "inferd/forward/engine_options.h"
#include "inferd/model/weight_client.h"
#include "inferd/policy/policies.h"
#include "kernels/backend.h"

namespace sluice::inferd {

struct CudaStart {
  std::unique_ptr<Backend> backend;
  DeviceMemory memory;
  Transport transport = Transport::kPush;
  std::string why;  // reason for the transport, for the log
};

// Creates the backend, lets weightd copy an extent into its memory and compares it (the trial, for `push`,
// which ends the client's session), and then divides the device's free memory: both processes have their
// contexts by then. `transport` none: push if the trial succeeds, else pull. Errors: those of the backend; of
// a trial whose transport was requested; of DivideDeviceMemory().
absl::StatusOr<CudaStart> StartCuda(const CudaModuleApi& cuda, const EnginePlan& plan,
                                    const DeviceBudget& budget, const Policies& policies,
                                    std::optional<Transport> transport, absl::Duration timeout,
                                    WeightClient* client);

// ThreadSplit: split of the compute threads between a device and the CPU beside it.
//
// Thread safety: a free function, safe to call from any thread.

// Threads by device. Where the device computes with the CPU itself (`sim`), the CPU beside it gets a part of
// the device's threads, half of them unless specified, as long as each has one.
struct ThreadSplit {
  uint32_t device = 1;
  uint32_t cpu = 0;  // 0: the CPU does not compute beside the device
};
// `threads`: of both together, at least 1. `cpu_threads` 0: not specified.
ThreadSplit SplitThreads(DeviceKind device, bool cpu_parallel, uint32_t threads, uint32_t cpu_threads);

}  // namespace sluice::inferd
