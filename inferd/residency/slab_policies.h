// What a preset's policies mean for the slots of a slab: shares of the layers, eviction, first fill.
//
// Thread safety: a pure function.
#ifndef SLUICE_INFERD_RESIDENCY_SLAB_POLICIES_H_
#define SLUICE_INFERD_RESIDENCY_SLAB_POLICIES_H_

#include "common/pack/pack.h"
#include "inferd/policy/preset.h"
#include "inferd/residency/slab_residency.h"

namespace sluice {

// Reads the pack's profile where it has one; without usage, experts count by number.
SlabResidencyOptions SlabOptionsOf(const Policies& policies, const Pack& pack);

}  // namespace sluice

#endif  // SLUICE_INFERD_RESIDENCY_SLAB_POLICIES_H_
