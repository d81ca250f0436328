// Plan of `sluice-lab quality`: packs of one model and, for each, runs with options; and the table that
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
//   series = "quantization"                    # groups the table and plot.py's points
//   reference = 18.1602                        # perplexity to compare with, if there is one
//
// Thread safety: plain values and pure functions.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// Markdown of the rows that were measured; `results` by row.
std::string QualityTable(const QualityPlan& plan, const std::vector<QualityResult>& results);

// Reading the tables of a plan's TOML file (quality_rows.h, preset_rows.h): every key known, every error with
// its line.
//
// Thread safety: thread-compatible; a reader belongs to one thread.

// INVALID_ARGUMENT naming the file and the line.
absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& subject);
absl::Status Wrong(const std::string& subject, const toml::node& node, const std::string& what);

// The tables of [[key]]; INVALID_ARGUMENT if one is something else, or `required` and there is none.
absl::StatusOr<std::vector<const toml::table*>> Tables(const toml::table& root, const std::string& subject,
                                                       const char* key, bool required = true);

// The [[pack]]s (quality_rows.h): names differ, profile_of names an earlier one.
absl::StatusOr<std::vector<QualityPack>> ReadPackTables(const toml::table& root, const std::string& subject);

// Reads one table of the file; the first error sticks. `subject` and the table outlive it.
class TableReader {
 public:
  TableReader(const std::string& subject, const toml::table& table) : subject_(subject), table_(table) {}

  void Text(const char* key, bool required, std::string* out);
  void Texts(const char* key, std::vector<std::string>* out);
  void Flag(const char* key, bool* out);
  void Real(const char* key, std::optional<double>* out);
  // The first error, or a key that nobody asked for.
  absl::Status Finish();

 private:
  const toml::node* Find(const char* key, bool required);
  void Fail(const toml::node& node, const char* key, const char* what);
  bool Check(bool right, const toml::node& node, const char* key, const char* what);

  const std::string& subject_;
  const toml::table& table_;
  std::set<std::string> seen_;
  absl::Status status_;
};

}  // namespace sluice::cli
