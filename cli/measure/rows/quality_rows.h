// Plan of `sluice quality`: packs of one model and, for each, runs with options; and the table that
// comes out. The file:
//
//   [[pack]]
//   name = "q4"                                # rows refer to it
//   args = ["--bits", "q4"]                    # of `sluice pack`
//   calibrate = true                           # `sluice calibrate` afterwards (thresholds)
//   profile_of = "bf16"                        # an earlier pack whose profile ranks the experts
//   synth = true                               # args are of `sluice synth` instead: no model is needed
//
//   [[row]]
//   name = "4 bits"
//   pack = "q4"
//   options = ["--sparsity", "up", "--sparsity-target", "0.8"]   # of `sluice perplexity`
//   series = "quantization"                    # groups the table and colors the plot
//   reference = 18.1602                        # perplexity to compare with, if there is one
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::cli {

struct QualityPack {
  std::string name;
  std::vector<std::string> args;
  bool calibrate = false;
  std::string profile_of;  // name of an earlier pack that is calibrated, or empty
  bool synth = false;      // `args` are of `sluice synth`
};

struct QualityRow {
  std::string name;
  std::string pack;
  std::vector<std::string> options;
  std::string series;
  std::optional<double> reference;
};

struct QualityPlan {
  std::vector<QualityPack> packs;
  std::vector<QualityRow> rows;  // the first is the base that the others are compared with
};

// INVALID_ARGUMENT naming the place in the file.
absl::StatusOr<QualityPlan> ParseQualityPlan(const std::string& toml, const std::string& subject);

// A word of `sluice pack --recipe`: a name or a file.
struct QualityRecipe {
  std::string word;
  bool by_usage = false;  // ranks experts by a profile
};

// Every recipe with every preset; the base is bf16 with `exact`, whose profile ranks experts.
QualityPlan PlanOf(const std::vector<QualityRecipe>& recipes, const std::vector<std::string>& presets);

struct QualityResult {
  double ppl = 0;
  double ppl_stderr = 0;
  uint64_t tokens = 0;
  double bytes_per_token = 0;
  double bits_per_weight = 0;  // of expert weights, scales included
  std::optional<double> sparsity;
  std::optional<double> kld_mean;
  std::optional<double> same_top;
};

// From the JSON of `sluice perplexity`; INTERNAL if it is not that.
absl::StatusOr<QualityResult> ParsePerplexityJson(const std::string& json);

// Markdown and SVG of the rows that were measured; `results` by row.
std::string QualityTable(const QualityPlan& plan, const std::vector<QualityResult>& results);
std::string QualityPlot(const QualityPlan& plan, const std::vector<QualityResult>& results);

}  // namespace sluice::cli
