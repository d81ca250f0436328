// Tables, curves and JSON of sweeps (preset_report.h).

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/measure/rows/svg_plot.h"
#include "lab/preset_report.h"

namespace sluice::cli {
namespace {

std::optional<double> RateOf(const SweepResults& results, size_t value, size_t row) {
  const PresetResult& result = results.results[value][row];
  return result.measures.empty() ? std::nullopt
                                 : MetricOf(result, result.measures.front().batch, "tokens_per_second",
                                            results.results[value].front());
}

}  // namespace

std::string SweepTable(const PresetPlan& plan, const SweepResults& results) {
  std::string table = "| t/s (hit %) by " + results.sweep.name + " |";
  std::string rule = "|---|";
  for (const std::string& value : results.sweep.values) {
    absl::StrAppend(&table, " ", value, " |");
    rule += "---|";
  }
  absl::StrAppend(&table, "\n", rule, "\n");
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    absl::StrAppend(&table, "| ", plan.rows[row].name, " |");
    for (size_t value = 0; value < results.results.size(); ++value) {
      const std::optional<double> rate = RateOf(results, value, row);
      if (!rate.has_value()) {
        table += " refused |";
        continue;
      }
      const PresetResult& result = results.results[value][row];
      const std::optional<double> hits =
          MetricOf(result, result.measures.front().batch, "hit_rate", results.results[value].front());
      absl::StrAppendFormat(&table, " %.2f", *rate);
      if (hits.has_value()) absl::StrAppendFormat(&table, " (%.1f)", 100 * *hits);
      const std::optional<double> sparsity =
          MetricOf(result, result.measures.front().batch, "sparsity", results.results[value].front());
      if (sparsity.has_value()) absl::StrAppendFormat(&table, " sparse %.1f", 100 * *sparsity);
      if (result.quality.has_value()) absl::StrAppendFormat(&table, " ppl %.3f", result.quality->ppl);
      table += " |";
    }
    table += "\n";
  }
  return table;
}

std::string SweepPlot(const PresetPlan& plan, const SweepResults& results) {
  Plot plot;
  plot.title = absl::StrCat("Presets over ", results.sweep.name);
  plot.x_title = results.sweep.name;
  plot.y_title = "tokens per second";
  plot.lines = true;
  for (size_t row = 0; row < plan.rows.size(); ++row) {
    const auto series = static_cast<uint32_t>(plot.series.size());
    bool any = false;
    for (size_t value = 0; value < results.results.size(); ++value) {
      const std::optional<double> rate = RateOf(results, value, row);
      if (rate.has_value()) {
        plot.points.push_back({SweepNumber(results.sweep.values[value]), *rate, "", series});
        any = true;
      }
    }
    if (any) {
      plot.points.back().label = plan.rows[row].name;
      plot.series.push_back(plan.rows[row].name);
    }
  }
  return plot.points.empty() ? "" : RenderSvg(plot);
}

Json SweepJson(const PresetPlan& plan, const SweepResults& results) {
  Json points = Json::Array();
  for (size_t value = 0; value < results.results.size(); ++value) {
    Json point = PresetJson({{}, plan.rows, {}}, results.results[value], /*explain=*/false);
    points.Append(point.Set("value", results.sweep.values[value]));
  }
  return Json::Object().Set("name", results.sweep.name).Set("points", std::move(points));
}

}  // namespace sluice::cli
