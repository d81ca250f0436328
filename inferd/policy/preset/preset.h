// Presets: named sets of policies, and single policies set beside them.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inferd/policy/preset/policy_kinds.h"
#include "kernels/ops.h"

namespace sluice {

// What a threshold that is looked up belongs to: one expert of one layer (FloE 3.2), or the whole model
// (intra-expert's table).
enum class ThresholdScope : uint8_t { kExpert, kModel };

// Which neurons of routed experts count: those whose lead value is at least the threshold. Shared experts
// stay dense.
struct SparsityConfig {
  SparsityOrder order = SparsityOrder::kNone;
  // Share of neurons to leave out, looked up in the profile. Exactly one of target and threshold, unless the
  // order is kNone.
  std::optional<double> target;
  ThresholdScope scope = ThresholdScope::kExpert;
  std::optional<double> threshold;  // one absolute value for all layers (CORM's theta)
};

// When a token makes do with fewer experts (AdapMoE eq. 8): where (1 - alpha)^2 S_l <= T, T the same for all
// layers. At most one of the two says what T is; none: the profile's for a rise of perplexity of 1 %.
struct SensitivityConfig {
  SensitivityKind kind = SensitivityKind::kMeasured;
  std::optional<double> share;      // of (token, layer) pairs that use one expert on calibration text
  std::optional<double> threshold;  // T itself
};

// One value of each kind, each a key of --policy (policy_keys.h) and here because a preset, or a figure that
// is shown of one, needs another value than the others do. Which of them a device and this build have:
// CheckPolicies().
struct Policies {
  // The preset that the values began with, for messages and statistics; no key.
  std::string preset = "exact";

  // Which neurons of a routed expert are computed (`floe`: up, by expert; `corm`: gate, by one absolute
  // threshold; `intra`: gate, by one table for the model).
  SparsityConfig sparsity;

  // Which experts a token takes (`adapmoe`: fewer where the layer bears it; `importance`: those at hand).
  RoutingKind routing = RoutingKind::kTopK;
  // With kSensitivity: when one expert is enough.
  SensitivityConfig sensitivity;
  // With kCacheAware: how far below the best expert that is left out one may score and still be exchanged
  // for a resident one (importance-driven's alpha; a share of that score).
  double cache_alpha = 0.25;

  // How the experts of layers ahead are guessed (CORM and AdapMoE reuse the gate, `floe` has learned
  // networks, `importance` runs the next layer with what is there).
  ExpertPredictorKind predictor = ExpertPredictorKind::kGateReuse;
  // Layers ahead for which experts are guessed at most, 1..3; kLearned and, but for kReach, kLookahead know
  // only the next.
  uint32_t predictor_depth = 1;
  // When layers beyond the next are guessed for: `adapmoe` while the link is idle, `importance` what comes in
  // time.
  DepthRule depth_rule = DepthRule::kAlways;
  // An expert that the predictor is less sure of than this, 0..1, is not fetched ahead (`floe`).
  double predictor_confidence = 0;
  // A layer whose predictions lately found less than this share of what it wanted is predicted only to be
  // counted (recall_floor.h; `corm`, whose proceeding would compute wrong experts).
  double predictor_recall = 0;
  // What becomes of prefetches that the router has disproved.
  PrefetchCancel prefetch_cancel = PrefetchCancel::kUnbegun;
  // The next token's first layer is guessed from the last layer's output by a trained gate (`adapmoe`).
  bool first_layer = false;
  // On `host`: while experts of the last layer are read, guess the next token without them and ask for what
  // its first layer wants.
  bool token_guess = false;
  // Experts of a layer ahead that one step asks for at most. A decode batch names few; a prefill chunk
  // names most of a layer, and asking for them all would only push out what the layer itself still needs
  // (DepthRule::kReach asks for as many of them as come in time).
  uint32_t max_prefetch = 16;
  // How the neurons of predicted experts are guessed (`floe` by up, `corm` by gate).
  NeuronPredictorKind neuron_predictor = NeuronPredictorKind::kNone;
  // Which of the values so predicted count as neurons to fetch.
  NeuronSet neuron_set = NeuronSet::kThreshold;
  // What the next layer's lead is multiplied with; kHidden is the papers', kNormed measures better.
  NeuronInput neuron_input = NeuronInput::kNormed;
  // Predict for layers whose experts are all resident too: nothing to fetch, but predictions are counted,
  // which is how a predictor's recall is measured without a cache.
  bool predict_resident = false;

  // Where a device's experts stay; the baselines are told apart by it.
  CacheKind cache = CacheKind::kLease;
  // How the slots are shared out to the layers.
  CacheAllocation allocation = CacheAllocation::kUniform;
  // Which expert of a layer leaves its slot for another.
  SlotEviction eviction = SlotEviction::kLru;
  // With kScore: the passes of a layer whose router probabilities are averaged (importance-driven's n).
  uint32_t score_window = 32;
  // Whether a slot holds whole experts or those neurons that were needed (`floe`, `corm`).
  CacheGranularity granularity = CacheGranularity::kExpert;
  // With kNeuron: where more than this share of an expert's neurons must travel, all that are missing travel
  // in one copy (CORM's 75 %); -1: the break-even is measured at the start.
  double copy_all_share = 0.75;
  // With kNeuron: whether the leads of all experts lie in device memory beside the slots.
  LeadResident lead_resident = LeadResident::kOff;

  // What happens to a chosen expert that is not resident.
  ExpertMiss miss = ExpertMiss::kLoad;
  // With kBalance, where the device's time is known and the CPU works beside it: resident experts go to the
  // CPU too where that ends a layer sooner, and an expert that is missing may be shared by tiles, the first
  // over the link, the CPU computing the others (`importance`, `auto`; off is the paper's).
  bool balance_resident = false;
  // What happens to an active neuron that is not resident.
  NeuronMiss neuron_miss = NeuronMiss::kLoad;
  // With kBudgeted: microseconds of the link that a layer may take for neurons that were not predicted.
  double neuron_budget_us = 0;
  // Preset `auto`: the rise of perplexity that its choice may cost, relative; 0: no token changes.
  double quality_bound = 0;
};

// What options set beside the preset; empty: as the preset says.
struct PolicyOverrides {
  std::string sparsity;             // none, up, gate or product
  std::string sparsity_scope;       // expert or model
  double sparsity_target = -1;      // 0..1; below 0: not set
  double sparsity_threshold = -1;   // below 0: not set
  std::vector<std::string> policy;  // KEY=VALUE[,KEY=VALUE..], in order; after the others
};

// The preset's values for a device (on `host` experts are leased where they lie: a preset's cache, its misses
// and its neuron predictor have nothing to do there), and what overrides make of them. INVALID_ARGUMENT
// naming the presets that this build has, or the option whose value makes no sense; CheckPolicies()' errors.
absl::StatusOr<Policies> PoliciesOf(const std::string& preset, const PolicyOverrides& overrides = {},
                                    DeviceKind device = DeviceKind::kHost);
// The same before CheckPolicies(): what there would be to run.
absl::StatusOr<Policies> UncheckedPolicies(const std::string& preset, const PolicyOverrides& overrides,
                                           DeviceKind device);

// `policies` with what options set beside them. INVALID_ARGUMENT as PoliciesOf().
absl::StatusOr<Policies> WithOverrides(Policies policies, const PolicyOverrides& overrides);

// INVALID_ARGUMENT naming the key and its value for what the device has not, or what contradicts another
// value; UNIMPLEMENTED for what this build has not.
absl::Status CheckPolicies(const Policies& policies, DeviceKind device);

absl::StatusOr<DeviceKind> DeviceFromName(const std::string& name);  // INVALID_ARGUMENT naming the three

// Every preset of this build with one line about it, the default first.
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

// Bit for bit equal logits over changes of `what`: which of them the policies keep on a device.
struct PolicyPromise {
  std::string what;
  bool kept = false;
};
std::vector<PolicyPromise> Promises(const Policies& policies);
// Whether tokens are the model's own.
bool KeepsModelTokens(const Policies& policies);

const char* SparsityWord(SparsityOrder order);

}  // namespace sluice
