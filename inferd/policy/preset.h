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
#include "inferd/policy/policy_kinds.h"
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

struct Policies {
  std::string preset = "exact";
  RoutingKind routing = RoutingKind::kTopK;
  ExpertPredictorKind predictor = ExpertPredictorKind::kGateReuse;
  // Experts of the next layer that one step asks for ahead at most. A decode batch names few; a prefill chunk
  // names most of a layer, and asking for them all would only push out what the layer itself still needs.
  uint32_t max_prefetch = 16;
  ExpertMiss miss = ExpertMiss::kLoad;
  SparsityConfig sparsity;
};

// What options set beside the preset; empty: as the preset says.
struct PolicyOverrides {
  std::string sparsity;            // none, up, gate or product
  std::string sparsity_scope;      // expert or model
  double sparsity_target = -1;     // 0..1; below 0: not set
  double sparsity_threshold = -1;  // below 0: not set
};

// INVALID_ARGUMENT naming the presets that this build has, or the option whose value makes no sense.
absl::StatusOr<Policies> PoliciesOf(const std::string& preset, const PolicyOverrides& overrides = {});

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

const char* SparsityWord(SparsityOrder order);

}  // namespace sluice

#endif  // SLUICE_INFERD_POLICY_PRESET_H_
