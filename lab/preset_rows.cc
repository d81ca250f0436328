#include "lab/preset_rows.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "cli/command_line.h"
#include "common/base/status.h"
#include "inferd/policy/policies.h"

namespace sluice::cli {
namespace {

absl::Status ReadRows(const toml::table& root, const std::string& subject, PresetPlan* plan) {
  std::set<std::string> packs;
  for (const QualityPack& pack : plan->packs) {
    packs.insert(pack.name);
  }
  std::set<std::string> names;
  ASSIGN_OR_RETURN(const auto rows, Tables(root, subject, "row"));
  for (const toml::table* table : rows) {
    PresetRow& row = plan->rows.emplace_back();
    TableReader reader(subject, *table);
    reader.Text("name", true, &row.name);
    reader.Text("pack", false, &row.pack);
    reader.Text("preset", false, &row.preset);
    reader.Texts("options", &row.options);
    RETURN_IF_ERROR(reader.Finish());
    if (!row.pack.empty() && packs.count(row.pack) == 0) {
      return Wrong(subject, *table, absl::StrCat("there is no pack \"", row.pack, "\""));
    }
    if (!names.insert(row.name).second) {
      return Wrong(subject, *table, absl::StrCat("row \"", row.name, "\" is there twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadRatios(const toml::table& root, const std::string& subject, PresetPlan* plan) {
  ASSIGN_OR_RETURN(const auto ratios, Tables(root, subject, "ratio", /*required=*/false));
  for (const toml::table* table : ratios) {
    PresetRatio& ratio = plan->ratios.emplace_back();
    std::optional<double> batch;
    TableReader reader(subject, *table);
    reader.Text("name", true, &ratio.name);
    reader.Text("row", true, &ratio.row);
    reader.Text("of", true, &ratio.of);
    reader.Text("metric", false, &ratio.metric);
    reader.Real("batch", &batch);
    reader.Real("at_least", &ratio.at_least);
    reader.Real("at_most", &ratio.at_most);
    reader.Text("paper", false, &ratio.paper);
    RETURN_IF_ERROR(reader.Finish());
    ratio.batch = static_cast<uint64_t>(std::clamp(batch.value_or(1), 1.0, 1024.0));
    for (const std::string& name : {ratio.row, ratio.of}) {
      const bool known = std::any_of(plan->rows.begin(), plan->rows.end(),
                                     [&name](const PresetRow& row) { return row.name == name; });
      if (!known) {
        return Wrong(subject, *table, absl::StrCat("there is no row \"", name, "\""));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PresetPlan> ParsePresetPlan(const std::string& text, const std::string& subject) {
  ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, subject));
  PresetPlan plan;
  if (root.contains("pack")) {
    ASSIGN_OR_RETURN(plan.packs, ReadPackTables(root, subject));
  }
  RETURN_IF_ERROR(ReadRows(root, subject, &plan));
  RETURN_IF_ERROR(ReadRatios(root, subject, &plan));
  return plan;
}

PresetPlan PlanOfPresets(const std::vector<std::string>& presets) {
  PresetPlan plan;
  plan.rows.push_back({"resident", "", "resident", {}});
  for (const std::string& preset : presets) {
    if (preset != "resident") {
      plan.rows.push_back({preset, "", preset, {}});
    }
  }
  return plan;
}

absl::StatusOr<PresetSweep> ParseSweep(const std::string& text) {
  const size_t equals = text.find('=');
  PresetSweep sweep = {text.substr(0, equals), {}};
  if (equals != std::string::npos) {
    sweep.values = SplitList(text.substr(equals + 1));
  }
  if (sweep.name.empty() || sweep.values.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not NAME=VALUE,VALUE,.."));
  }
  for (const std::string& value : sweep.values) {
    double number = 0;
    if (!absl::SimpleAtod(absl::StripSuffix(value, "%"), &number) || !std::isfinite(number)) {
      return absl::InvalidArgumentError(absl::StrCat(sweep.name, ": '", value, "' is no number"));
    }
  }
  return sweep;
}

absl::StatusOr<CommonOptions> WithSweepValue(const CommonOptions& options, const std::string& name,
                                             const std::string& value) {
  CommonOptions swept = options;
  const bool is_cost = name.ends_with("_ms");
  const bool virtual_link = name == "link-gbps" && swept.Has("virtual-costs");
  if (is_cost || virtual_link) {
    // The cost table defines the link's time unless link_ms is 0.
    const std::string setting = is_cost ? absl::StrCat(name, "=", value) : "link_ms=0";
    const std::string before = swept.ValueOr("virtual-costs", "");
    swept.Set("virtual-costs", absl::StrCat(before, before.empty() ? "" : ",", setting));
  }
  if (is_cost) {
    return swept;
  }
  const absl::Span<const inferd::PolicyKey> keys = inferd::PolicyKeys();
  if (std::any_of(keys.begin(), keys.end(),
                  [&name](const inferd::PolicyKey& key) { return name == key.name; })) {
    std::vector<std::string> policies = swept.All("policy");
    policies.push_back(absl::StrCat(name, "=", value));
    swept.SetAll("policy", policies);
    return swept;
  }
  ArgParser parser(absl::StrCat("--sweep ", name), "");
  swept.Declare(&parser);
  const std::string option = absl::StrCat("--", name);
  if (!parser.Knows(option) || option == "--pack" || option == "--help") {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep ", name, ": neither an option of the daemons, a virtual cost nor a policy"));
  }
  if (const absl::Status filled = parser.Fill({"--pack", options.pack, option, value}); !filled.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--sweep ", name, "=", value, ": ", filled.message()));
  }
  return swept;
}

}  // namespace sluice::cli
