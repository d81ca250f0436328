// `sluice preset`: the named sets of policies.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "inferd/policy/preset.h"

namespace sluice::cli {
namespace {

// Bit for bit equal whatever changes, on device host: every preset of this build decides from a token's own
// values alone.
constexpr const char* kPromises[] = {
    "memory budgets and slab sizes",
    "transports and prefetching",
    "faults and crashes of weightd",
    "thread counts",
    "batch composition",
    "prefill chunking",
};

std::string SummaryOf(const std::string& name) {
  for (const PresetSummary& preset : Presets()) {
    if (preset.name == name) {
      return preset.summary;
    }
  }
  return "";
}

Json PresetJson(const Policies& policies) {
  Json words = Json::Object();
  for (const PolicyWord& word : Describe(policies)) {
    words.Set(word.name, word.value);
  }
  Json promises = Json::Array();
  for (const char* promise : kPromises) {
    promises.Append(promise);
  }
  return Json::Object()
      .Set("name", policies.preset)
      .Set("default", policies.preset == Presets().front().name)
      .Set("summary", SummaryOf(policies.preset))
      .Set("policies", std::move(words))
      .Set("model_tokens", policies.sparsity.order == SparsityOrder::kNone)
      .Set("independent_of", std::move(promises));
}

std::string PresetText(const Policies& policies) {
  const bool is_default = policies.preset == Presets().front().name;
  std::string text = absl::StrCat(policies.preset, is_default ? " (default): " : ": ",
                                  SummaryOf(policies.preset), "\n\npolicies:\n");
  for (const PolicyWord& word : Describe(policies)) {
    absl::StrAppend(&text, "  ", word.name, std::string(20 - word.name.size(), ' '), word.value, "\n");
  }
  if (policies.sparsity.order != SparsityOrder::kNone) {
    absl::StrAppend(&text, "\ntokens are not the model's own: what neurons add that do not count is lost\n");
  }
  absl::StrAppend(&text, "\nlogits are equal bit for bit over:\n");
  for (const char* promise : kPromises) {
    absl::StrAppend(&text, "  ", promise, "\n");
  }
  return absl::StrCat(text, "between devices or instruction sets: within a tolerance\n");
}

std::string ListText() {
  std::string text;
  for (const PresetSummary& preset : Presets()) {
    absl::StrAppend(&text, preset.name, std::string(8 - std::min<size_t>(7, preset.name.size()), ' '),
                    preset.summary, preset.name == Presets().front().name ? " (default)\n" : "\n");
  }
  return text;
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
    return json ? PrintJson(Json::Object().Set("presets", PresetNames())) : Print(ListText());
  }
  if (action != "show" || names.size() != 1) {
    return parser.UsageError("expected `list` or `show NAME`");
  }
  const absl::StatusOr<Policies> policies = PoliciesOf(names[0]);
  if (!policies.ok()) {
    return Fail("preset", policies.status(), json);
  }
  return json ? PrintJson(PresetJson(*policies)) : Print(PresetText(*policies));
}

}  // namespace sluice::cli
