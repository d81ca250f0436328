#include "lab/preset_rows.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/measure/rows/toml_tables.h"
#include "cli/ui/args.h"
#include "common/status.h"

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

double SweepNumber(const std::string& value) {
  double number = 0;
  return absl::SimpleAtod(absl::StripSuffix(value, "%"), &number) ? number : 0;
}

}  // namespace sluice::cli
