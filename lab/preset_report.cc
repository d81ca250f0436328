#include "lab/preset_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice::cli {
namespace {

using Metrics = std::vector<std::pair<std::string, double>>;

void AddShare(const char* name, double part, double whole, Metrics* metrics) {
  if (whole > 0) {
    metrics->emplace_back(name, part / whole);
  }
}

double Rate(const PresetMeasure& m) {
  return m.tpot_ms > 0 ? 1e3 * static_cast<double>(m.batch) / m.tpot_ms : 0;
}

const PresetMeasure* MeasureOf(const PresetResult& result, uint64_t batch) {
  const auto found = std::find_if(result.measures.begin(), result.measures.end(),
                                  [batch](const PresetMeasure& m) { return m.batch == batch; });
  return found == result.measures.end() ? nullptr : &*found;
}

// Adds the parts of a step's time: computing on the device, transfers over the link, and the transfers hidden
// behind computing.
void AddTimes(const PresetResult& result, const PresetMeasure& m, Metrics* metrics) {
  if (m.decode.steps == 0) {
    return;
  }
  const double per_step = 1e3 / static_cast<double>(m.decode.steps);
  const double compute = std::max(0.0, m.decode.busy_seconds - m.decode.stall_seconds) * per_step;
  const double stall = m.decode.stall_seconds * per_step;
  metrics->emplace_back("compute_ms", compute);
  metrics->emplace_back("stall_ms", stall);
  if (result.real_time) {
    // Time neither waiting nor in a backend operation: residency, policies, scheduling, sampling.
    const double engine =
        std::max(0.0, m.decode.busy_seconds - m.decode.stall_seconds - m.decode.kernel_seconds);
    metrics->emplace_back("engine_ms", engine * per_step);
    AddShare("engine_share", engine, m.decode.busy_seconds - m.decode.stall_seconds, metrics);
  }
  if (m.decode.load_seconds > 0 || result.link_bytes_per_second > 0) {
    const double load = per_step * (m.decode.load_seconds > 0 ? m.decode.load_seconds
                                                              : static_cast<double>(m.decode.bytes_link) /
                                                                    result.link_bytes_per_second);
    metrics->emplace_back("load_ms", load);
    metrics->emplace_back("overlap_ms", std::max(0.0, load - stall));
  }
}

// Returns the cell of a metric; empty if it is missing.
std::string Cell(const Metrics& metrics, const char* name, int decimals, double factor = 1) {
  for (const auto& [key, value] : metrics) {
    if (key == name) {
      return absl::StrFormat("%.*f", decimals, value * factor);
    }
  }
  return "";
}

struct Column {
  const char* title;
  const char* metric;
  int decimals;
  double factor;
};
constexpr Column kColumns[] = {
    {"t/s", "tokens_per_second", 2, 1},
    {"of resident %", "share_of_resident", 1, 100},
    {"ttft ms", "ttft_ms", 1, 1},
    {"tpot ms", "tpot_ms", 2, 1},
    {"hit %", "hit_rate", 1, 100},
    {"late %", "late_rate", 1, 100},
    {"dropped %", "dropped_share", 1, 100},
    {"exchanged %", "exchanged_share", 1, 100},
    {"sparse %", "sparsity", 1, 100},
    {"neuron hit %", "neuron_hit_rate", 1, 100},
    {"precision %", "predictor_precision", 1, 100},
    {"recall %", "predictor_recall", 1, 100},
    {"neuron precision %", "neuron_precision", 1, 100},
    {"neuron recall %", "neuron_recall", 1, 100},
    {"one copy above %", "copy_all_share", 1, 100},
    {"link KiB/token", "link_bytes_per_token", 1, 1.0 / 1024},
    {"CPU KiB/token", "dram_bytes_per_token", 1, 1.0 / 1024},
    {"SSD KiB/token", "ssd_bytes_per_token", 1, 1.0 / 1024},
    {"load ms", "load_ms", 2, 1},
    {"compute ms", "compute_ms", 2, 1},
    {"overlap ms", "overlap_ms", 2, 1},
    {"stall ms", "stall_ms", 2, 1},
    {"engine ms", "engine_ms", 3, 1},
    {"engine %", "engine_share", 2, 100},
    {"ppl", "ppl", 4, 1},
    {"KL divergence", "kld_mean", 5, 1},
};

// Returns the columns that are not 0 in some row.
std::vector<Column> ColumnsOf(const std::vector<PresetResult>& results) {
  std::vector<Column> columns;
  for (const Column& column : kColumns) {
    const bool used = std::any_of(results.begin(), results.end(), [&](const PresetResult& result) {
      for (size_t i = 0; i < result.measures.size(); ++i) {
        const std::string cell = Cell(MetricsOf(result, i, results.front()), column.metric, 6);
        if (!cell.empty() && cell != "0.000000") return true;
      }
      return false;
    });
    if (used) {
      columns.push_back(column);
    }
  }
  return columns;
}

size_t RowOf(const PresetPlan& plan, const std::string& name) {
  const auto found = std::find_if(plan.rows.begin(), plan.rows.end(),
                                  [&name](const PresetRow& row) { return row.name == name; });
  return static_cast<size_t>(found - plan.rows.begin());
}

std::optional<double> RatioOf(const PresetPlan& plan, const PresetRatio& ratio,
                              const std::vector<PresetResult>& results) {
  const std::optional<double> part =
      MetricOf(results[RowOf(plan, ratio.row)], ratio.batch, ratio.metric, results.front());
  const std::optional<double> whole =
      MetricOf(results[RowOf(plan, ratio.of)], ratio.batch, ratio.metric, results.front());
  return part.has_value() && whole.value_or(0) != 0 ? std::optional<double>(*part / *whole) : std::nullopt;
}

// Returns "met", "missed", or nothing without a target.
std::string Verdict(const PresetRatio& ratio, double value) {
  if (!ratio.at_least.has_value() && !ratio.at_most.has_value()) {
    return "";
  }
  return value >= ratio.at_least.value_or(value) && value <= ratio.at_most.value_or(value) ? "met" : "missed";
}

std::string MarkOf(const PresetRatio& ratio) {
  std::string mark;
  if (ratio.at_least.has_value()) absl::StrAppend(&mark, ">= ", *ratio.at_least);
  if (ratio.at_most.has_value()) absl::StrAppend(&mark, mark.empty() ? "" : ", ", "<= ", *ratio.at_most);
  return mark;
}

// Returns precision and recall of expert predictions by layer and depth.
Json DepthsJson(const std::vector<DepthSample>& depths) {
  Json json = Json::Array();
  for (const DepthSample& at : depths) {
    const auto share = [&at](uint64_t whole) {
      return whole > 0 ? Json(static_cast<double>(at.right) / static_cast<double>(whole)) : Json();
    };
    json.Append(Json::Object()
                    .Set("layer", at.layer)
                    .Set("depth", at.depth)
                    .Set("predicted", at.predicted)
                    .Set("precision", share(at.predicted))
                    .Set("recall", share(at.wanted)));
  }
  return json;
}

Json RowJson(const PresetRow& row, const PresetResult& result, const PresetResult& base, bool explain) {
  Json json = Json::Object().Set("run", row.name).Set("preset", row.preset);
  if (!row.pack.empty()) {
    json.Set("pack", row.pack);
  }
  json.Set("options", Json(row.options));
  json.Set("refused", result.refused.empty() ? Json() : Json(result.refused));
  json.Set("lead_resident", result.leads_stay.has_value() ? Json(*result.leads_stay) : Json());
  Json batches = Json::Array();
  for (size_t i = 0; i < result.measures.size(); ++i) {
    Json figures = Json::Object().Set("batch", result.measures[i].batch);
    for (const auto& [name, value] : MetricsOf(result, i, base)) {
      figures.Set(name, value);
    }
    if (Json depths = DepthsJson(result.measures[i].decode.depths);
        !result.measures[i].decode.depths.empty()) {
      figures.Set("predictions", std::move(depths));
    }
    if (explain) {
      figures.Set("explanation", ExplainRun(result, i));
    }
    batches.Append(std::move(figures));
  }
  return json.Set("batches", std::move(batches));
}

}  // namespace

std::vector<std::pair<std::string, double>> MetricsOf(const PresetResult& result, size_t measure,
                                                      const PresetResult& base) {
  const PresetMeasure& m = result.measures[measure];
  const BenchSample& s = m.decode;
  const double tokens = static_cast<double>(s.generated);
  const PresetMeasure* resident = MeasureOf(base, m.batch);
  Metrics metrics = {{"tokens_per_second", Rate(m)}, {"tpot_ms", m.tpot_ms}, {"ttft_ms", m.ttft_ms}};
  if (resident != nullptr) {
    AddShare("share_of_resident", Rate(m), Rate(*resident), &metrics);
  }
  AddShare("hit_rate", static_cast<double>(s.expert_hits), static_cast<double>(s.expert_requests), &metrics);
  const double right = static_cast<double>(s.predictions_right);
  AddShare("predictor_precision", right, static_cast<double>(s.predictions), &metrics);
  AddShare("predictor_recall", right, static_cast<double>(s.predictions_wanted), &metrics);
  AddShare("late_rate", static_cast<double>(s.late), static_cast<double>(s.expert_requests), &metrics);
  AddShare("dropped_share", static_cast<double>(s.dropped), static_cast<double>(s.pairs), &metrics);
  AddShare("exchanged_share", static_cast<double>(s.exchanged), static_cast<double>(s.pairs), &metrics);
  AddShare("neuron_hit_rate", static_cast<double>(s.neuron_hits), static_cast<double>(s.neurons), &metrics);
  const double neurons_right = static_cast<double>(s.neurons_right);
  AddShare("neuron_precision", neurons_right, static_cast<double>(s.neurons_predicted), &metrics);
  AddShare("neuron_recall", neurons_right, static_cast<double>(s.neurons_wanted), &metrics);
  AddShare("sparsity", static_cast<double>(s.sparse_neurons - s.sparse_kept),
           static_cast<double>(s.sparse_neurons), &metrics);
  AddShare("dram_bytes_per_token", static_cast<double>(s.bytes_dram), tokens, &metrics);
  AddShare("link_bytes_per_token", static_cast<double>(s.bytes_link), tokens, &metrics);
  AddShare("ssd_bytes_per_token", static_cast<double>(s.bytes_ssd), tokens, &metrics);
  AddShare("weight_bytes_per_token", static_cast<double>(s.weight_bytes), tokens, &metrics);
  AddTimes(result, m, &metrics);
  if (result.copy_all_share.has_value()) metrics.emplace_back("copy_all_share", *result.copy_all_share);
  if (result.quality.has_value()) {
    metrics.emplace_back("ppl", result.quality->ppl);
    metrics.emplace_back("ppl_stderr", result.quality->ppl_stderr);
    if (result.quality->kld.has_value()) metrics.emplace_back("kld_mean", *result.quality->kld);
    if (result.quality->same_top.has_value()) metrics.emplace_back("same_top", *result.quality->same_top);
  }
  return metrics;
}

std::optional<double> MetricOf(const PresetResult& result, uint64_t batch, const std::string& name,
                               const PresetResult& base) {
  for (size_t i = 0; i < result.measures.size(); ++i) {
    if (result.measures[i].batch != batch) continue;
    for (const auto& [key, value] : MetricsOf(result, i, base)) {
      if (key == name) return value;
    }
  }
  return std::nullopt;
}

std::string PresetTable(const PresetPlan& plan, const std::vector<PresetResult>& results) {
  const std::vector<Column> columns = ColumnsOf(results);
  std::string table = "| run | preset | batch |";
  std::string rule = "|---|---|---|";
  for (const Column& column : columns) {
    absl::StrAppend(&table, " ", column.title, " |");
    rule += "---|";
  }
  absl::StrAppend(&table, "\n", rule, "\n");
  for (size_t i = 0; i < results.size(); ++i) {
    const PresetRow& row = plan.rows[i];
    if (!results[i].refused.empty()) {
      absl::StrAppend(&table, "| ", row.name, " | ", row.preset, results[i].failed ? " | " : " | refused: ",
                      absl::StrReplaceAll(results[i].refused, {{"|", "/"}, {"\n", " "}}), " |\n");
      continue;
    }
    for (size_t m = 0; m < results[i].measures.size(); ++m) {
      const Metrics metrics = MetricsOf(results[i], m, results.front());
      absl::StrAppend(&table, "| ", row.name, " | ", row.preset, " | ", results[i].measures[m].batch, " |");
      for (const Column& column : columns) {
        absl::StrAppend(&table, " ", Cell(metrics, column.metric, column.decimals, column.factor), " |");
      }
      table += "\n";
    }
  }
  return table;
}

std::string RatioTable(const PresetPlan& plan, const std::vector<PresetResult>& results) {
  if (plan.ratios.empty()) {
    return "";
  }
  std::string table = "| ratio | batch | measured | mark | | paper |\n|---|---|---|---|---|---|\n";
  for (const PresetRatio& ratio : plan.ratios) {
    const std::optional<double> value = RatioOf(plan, ratio, results);
    absl::StrAppend(&table, "| ", ratio.name, " | ", ratio.batch, " | ",
                    value.has_value() ? absl::StrFormat("%.3f", *value) : "not measured", " | ",
                    MarkOf(ratio), " | ", value.has_value() ? Verdict(ratio, *value) : "", " | ", ratio.paper,
                    " |\n");
  }
  return table;
}

Json PresetJson(const PresetPlan& plan, const std::vector<PresetResult>& results, bool explain) {
  Json rows = Json::Array();
  for (size_t i = 0; i < results.size(); ++i) {
    rows.Append(RowJson(plan.rows[i], results[i], results.front(), explain));
  }
  Json ratios = Json::Array();
  for (const PresetRatio& ratio : plan.ratios) {
    const std::optional<double> value = RatioOf(plan, ratio, results);
    Json json = Json::Object().Set("name", ratio.name).Set("metric", ratio.metric).Set("batch", ratio.batch);
    json.Set("measured", value.has_value() ? Json(*value) : Json()).Set("mark", MarkOf(ratio));
    json.Set("verdict", value.has_value() ? Verdict(ratio, *value) : "not measured")
        .Set("paper", ratio.paper);
    ratios.Append(std::move(json));
  }
  return Json::Object().Set("rows", std::move(rows)).Set("ratios", std::move(ratios));
}

// Tables, curves and JSON of sweeps (preset_report.h).

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

Json SweepJson(const PresetPlan& plan, const SweepResults& results) {
  Json points = Json::Array();
  for (size_t value = 0; value < results.results.size(); ++value) {
    Json point = PresetJson({{}, plan.rows, {}}, results.results[value], /*explain=*/false);
    points.Append(point.Set("value", results.sweep.values[value]));
  }
  return Json::Object().Set("name", results.sweep.name).Set("points", std::move(points));
}

}  // namespace sluice::cli
