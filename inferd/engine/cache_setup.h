// Creates a device's expert cache: leases on the host, slots of a slab elsewhere.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/profile.h"
#include "inferd/cache/neuron_residency.h"
#include "inferd/cache/residency.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/cache/slab_residency.h"
#include "inferd/forward/engine_options.h"
#include "inferd/model/dense_weights.h"
#include "inferd/model/fetch_queue.h"
#include "inferd/model/weight_buffers.h"
#include "inferd/model/weight_client.h"
#include "inferd/policy/cache_allocation.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/routing.h"
#include "inferd/sim/virtual_clock.h"
#include "kernels/backend.h"
#include "pack/pack.h"

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

// Slab options from a preset's policies: the layers' shares of slots, eviction, first fill.
//
// Thread safety: free functions, safe to call from any thread.

// Times for `dp_timed`, in seconds; 0: unknown, then no load overlaps computing.
struct DeviceTimes {
  double load_per_byte = 0;     // expert over the link
  double compute_per_byte = 0;  // on the device
  double attention = 0;         // one layer's attention
};

// Reads the pack's profile if it has one; without usage data, experts rank by number. `dp_timed` reads
// AdapMoE's a and b of each layer from the profile's expert usage: a under routing=sensitivity, else 0; b for
// the predictor's depth-1 gate, else 0; without a profile slots are divided evenly. A damaged profile, or one
// of another model, is an error.
absl::StatusOr<SlabResidencyOptions> SlabOptionsOf(const Policies& policies, const Pack& pack,
                                                   const DeviceTimes& times = {});

// Returns each layer's inputs of AdapMoE's cost. `gating` may be null.
std::vector<LayerDemand> LayerDemandsOf(const ModelConfig& config, const Policies& policies,
                                        const CacheProfile& profile, const GatingRule* gating);

// Returns a warning if `dp_timed` lacks the profile that distinguishes layers, with the command that creates
// it; else empty.
std::string AllocationWarning(const Policies& policies, const Pack& pack);

// True if every expert's lead stays in device memory (policy lead_resident). `auto`: true if the leads of all
// experts fit the budget and leave two slots of each size and one for each of a token's experts, which was
// faster at every budget (lab/docs/presets.md); false if every expert has its slot (budget 0).
bool LeadsStay(const Policies& policies, const Pack& pack, uint64_t budget);

// True if the CPU may compute experts from weightd's DRAM, beside the device.
inline bool ComputesOnCpu(const Policies& policies, DeviceKind device) {
  return device != DeviceKind::kHost &&
         (policies.miss == ExpertMiss::kCpu || policies.miss == ExpertMiss::kBalance);
}

// Returns options for the same slots filled neuron by neuron.
NeuronResidencyOptions NeuronOptionsOf(const Policies& policies, const Pack& pack,
                                       const SlotCacheOptions& slots);

// Checks that a device of `budget` bytes (0: unlimited) can serve the pack under these policies.
// INVALID_ARGUMENT with the numbers.
absl::Status CheckSlotBudget(const Policies& policies, const Pack& pack, uint64_t budget);

}  // namespace sluice::inferd
