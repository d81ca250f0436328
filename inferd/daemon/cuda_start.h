// The start of device cuda: its backend, whether weightd can write there, and what of its memory experts get.
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

namespace sluice {

struct CudaStart {
  std::unique_ptr<Backend> backend;
  DeviceMemory memory;
  Transport transport = Transport::kPush;
  std::string why;  // of the transport, for the log
};

// Makes the backend, has weightd copy a piece of the pack into its memory and compares it (the trial, for
// `push`, which ends the client's session), and divides what the device has free then: by that time both
// processes have their contexts there. `transport` none: push if the trial succeeds, else pull. Errors: the
// backend's; of a trial whose transport was asked for; DivideDeviceMemory()'s.
absl::StatusOr<CudaStart> StartCuda(const CudaModuleApi& cuda, const EnginePlan& plan,
                                    const DeviceBudget& budget, const Policies& policies,
                                    std::optional<Transport> transport, absl::Duration patience,
                                    WeightClient* client);

}  // namespace sluice
