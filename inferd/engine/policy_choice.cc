#include "inferd/engine/policy_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "inferd/policy/auto_preset.h"

namespace sluice::inferd {

absl::Status CheckSingleNeurons(const Policies& policies, const Pack& pack) {
  std::string what;
  if (policies.sparsity.order != SparsityOrder::kNone) {
    what = absl::StrCat("sparsity=", SparsityWord(policies.sparsity.order));
  } else if (policies.granularity == CacheGranularity::kNeuron) {
    what = "cache_granularity=neuron";
  } else if (policies.neuron_predictor != NeuronPredictorKind::kNone) {
    what = "a neuron_predictor";
  }
  if (what.empty() || !pack.by_outputs()) {
    return absl::OkStatus();
  }
  const std::string model = pack.in_place() ? pack.manifest().in_place->model : "MODEL";
  return absl::FailedPreconditionError(
      absl::StrCat("preset ", policies.preset, " (", what, ") needs single neurons, and pack ", pack.dir(),
                   " has down by outputs; pack the model by neurons first: sluice pack ", model,
                   " --out PACK --layout '", ExpertLayoutName(ExpertLayout::kUpGateDown), "'"));
}

absl::StatusOr<PolicyChoice> ChoosePoliciesFor(const EngineOptions& options, const Pack& pack) {
  ASSIGN_OR_RETURN(Policies policies, PoliciesOf(options.preset, options.policies, options.device));
  if (policies.preset != "auto") {
    RETURN_IF_ERROR(CheckSingleNeurons(policies, pack));
    return PolicyChoice{std::move(policies), {}};
  }
  const ModelConfig& config = pack.config();
  AutoSetup setup;
  setup.device = options.device;
  setup.budget = options.slab.budget;
  setup.quality_bound = policies.quality_bound;
  const double link = options.virtual_clock ? VirtualLinkGbps(options.costs, options.slab.link_gbps, config)
                                            : options.slab.link_gbps;
  setup.link_seconds = link > 0 ? 1 / (link * 1e9) : 0;
  // On `sim` in real time the CPU's threads compute for the device.
  setup.cpu_parallel = options.virtual_clock || options.device == DeviceKind::kCuda;
  MachineRates machine;
  if (options.virtual_clock) {
    setup.compute_seconds = options.costs.compute_ms * 1e-3 / static_cast<double>(Bf16ExpertBytes(config));
    setup.cpu_seconds = VirtualCpuSeconds(options.costs, options.slab.link_gbps, config, 1);
    setup.attention_seconds = options.costs.attention_ms * 1e-3;
  } else {
    ASSIGN_OR_RETURN(machine, MeasureMachine(/*threads=*/0));
  }
  AutoChoice choice = ChoosePolicies(AutoFactsOf(setup, pack, machine));
  ASSIGN_OR_RETURN(policies, WithOverrides(std::move(choice.policies), options.policies));
  RETURN_IF_ERROR(CheckPolicies(policies, options.device));
  RETURN_IF_ERROR(CheckSingleNeurons(policies, pack));
  return PolicyChoice{std::move(policies), std::move(choice.reasons)};
}

PrefixRule PrefixRuleOf(const EngineOptions& options, const Policies& policies) {
  if (!options.prefix_cache) {
    return {PrefixReuse::kNone, "no prefix is reused: --prefix-cache off"};
  }
  if (!options.trace.empty()) {
    return {PrefixReuse::kNone, "no prefix is reused: a trace is recorded, which wants every row"};
  }
  if (!options.replay_trace.empty()) {
    return {PrefixReuse::kNone, "no prefix is reused: scores come from a trace, not from the text"};
  }
  const bool same_rows = policies.routing == RoutingKind::kTopK && policies.miss != ExpertMiss::kProceed &&
                         policies.neuron_miss == NeuronMiss::kLoad;
  if (!same_rows) {
    return {PrefixReuse::kPrompts,
            "prefixes are reused of prompts alone: the policies compute generated tokens in another way"};
  }
  return {PrefixReuse::kAll, ""};
}

std::string PrefixIdentity(const std::string& model_id, const EngineOptions& options,
                           const Policies& policies) {
  std::string identity = absl::StrCat(model_id, " device ", static_cast<int>(options.device), " kv ",
                                      static_cast<int>(options.kv));
  for (const PolicyWord& word : Describe(policies)) {
    absl::StrAppend(&identity, " ", word.name, "=", word.value);
  }
  return identity;
}

}  // namespace sluice::inferd
