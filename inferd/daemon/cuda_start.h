// Start of device cuda: creates its backend, tests whether weightd can write there, and sizes the expert
// cache.
//
// Thread safety: a free function; `client` belongs to the caller's thread during the call.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cuda/cuda_module.h"
#include "inferd/engine/device_memory.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/weights/weight_client.h"
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

}  // namespace sluice::inferd
