#include "inferd/engine/prefix_reuse.h"

#include "absl/strings/str_cat.h"

namespace sluice::inferd {

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
  const bool same_rows = policies.routing == RoutingKind::kTopK && policies.miss != ExpertMiss::kSkip &&
                         policies.miss != ExpertMiss::kProceed && policies.neuron_miss == NeuronMiss::kLoad;
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
