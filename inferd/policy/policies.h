// Kinds of policies; each is described where it is implemented. A preset is one choice of each kind, with its
// numbers.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/profile/profile.h"
#include "kernels/ops.h"

namespace sluice::inferd {

enum class DeviceKind : uint8_t { kHost, kSim, kCuda };

// Routing of each token: the model's own, AdapMoE's (eq. 3-8), importance-driven Algorithm 1.
enum class RoutingKind : uint8_t { kTopK, kSensitivity, kCacheAware };

enum class ExpertPredictorKind : uint8_t { kNone, kGateReuse, kLearned, kLookahead };
enum class NeuronPredictorKind : uint8_t { kNone, kUpReuse, kGateReuse };

// Handling of a routed expert, or an active neuron, that is not resident.
enum class ExpertMiss : uint8_t { kLoad, kCpu, kBalance, kProceed };
enum class NeuronMiss : uint8_t { kLoad, kBudgeted, kProceed };

// Memory that holds a device's experts. kLease: weightd's DRAM, read in place (device host). kSlots: slots
// governed by the eviction policy. kNone: a slot is freed as soon as its expert was computed. kLayer: the
// same, and every expert of a layer is loaded, used or not. kStatic: the most used experts of the profile,
// permanently. kResident: all experts.
enum class CacheKind : uint8_t { kLease, kSlots, kNone, kLayer, kStatic, kResident };
enum class CacheAllocation : uint8_t { kUniform, kDpTimed, kLayers };
enum class SlotEviction : uint8_t { kLru, kLfru, kScore };
enum class CacheGranularity : uint8_t { kExpert, kNeuron };
// Residency of every expert's lead in device memory. kAuto: leads stay if enough slots are left besides them
// (LeadsStay() in inferd/engine/cache_setup.h).
enum class LeadResident : uint8_t { kOff, kOn, kAuto };

// Presets: named sets of policies, and overrides of single policies.
//
// Thread safety: plain values and pure functions.

// Scope of a threshold that is looked up: one expert of one layer (FloE 3.2), or the whole model
// (intra-expert's table).
enum class ThresholdScope : uint8_t { kExpert, kModel };

// Neurons of routed experts count if their lead value is at least the threshold. Shared experts stay dense.
struct SparsityConfig {
  SparsityOrder order = SparsityOrder::kNone;
  // Share of neurons to leave out, looked up in the profile. Exactly one of target and threshold, unless the
  // order is kNone.
  std::optional<double> target;
  ThresholdScope scope = ThresholdScope::kExpert;
  std::optional<double> threshold;  // one absolute value for all layers (CORM's theta)
};

// A token uses one expert where (1 - alpha)^2 S_l <= T (AdapMoE eq. 8), T the same for all layers. At most
// one value is set. None: S_l and T are the profile's, T for a 1 % increase of perplexity.
struct SensitivityConfig {
  std::optional<double> share;  // of (token, layer) pairs that use one expert on calibration text; T follows
  std::optional<double> score;  // T for S_l = 1: the score alone, without a profile
};

// One value of each kind, each a key of --policy. A key exists because a preset, or a published figure of
// one, needs a value that the others do not use. CheckPolicies() refuses values that the device or this build
// does not support.
struct Policies {
  // Name of the initial preset, for messages and statistics; no key.
  std::string preset = "exact";

  // Neurons of a routed expert that are computed (`floe`: up, by expert; `corm`: gate, by one absolute
  // threshold; `intra`: gate, by one table for the model).
  SparsityConfig sparsity;

  // Experts of a token (`adapmoe`: fewer where the layer tolerates it; `importance`: resident ones).
  RoutingKind routing = RoutingKind::kTopK;
  // With kSensitivity: the condition for one expert.
  SensitivityConfig sensitivity;
  // With kCacheAware: the maximum distance below the best expert outside of the top K at which an expert may
  // still be exchanged for a resident one (importance-driven's alpha; a share of that score).
  double cache_alpha = 0.25;

  // Predictor of the experts of layers ahead (CORM and AdapMoE reuse the gate, `floe` has learned networks,
  // `importance` runs the next layer with the resident experts).
  ExpertPredictorKind predictor = ExpertPredictorKind::kGateReuse;
  // Maximum number of layers ahead that are predicted, 1..3; kLearned predicts only the next layer. Layers
  // beyond the next are predicted while the link is idle (`adapmoe`), or only for experts that arrive in time
  // (`importance`): FetchesInReach().
  uint32_t predictor_depth = 1;
  // Minimum confidence, 0..1, of an expert to be fetched ahead (`floe`).
  double predictor_confidence = 0;
  // Minimum recall of a layer's recent predictions; below it predictions are only counted (prefetcher.h;
  // `corm`, whose proceeding would compute wrong experts).
  double predictor_recall = 0;
  // Predicts the next token's first layer from the last layer's output by a trained gate (`adapmoe`).
  bool first_layer = false;
  // On `host`: while experts of the last layer are read, drafts the next token without them and prefetches
  // the experts of its first layer.
  bool token_draft = false;
  // Maximum number of experts of a layer ahead that one step requests. A decode batch uses few; a prefill
  // chunk uses most of a layer, and requesting them all would only evict experts that the layer itself still
  // needs (FetchesInReach() requests as many of them as arrive in time).
  uint32_t max_prefetch = 16;
  // Predictor of the neurons of predicted experts (`floe` by up, `corm` by gate).
  NeuronPredictorKind neuron_predictor = NeuronPredictorKind::kNone;

  // Memory that holds a device's experts; the baselines differ in it.
  CacheKind cache = CacheKind::kLease;
  // Division of the slots among the layers.
  CacheAllocation allocation = CacheAllocation::kUniform;
  // Eviction policy of a layer's slots.
  SlotEviction eviction = SlotEviction::kLru;
  // Content of a slot: whole experts, or the needed neurons (`floe`, `corm`).
  CacheGranularity granularity = CacheGranularity::kExpert;
  // With kNeuron: residency of the leads of all experts in device memory besides the slots.
  LeadResident lead_resident = LeadResident::kOff;

  // Handling of a chosen expert that is not resident. With kBalance, if the device's time is known and the
  // CPU works in parallel, resident experts go to the CPU too if that ends a layer sooner, and a missing
  // expert may be split by tiles, the first over the link, the others computed by the CPU.
  ExpertMiss miss = ExpertMiss::kLoad;
  // Handling of an active neuron that is not resident.
  NeuronMiss neuron_miss = NeuronMiss::kLoad;
  // With kBudgeted: microseconds of link time that a layer may use for neurons that were not predicted.
  double neuron_budget_us = 0;
  // Preset `auto`: the increase of perplexity that its choice may cost, relative; 0: no token changes.
  double quality_bound = 0;
};

// Values of options besides the preset; empty: the preset's value.
struct PolicyOverrides {
  std::string sparsity;             // none, up, gate or product
  std::string sparsity_scope;       // expert or model
  double sparsity_target = -1;      // 0..1; below 0: not set
  double sparsity_threshold = -1;   // below 0: not set
  std::vector<std::string> policy;  // KEY=VALUE[,KEY=VALUE..], in order; after the others
};

// The preset's values for a device, with the overrides applied. On `host` experts are leased in place, so a
// preset's cache, misses and neuron predictor have no effect there. INVALID_ARGUMENT naming the presets of
// this build, or the option with an invalid value; CheckPolicies()' errors.
absl::StatusOr<Policies> PoliciesOf(const std::string& preset, const PolicyOverrides& overrides = {},
                                    DeviceKind device = DeviceKind::kHost);
// PoliciesOf() without CheckPolicies().
absl::StatusOr<Policies> UncheckedPolicies(const std::string& preset, const PolicyOverrides& overrides,
                                           DeviceKind device);

// `policies` with the overrides applied. INVALID_ARGUMENT as PoliciesOf().
absl::StatusOr<Policies> WithOverrides(Policies policies, const PolicyOverrides& overrides);

// INVALID_ARGUMENT naming the key and its value if the device lacks it, or if it contradicts another value;
// UNIMPLEMENTED if this build lacks it.
absl::Status CheckPolicies(const Policies& policies, DeviceKind device);

absl::StatusOr<DeviceKind> DeviceFromName(const std::string& name);  // INVALID_ARGUMENT naming the three

// Every preset of this build with a one-line summary, the default first.
struct PresetSummary {
  std::string name;
  std::string summary;
};
std::vector<PresetSummary> Presets();
std::vector<std::string> PresetNames();

// The policies in words, as `sluice preset show` prints them.
struct PolicyWord {
  std::string name;
  std::string value;
};
std::vector<PolicyWord> Describe(const Policies& policies);

// Promises of bit-for-bit equal logits under changes of `what`, and whether the policies keep them on a
// device.
struct PolicyPromise {
  std::string what;
  bool kept = false;
};
std::vector<PolicyPromise> Promises(const Policies& policies);
// True if tokens are the model's own.
bool KeepsModelTokens(const Policies& policies);

// True if predictions of several layers request only experts that arrive when their layer is computed, or one
// layer later: where experts are predicted from the resident ones, or shared with the CPU. Otherwise layers
// beyond the next are predicted while nothing travels.
bool FetchesInReach(const Policies& policies);
// True if prefetches that the router has disproved stop where they are. With gate reuse for the next layer
// alone (`exact`, and the baseline `lru_prefetch`) only those that have not begun are cancelled.
bool CancelsBegunPrefetches(const Policies& policies);

const char* SparsityWord(SparsityOrder order);

// The keys of --policy: one table by which every value in Policies is set, shown and listed.
//
// Thread safety: immutable tables and pure functions.

struct PolicyKey {
  const char* name;
  const char* values;  // possible values, in words
  std::string (*show)(const Policies&);
  // Returns false if `text` is none of `values`.
  bool (*set)(std::string_view text, Policies* policies);
};

absl::Span<const PolicyKey> PolicyKeys();

struct RemovedName {
  const char* name;
  const char* version;  // the first one without it
  const char* instead;  // a clause for the error message
};

// Keys of earlier versions, whose other values were slower, or worse at the same speed (lab/docs/tried.md).
inline constexpr RemovedName kRemovedPolicyKeys[] = {
    {"sensitivity", "0.2.0", "sensitivities are the measured ones; score_threshold needs no profile"},
    {"sensitivity_threshold", "0.2.0", "give sensitivity_share, or score_threshold without a profile"},
    {"predictor_depth_rule", "0.2.0", "it follows from expert_predictor, expert_miss and predictor_depth"},
    {"prefetch_cancel", "0.2.0", "it follows from expert_predictor, expert_miss and predictor_depth"},
    {"neuron_set", "0.2.0", "it follows from neuron_predictor"},
    {"neuron_input", "0.2.0", "the input is the residual under the next layer's norm"},
    {"predict_resident", "0.2.0",
     "predictions are counted where experts are missing; give a --device-budget"},
    {"score_window", "0.2.0", "it is 32 passes"},
    {"copy_all_share", "0.2.0", "it is 0.75"},
    {"balance_resident", "0.2.0", "expert_miss=balance includes it"}};

// Sets "KEY=VALUE". INVALID_ARGUMENT naming the known keys, or the key and its values.
absl::Status SetPolicy(std::string_view assignment, Policies* policies);

}  // namespace sluice::inferd
