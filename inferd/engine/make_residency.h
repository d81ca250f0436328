// Creates a device's expert cache: leases on the host, slots of a slab elsewhere.
//
// Thread safety: free functions.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "inferd/engine/parts/engine_options.h"
#include "inferd/model/dense_weights.h"
#include "inferd/residency/residency.h"
#include "inferd/sim/virtual_clock.h"
#include "inferd/weights/fetch_queue.h"
#include "inferd/weights/segment_buffers.h"
#include "inferd/weights/weight_client.h"
#include "kernels/backend.h"

namespace sluice::inferd {

struct ResidencyParts {  // all except plan and policies outlive the result; `cpu` and `clock` may be null
  const EnginePlan* plan = nullptr;
  const Policies* policies = nullptr;
  WeightClient* client = nullptr;
  FetchQueue* fetches = nullptr;
  SegmentBuffers* segments = nullptr;
  Backend* device = nullptr;
  Backend* cpu = nullptr;  // computes beside the device
  VirtualClock* clock = nullptr;
  const DenseWeights* weights = nullptr;  // used for sizes only, may be not loaded
};

absl::StatusOr<std::unique_ptr<Residency>> MakeResidency(const ResidencyParts& parts);

// Returns the rate of a throttled or modelled link to the device; 0: none.
double LinkGbps(const EngineOptions& options, const ModelConfig& config);

}  // namespace sluice::inferd
