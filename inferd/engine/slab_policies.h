// Slab options from a preset's policies: the layers' shares of slots, eviction, first fill.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/profile/cache_profile.h"
#include "inferd/policy/cache/cache_allocation.h"
#include "inferd/policy/preset/preset.h"
#include "inferd/policy/routing/routing.h"
#include "inferd/residency/neuron/neuron_residency.h"
#include "inferd/residency/slab/slab_residency.h"
#include "inferd/residency/slots/slot_cache_options.h"
#include "pack/pack.h"

namespace sluice::inferd {

// Times for `dp_timed`, in seconds; 0: unknown, then no load overlaps computing.
struct DeviceTimes {
  double load_per_byte = 0;     // expert over the link
  double compute_per_byte = 0;  // on the device
  double attention = 0;         // one layer's attention
};

// Reads the pack's profile if it has one; without usage data, experts rank by number. `dp` reads AdapMoE's a
// and b of each layer from the profile's expert usage: a under routing=sensitivity, else 0; b for the
// predictor's depth-1 gate, else 0; without a profile both are 0 and all layers are alike. NOT_FOUND naming
// the command for `dp_measured` without that profile; a damaged profile, or one of another model, is an
// error.
absl::StatusOr<SlabResidencyOptions> SlabOptionsOf(const Policies& policies, const Pack& pack,
                                                   const DeviceTimes& times = {});

// Returns each layer's inputs of AdapMoE's cost. `profile` and `gating` may be null.
std::vector<LayerDemand> LayerDemandsOf(const ModelConfig& config, const Policies& policies,
                                        const CacheProfile* profile, const GatingRule* gating);

// Returns a warning if `dp` lacks the profile that distinguishes layers, with the command that creates it;
// else empty.
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
