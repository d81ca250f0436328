// Kinds of policies; each is described where it is implemented. A preset is one choice of each kind, with its
// numbers (preset.h).
//
// Thread safety: plain values.
#pragma once

#include <cstdint>

#include "common/profile/gating.h"

namespace sluice::inferd {

enum class DeviceKind : uint8_t { kHost, kSim, kCuda };

// Routing of each token: the model's own, AdapMoE's (eq. 3-8), importance-driven Algorithm 1.
enum class RoutingKind : uint8_t { kTopK, kSensitivity, kCacheAware };

enum class ExpertPredictorKind : uint8_t { kNone, kGateReuse, kLearned, kLookahead };
// Prediction beyond the next layer. kAlways: as far as predictor_depth allows (AdapMoE 4.3). kIdle: only
// while nothing else travels or waits to. kReach: for every layer up to predictor_depth, but only experts
// that will have arrived when that layer is computed, or one layer later.
enum class DepthRule : uint8_t { kAlways, kIdle, kReach };
// Prefetches that are cancelled once their layer's router has run: those that have not begun, or all that the
// router disproved.
enum class PrefetchCancel : uint8_t { kUnbegun, kDisproved };
enum class NeuronPredictorKind : uint8_t { kNone, kUpReuse, kGateReuse };

// Handling of a routed expert, or an active neuron, that is not resident.
enum class ExpertMiss : uint8_t { kLoad, kCpu, kBalance, kSkip, kProceed };
enum class NeuronMiss : uint8_t { kLoad, kBudgeted, kProceed };

// Memory that holds a device's experts. kLease: weightd's DRAM, read in place (device host). kSlots: slots
// governed by the eviction policy. kNone: a slot is freed as soon as its expert was computed. kLayer: the
// same, and every expert of a layer is loaded, used or not. kStatic: the most used experts of the profile,
// permanently. kResident: all experts.
enum class CacheKind : uint8_t { kLease, kSlots, kNone, kLayer, kStatic, kResident };
enum class CacheAllocation : uint8_t { kUniform, kDp, kDpMeasured, kDpTimed, kLayers };
enum class SlotEviction : uint8_t { kLru, kLfru, kScore };
enum class CacheGranularity : uint8_t { kExpert, kNeuron };
// Residency of every expert's lead in device memory. kAuto: leads stay if enough slots are left besides them
// (LeadsStay() in slab_policies.h).
enum class LeadResident : uint8_t { kOff, kOn, kAuto };

// Definition of AdapMoE's S_l (common/profile/gating.h).
using SensitivityKind = GatingKind;

// Rule that turns a neuron predictor's values into a set.
enum class NeuronSet : uint8_t { kThreshold, kShare, kCalibrated };
// Factor of the next layer's lead: the current router's input, or the residual under the next layer's norm.
enum class NeuronInput : uint8_t { kHidden, kNormed };

}  // namespace sluice::inferd
