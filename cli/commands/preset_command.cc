// `sluice preset`: lists and shows the named sets of policies.

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "common/base/status.h"
#include "inferd/policy/auto_preset.h"
#include "inferd/policy/policies.h"
#include "pack/pack.h"

namespace sluice::cli {
namespace {

std::string SummaryOf(const std::string& name) {
  for (const inferd::PresetSummary& preset : inferd::Presets()) {
    if (preset.name == name) {
      return preset.summary;
    }
  }
  return "";
}

Json Names(const inferd::Policies& policies, bool kept) {
  Json names = Json::Array();
  for (const inferd::PolicyPromise& promise : inferd::Promises(policies)) {
    if (promise.kept == kept) {
      names.Append(promise.what);
    }
  }
  return names;
}

// Returns the reason why this build cannot run the policies; "" if it can.
std::string Hindrance(const inferd::Policies& policies, inferd::DeviceKind device) {
  return std::string(inferd::CheckPolicies(policies, device).message());
}

Json PresetJson(const inferd::Policies& policies, inferd::DeviceKind device) {
  Json words = Json::Object();
  for (const inferd::PolicyWord& word : inferd::Describe(policies)) {
    words.Set(word.name, word.value);
  }
  return Json::Object()
      .Set("name", policies.preset)
      .Set("default", policies.preset == inferd::Presets().front().name)
      .Set("summary", SummaryOf(policies.preset))
      .Set("policies", std::move(words))
      .Set("model_tokens", inferd::KeepsModelTokens(policies))
      .Set("independent_of", Names(policies, true))
      .Set("dependent_on", Names(policies, false))
      .Set("refused", Hindrance(policies, device));
}

std::string PromiseText(const inferd::Policies& policies) {
  std::string kept;
  std::string broken;
  for (const inferd::PolicyPromise& promise : inferd::Promises(policies)) {
    absl::StrAppend(promise.kept ? &kept : &broken, "  ", promise.what, "\n");
  }
  std::string text = inferd::KeepsModelTokens(policies)
                         ? ""
                         : "\ntokens are not the model's own: what is left out or exchanged is lost\n";
  if (!kept.empty()) {
    absl::StrAppend(&text, "\nlogits are equal bit for bit over:\n", kept);
  }
  if (!broken.empty()) {
    absl::StrAppend(&text, "\nlogits may depend on:\n", broken);
  }
  return absl::StrCat(text, "between devices or instruction sets: within a tolerance\n");
}

std::string PresetText(const inferd::Policies& policies, inferd::DeviceKind device,
                       const std::string& device_name) {
  const bool is_default = policies.preset == inferd::Presets().front().name;
  std::string text =
      absl::StrCat(policies.preset, is_default ? " (default): " : ": ", SummaryOf(policies.preset),
                   "\n\npolicies on device ", device_name, " (--policy NAME=VALUE changes one):\n");
  for (const inferd::PolicyWord& word : inferd::Describe(policies)) {
    absl::StrAppend(&text, "  ", word.name, std::string(24 - word.name.size(), ' '), word.value, "\n");
  }
  const std::string hindrance = Hindrance(policies, device);
  if (!hindrance.empty()) {
    absl::StrAppend(&text, "\nrefused: ", hindrance, "\n");
  }
  return absl::StrCat(text, PromiseText(policies));
}

std::string ListText() {
  std::string text;
  for (const inferd::PresetSummary& preset : inferd::Presets()) {
    absl::StrAppend(&text, preset.name, std::string(14 - std::min<size_t>(13, preset.name.size()), ' '),
                    preset.summary, preset.name == inferd::Presets().front().name ? " (default)\n" : "\n");
  }
  return text;
}

// Returns the choice of `auto` for a pack on this machine.
absl::StatusOr<inferd::AutoChoice> ChooseFor(const std::string& pack_dir, inferd::DeviceKind device,
                                             uint64_t budget, double link_gbps, double quality_bound) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Pack> pack, Pack::Open(pack_dir));
  ASSIGN_OR_RETURN(const inferd::MachineRates machine, inferd::MeasureMachine(/*threads=*/0));
  inferd::AutoSetup setup;
  setup.device = device;
  setup.budget = budget;
  setup.quality_bound = quality_bound;
  setup.link_seconds = link_gbps > 0 ? 1 / (link_gbps * 1e9) : 0;
  return inferd::ChoosePolicies(inferd::AutoFactsOf(setup, *pack, machine));
}

std::string ReasonText(const std::vector<std::string>& reasons) {
  std::string text;
  for (const std::string& reason : reasons) absl::StrAppend(&text, "  ", reason, "\n");
  return text.empty() ? "\nwhat it chooses depends on the pack: --pack PACK shows it for this machine\n"
                      : absl::StrCat("\nchosen because:\n", text);
}

int Print(const std::string& text) { return WriteStdout(text).ok() ? kExitOk : kExitFailed; }

}  // namespace

int RunPreset(const CommandContext&, const std::vector<std::string>& args) {
  std::string action;
  std::vector<std::string> names;
  std::vector<std::string> policy;
  std::optional<std::string> device;
  bool json = false;
  std::string pack;
  std::optional<uint64_t> budget;
  std::optional<double> link_gbps;
  ArgParser parser("sluice preset",
                   "preset list: the presets of this build. preset show NAME: what one does.");
  parser.Positional("ACTION", &action, "list or show")
      .Positionals("NAME", &names, "of the preset to show")
      .Choice("--device", {"host", "sim", "cuda"}, &device,
              "whose values are shown [host; sim for baselines of slots]")
      .Text("--pack", &pack, "for `auto`: the pack that it chooses for")
      .Size("--device-budget", &budget, "for `auto`: device memory for routed experts [all]")
      .Real("--link-gbps", &link_gbps, "for `auto`: the link's rate in 1e9 bytes a second [measured]", 0, 1e6)
      .Texts("--policy", &policy, "KEY=VALUE[,KEY=VALUE..]: shows the preset with these values")
      .Flag("--json", &json, "prints one JSON object");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (action == "list" && names.empty()) {
    return json ? PrintJson(Json::Object().Set("presets", inferd::PresetNames())) : Print(ListText());
  }
  if (action != "show" || names.size() != 1) {
    return parser.UsageError("expected `list` or `show NAME`");
  }
  inferd::PolicyOverrides overrides;
  overrides.policy = policy;
  absl::StatusOr<inferd::Policies> policies =
      inferd::UncheckedPolicies(names[0], overrides, inferd::DeviceFromName(device.value_or("host")).value());
  if (!policies.ok() && !device.has_value()) {  // not available on host: shown for sim
    device = "sim";
    policies = inferd::UncheckedPolicies(names[0], overrides, inferd::DeviceKind::kSim);
  }
  if (!policies.ok()) {
    return Fail("sluice preset", policies.status(), json);
  }
  const std::string name = device.value_or("host");
  const inferd::DeviceKind kind = inferd::DeviceFromName(name).value();
  std::vector<std::string> reasons;
  if (names[0] == "auto" && !pack.empty()) {
    absl::StatusOr<inferd::AutoChoice> choice =
        ChooseFor(pack, kind, budget.value_or(0), link_gbps.value_or(0), policies->quality_bound);
    if (choice.ok()) policies = inferd::WithOverrides(std::move(choice->policies), overrides);
    if (!choice.ok() || !policies.ok()) {
      return Fail("sluice preset", choice.ok() ? policies.status() : choice.status(), json);
    }
    reasons = std::move(choice->reasons);
  }
  if (json) {
    return PrintJson(PresetJson(*policies, kind).Set("reasons", reasons));
  }
  return Print(PresetText(*policies, kind, name) + (names[0] == "auto" ? ReasonText(reasons) : ""));
}

}  // namespace sluice::cli
