#include "inferd/policy/preset.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace sluice {
namespace {

constexpr char kExact[] =
    "for one build, machine, device and instruction set a sequence's logits depend on its token ids alone";

struct Preset {
  const char* name;
  const char* summary;
  SparsityConfig sparsity;
};

// The resident forms: every expert is in memory, what is skipped is read by nobody.
std::vector<Preset> Table() {
  SparsityConfig floe{SparsityOrder::kUp, 0.8, ThresholdScope::kExpert, {}};
  SparsityConfig floe90 = floe;
  floe90.target = 0.9;
  const SparsityConfig corm{SparsityOrder::kGate, {}, ThresholdScope::kExpert, 0.25};
  const SparsityConfig intra{SparsityOrder::kGate, 0.5, ThresholdScope::kModel, {}};
  return {
      {"exact", kExact, {}},
      {"floe", "FloE: the up product decides, 80 % of the neurons are left out (pack with --recipe floe)",
       floe},
      {"floe90", "FloE at 90 %", floe90},
      {"corm", "CORM: the gate decides, |silu(x.g)| >= 0.25 counts (pack with --recipe corm)", corm},
      {"intra", "intra-expert sparsity: the gate decides by one threshold for the model, 50 % are left out",
       intra}};
}

absl::StatusOr<SparsityOrder> OrderOf(const std::string& word) {
  for (const SparsityOrder order :
       {SparsityOrder::kNone, SparsityOrder::kUp, SparsityOrder::kGate, SparsityOrder::kProduct}) {
    if (word == SparsityWord(order)) {
      return order;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--sparsity is \"", word, "\", must be one of none, up, gate, product"));
}

absl::Status Override(const PolicyOverrides& o, SparsityConfig* sparsity) {
  if (!o.sparsity.empty()) {
    ASSIGN_OR_RETURN(const SparsityOrder order, OrderOf(o.sparsity));
    if (order != sparsity->order) {
      *sparsity = {};  // another lead's target or threshold says nothing about this one
      sparsity->order = order;
    }
  }
  if (!o.sparsity_scope.empty()) {
    if (o.sparsity_scope != "expert" && o.sparsity_scope != "model") {
      return absl::InvalidArgumentError(
          absl::StrCat("--sparsity-scope is \"", o.sparsity_scope, "\", must be expert or model"));
    }
    sparsity->scope = o.sparsity_scope == "model" ? ThresholdScope::kModel : ThresholdScope::kExpert;
  }
  if (o.sparsity_target >= 0 && o.sparsity_threshold >= 0) {
    return absl::InvalidArgumentError("--sparsity-target and --sparsity-threshold exclude each other");
  }
  if (o.sparsity_target >= 0) {
    sparsity->target = o.sparsity_target;
    sparsity->threshold.reset();
  }
  if (o.sparsity_threshold >= 0) {
    sparsity->threshold = o.sparsity_threshold;
    sparsity->target.reset();
  }
  return absl::OkStatus();
}

absl::Status Check(const SparsityConfig& sparsity) {
  const bool set = sparsity.target.has_value() || sparsity.threshold.has_value();
  if (sparsity.order == SparsityOrder::kNone) {
    return set ? absl::InvalidArgumentError(
                     "--sparsity-target and --sparsity-threshold need --sparsity up, gate or product")
               : absl::OkStatus();
  }
  if (!set) {
    return absl::InvalidArgumentError(absl::StrCat("--sparsity ", SparsityWord(sparsity.order),
                                                   " needs --sparsity-target or --sparsity-threshold"));
  }
  if (sparsity.target.has_value() && !(*sparsity.target < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sparsity-target is ", *sparsity.target, ", not a share below 1"));
  }
  return absl::OkStatus();
}

std::string SparsityText(const SparsityConfig& sparsity) {
  if (sparsity.order == SparsityOrder::kNone) {
    return "none";
  }
  const std::string word = SparsityWord(sparsity.order);
  if (sparsity.threshold.has_value()) {
    return absl::StrCat(word, ", threshold ", *sparsity.threshold, " for all layers");
  }
  return absl::StrFormat("%s, %g %% by the profile's threshold of %s", word, 100 * *sparsity.target,
                         sparsity.scope == ThresholdScope::kModel ? "the model" : "each expert");
}

}  // namespace

const char* SparsityWord(SparsityOrder order) {
  switch (order) {
    case SparsityOrder::kNone:
      return "none";
    case SparsityOrder::kUp:
      return "up";
    case SparsityOrder::kGate:
      return "gate";
    case SparsityOrder::kProduct:
      return "product";
  }
  return "unknown";
}

std::vector<PresetSummary> Presets() {
  std::vector<PresetSummary> presets;
  for (const Preset& preset : Table()) {
    presets.push_back({preset.name, preset.summary});
  }
  return presets;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : Table()) {
    names.emplace_back(preset.name);
  }
  return names;
}

absl::StatusOr<Policies> PoliciesOf(const std::string& preset, const PolicyOverrides& overrides) {
  for (const Preset& known : Table()) {
    if (preset == known.name) {
      Policies policies;
      policies.preset = preset;
      policies.sparsity = known.sparsity;
      RETURN_IF_ERROR(Override(overrides, &policies.sparsity));
      RETURN_IF_ERROR(Check(policies.sparsity));
      return policies;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown preset \"", preset, "\"; this build has: ", absl::StrJoin(PresetNames(), ", ")));
}

std::vector<PolicyWord> Describe(const Policies& policies) {
  return {{"bits", "as packed"},
          {"sparsity", SparsityText(policies.sparsity)},
          {"routing", "topk"},
          {"expert_predictor",
           policies.predictor == ExpertPredictorKind::kGateReuse ? "gate_reuse, depth 1" : "none"},
          {"neuron_predictor", "none"},
          {"cache_allocation", "uniform"},
          {"cache_eviction", "lru"},
          {"cache_granularity", "expert"},
          {"expert_miss", "load (device host: lease in place)"},
          {"neuron_miss", "load"}};
}

}  // namespace sluice
