// `sluice preset`: the named sets of policies.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "inferd/policy/preset.h"

namespace sluice::cli {
namespace {

struct Policy {
  const char* name;
  const char* value;
};

// What inferd does under `exact`.
constexpr Policy kExactPolicies[] = {
    {"bits", "as packed"},
    {"sparsity", "none"},
    {"routing", "topk"},
    {"expert_predictor", "gate_reuse, depth 1"},
    {"neuron_predictor", "none"},
    {"cache_allocation", "uniform"},
    {"cache_eviction", "lru"},
    {"cache_granularity", "expert"},
    {"expert_miss", "load (device host: lease in place)"},
    {"neuron_miss", "load"},
};

// Bit for bit equal whatever changes, on device host.
constexpr const char* kExactPromises[] = {
    "memory budgets and slab sizes",
    "transports and prefetching",
    "faults and crashes of weightd",
    "thread counts",
    "batch composition",
    "prefill chunking",
    "prefix reuse",
};

const char kExactSummary[] =
    "for one build, machine, device and instruction set a sequence's logits depend on its token ids alone";

Json ExactJson() {
  Json policies = Json::Object();
  for (const Policy& policy : kExactPolicies) {
    policies.Set(policy.name, policy.value);
  }
  Json promises = Json::Array();
  for (const char* promise : kExactPromises) {
    promises.Append(promise);
  }
  return Json::Object()
      .Set("name", "exact")
      .Set("default", true)
      .Set("summary", kExactSummary)
      .Set("policies", std::move(policies))
      .Set("independent_of", std::move(promises));
}

std::string ExactText() {
  std::string text = absl::StrCat("exact (default): ", kExactSummary, "\n\npolicies:\n");
  for (const Policy& policy : kExactPolicies) {
    absl::StrAppend(&text, "  ", policy.name, std::string(20 - std::string(policy.name).size(), ' '),
                    policy.value, "\n");
  }
  absl::StrAppend(&text, "\nlogits are equal bit for bit over:\n");
  for (const char* promise : kExactPromises) {
    absl::StrAppend(&text, "  ", promise, "\n");
  }
  return absl::StrCat(text, "between devices or instruction sets: within a tolerance\n");
}

int Print(const std::string& text) { return WriteStdout(text).ok() ? kExitOk : kExitFailed; }

}  // namespace

int RunPreset(const CommandContext&, const std::vector<std::string>& args) {
  std::string action;
  std::vector<std::string> names;
  bool json = false;
  ArgParser parser("sluice preset",
                   "preset list: the presets of this build. preset show NAME: what one does.");
  parser.Positional("ACTION", &action, "list or show")
      .Positionals("NAME", &names, "of the preset to show")
      .Flag("--json", &json, "prints one JSON object");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (action == "list" && names.empty()) {
    return json ? PrintJson(Json::Object().Set("presets", PresetNames()))
                : Print(absl::StrCat("exact  ", kExactSummary, " (default)\n"));
  }
  if (action != "show" || names.size() != 1) {
    return parser.UsageError("expected `list` or `show NAME`");
  }
  if (const auto policies = PoliciesOf(names[0]); !policies.ok()) {
    return Fail("preset", policies.status(), json);
  }
  return json ? PrintJson(ExactJson()) : Print(ExactText());
}

}  // namespace sluice::cli
