// The kinds of policies; what each does stands with whoever decides by it. A preset is one choice of each,
// with its numbers (preset.h).
//
// Thread safety: plain values.
#pragma once

#include <cstdint>

#include "common/profile/gating.h"

namespace sluice {

enum class DeviceKind : uint8_t { kHost, kSim, kCuda };

// The experts of each token: the model's own, AdapMoE's (eq. 3-8), importance-driven Algorithm 1.
enum class RoutingKind : uint8_t { kTopK, kSensitivity, kCacheAware };

enum class ExpertPredictorKind : uint8_t { kNone, kGateReuse, kLearned, kLookahead };
// How far ahead of the next layer is looked: always as far as predictor_depth allows (AdapMoE 4.3), or only
// while nothing else travels or waits to. kReach: at every layer up to predictor_depth, but only for what
// will have come when that layer is computed, or one layer later.
enum class DepthRule : uint8_t { kAlways, kIdle, kReach };
// Which prefetches end once their layer's router has run: those that have not begun, or all that it
// disproved.
enum class PrefetchCancel : uint8_t { kUnbegun, kDisproved };
enum class NeuronPredictorKind : uint8_t { kNone, kUpReuse, kGateReuse };

// A routed expert, or an active neuron, that is not resident.
enum class ExpertMiss : uint8_t { kLoad, kCpu, kBalance, kSkip, kProceed };
enum class NeuronMiss : uint8_t { kLoad, kBudgeted, kProceed };

// Where a device's experts stay. kLease: in weightd's DRAM, read in place (device host). kSlots: in slots
// that the eviction policy governs. kNone: a slot is given up as soon as its expert was computed. kLayer: the
// same, and every expert of a layer is loaded, used or not. kStatic: those used most in the profile, for
// good. kResident: all of them.
enum class CacheKind : uint8_t { kLease, kSlots, kNone, kLayer, kStatic, kResident };
enum class CacheAllocation : uint8_t { kUniform, kDp, kDpMeasured, kDpTimed, kLayers };
enum class SlotEviction : uint8_t { kLru, kLfru, kScore };
enum class CacheGranularity : uint8_t { kExpert, kNeuron };
// Whether every expert's lead stays in device memory. kAuto: where enough slots are left beside them
// (LeadsStay() in slab_policies.h).
enum class LeadResident : uint8_t { kOff, kOn, kAuto };

// What AdapMoE's S_l is (common/profile/gating.h).
using SensitivityKind = GatingKind;

// How a neuron predictor's values become a set.
enum class NeuronSet : uint8_t { kThreshold, kShare, kCalibrated };
// What the next layer's lead is multiplied with: the current router's input, or the residual under the next
// layer's norm.
enum class NeuronInput : uint8_t { kHidden, kNormed };

}  // namespace sluice
