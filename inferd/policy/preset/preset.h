// Presets: named sets of policies, and single policies set beside them.
//
// Thread safety: plain values and pure functions.
#ifndef SLUICE_INFERD_POLICY_PRESET_H_
#define SLUICE_INFERD_POLICY_PRESET_H_

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
// layers. At most one of the three says what T is; none: the profile's for a rise of perplexity of 1 %.
struct SensitivityConfig {
  SensitivityKind kind = SensitivityKind::kMeasured;
  std::optional<double> share;      // of (token, layer) pairs that use one expert on calibration text
  std::optional<double> bound;      // relative rise of perplexity on held-out calibration text
  std::optional<double> threshold;  // T itself
};

// One value of each kind. Which of them a device and this build have: CheckPolicies().
struct Policies {
  std::string preset = "exact";
  SparsityConfig sparsity;

  RoutingKind routing = RoutingKind::kTopK;
  SensitivityConfig sensitivity;  // kSensitivity
  double cache_alpha = 0.25;      // kCacheAware

  ExpertPredictorKind predictor = ExpertPredictorKind::kGateReuse;
  uint32_t predictor_depth = 1;  // kGateReuse: layers ahead at most, 1..3
  DepthRule depth_rule = DepthRule::kAlways;
  double predictor_confidence = 0;  // an expert predicted with less is not fetched
  double predictor_recall = 0;      // layers whose predictions find less are only counted (recall_floor.h)
  PrefetchCancel prefetch_cancel = PrefetchCancel::kUnbegun;
  bool first_layer = false;  // predict the next token's first layer from the last one's output
  // On `host`: while experts of the last layer are read, guess the next token without them and ask for what
  // its first layer wants.
  bool token_guess = false;
  // Experts of a layer ahead that one step asks for at most. A decode batch names few; a prefill chunk
  // names most of a layer, and asking for them all would only push out what the layer itself still needs
  // (DepthRule::kReach asks for as many of them as come in time).
  uint32_t max_prefetch = 16;
  NeuronPredictorKind neuron_predictor = NeuronPredictorKind::kNone;
  NeuronSet neuron_set = NeuronSet::kThreshold;
  std::optional<double> neuron_share;  // kShare; unset: what the sparsity's target keeps
  NeuronInput neuron_input = NeuronInput::kNormed;
  // Predict for layers whose experts are all resident too: nothing to fetch, but predictions are counted.
  bool predict_resident = false;

  CacheKind cache = CacheKind::kLease;
  CacheAllocation allocation = CacheAllocation::kUniform;
  SlotEviction eviction = SlotEviction::kLru;
  uint32_t score_window = 32;    // kScore: passes of a layer
  uint32_t lfru_half_life = 64;  // kLfru: passes of a layer
  CacheGranularity granularity = CacheGranularity::kExpert;
  double copy_all_share = 0.75;  // kNeuron: more of the neurons than this travel in one copy; -1: measured
  LeadResident lead_resident = LeadResident::kOff;  // kNeuron

  ExpertMiss miss = ExpertMiss::kLoad;
  // kBalance: resident experts go to the CPU too, where that ends a layer sooner and the device's time is
  // known.
  bool balance_resident = false;
  // With balance_resident: what is missing of an expert may be shared by tiles, the first over the link, the
  // CPU computing the others.
  bool balance_tiles = false;
  NeuronMiss neuron_miss = NeuronMiss::kLoad;
  // Preset `auto`: the rise of perplexity that its choice may cost, relative; 0: no token changes.
  double quality_bound = 0;
  double neuron_budget_us = 0;  // kBudgeted: link time of a layer for neurons that were not predicted
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

#endif  // SLUICE_INFERD_POLICY_PRESET_H_
