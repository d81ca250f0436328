// Results of a comparison of presets, and their output: a table, ratios with their targets, and explanations
// of each run's bound.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/json.h"
#include "cli/measure/bench_report.h"
#include "lab/preset_rows.h"

namespace sluice::cli {

// One batch size of one row.
struct PresetMeasure {
  uint64_t batch = 1;
  BenchSample decode;  // sums over all repetitions of answers to prompts of one token
  double tpot_ms = 0;  // mean over the repetitions
  double ttft_ms = 0;  // of prompts of several tokens that follow those answers
};

struct PresetQuality {
  double ppl = 0;
  double ppl_stderr = 0;
  std::optional<double> kld;  // from the first row's distributions, nats
  std::optional<double> same_top;
};

struct PresetResult {
  std::string refused;  // reason for missing figures, or empty
  bool failed = false;  // it could have run, but failed
  std::vector<PresetMeasure> measures;
  std::optional<PresetQuality> quality;
  double link_bytes_per_second = 0;  // the link's rate; 0: unknown
  bool real_time = false;            // times are measured on this machine, not taken from a cost table
  // For a cache of single neurons: true if all leads stay in device memory; and the missing share of an
  // expert's neurons above which all of them travel in one copy.
  std::optional<bool> leads_stay;
  std::optional<double> copy_all_share;
};

// Returns figures by name, the same for JSON, ratios and tables, without those that the run does not measure.
// `base`: the first row's result.
std::vector<std::pair<std::string, double>> MetricsOf(const PresetResult& result, size_t measure,
                                                      const PresetResult& base);
std::optional<double> MetricOf(const PresetResult& result, uint64_t batch, const std::string& name,
                               const PresetResult& base);

// Returns one paragraph: the bound of the run and the option that would help.
std::string ExplainRun(const PresetResult& result, size_t measure);

// `results`: by row.
std::string PresetTable(const PresetPlan& plan, const std::vector<PresetResult>& results);
std::string RatioTable(const PresetPlan& plan,
                       const std::vector<PresetResult>& results);  // "" without ratios
std::string ExplainTexts(const PresetPlan& plan, const std::vector<PresetResult>& results);
Json PresetJson(const PresetPlan& plan, const std::vector<PresetResult>& results, bool explain);

// Results by value, then by row.
struct SweepResults {
  PresetSweep sweep;
  std::vector<std::vector<PresetResult>> results;
};
std::string SweepTable(const PresetPlan& plan, const SweepResults& results);
Json SweepJson(const PresetPlan& plan, const SweepResults& results);

}  // namespace sluice::cli
