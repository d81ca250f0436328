// What a preset's policies mean for the slots of a slab: shares of the layers, eviction, first fill.
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

namespace sluice {

// What `dp_timed` goes by, seconds; 0: not known, then nothing is hidden behind computing.
struct DeviceTimes {
  double load_per_byte = 0;     // of an expert over the link
  double compute_per_byte = 0;  // on the device
  double attention = 0;         // of a layer
};

// Reads the pack's profile where it has one; without usage, experts count by number. `dp` takes AdapMoE's a
// and b of each layer from the profile's use of experts: a under routing=sensitivity, else 0; b for the
// predictor's depth-1 gate, else 0; without a profile both are 0 and all layers are alike. NOT_FOUND naming
// the command for `dp_measured` without that profile; a profile that is damaged or another model's is an
// error.
absl::StatusOr<SlabResidencyOptions> SlabOptionsOf(const Policies& policies, const Pack& pack,
                                                   const DeviceTimes& times = {});

// What AdapMoE's cost needs to know of each layer. `profile` and `gating` may be null.
std::vector<LayerDemand> LayerDemandsOf(const ModelConfig& config, const Policies& policies,
                                        const CacheProfile* profile, const GatingRule* gating);

// What the log should say where `dp` lacks the profile that tells layers apart, with the command that makes
// it; else empty.
std::string AllocationWarning(const Policies& policies, const Pack& pack);

// Whether every expert's lead stays in device memory (policy lead_resident). `auto`: where the leads of all
// experts fit the budget and leave two slots of each size and one for each of a token's experts, which was
// faster at every budget (docs/presets.md); not where every expert has its slot (budget 0).
bool LeadsStay(const Policies& policies, const Pack& pack, uint64_t budget);

// Whether experts may be computed by the CPU, from weightd's DRAM, beside the device.
inline bool ComputesOnCpu(const Policies& policies, DeviceKind device) {
  return device != DeviceKind::kHost &&
         (policies.miss == ExpertMiss::kCpu || policies.miss == ExpertMiss::kBalance);
}

// The same slots, filled neuron by neuron.
NeuronResidencyOptions NeuronOptionsOf(const Policies& policies, const Pack& pack,
                                       const SlotCacheOptions& slots);

// Whether a device of `budget` bytes (0: as many as it takes) can serve the pack under these policies.
// INVALID_ARGUMENT with the numbers.
absl::Status CheckSlotBudget(const Policies& policies, const Pack& pack, uint64_t budget);

}  // namespace sluice
