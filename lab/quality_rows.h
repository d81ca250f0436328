// Plan of `sluice-lab quality`: packs of one model, runs on each of them with options, and the resulting
// table. The file:
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
  std::string profile_of;  // name of an earlier, calibrated pack, or empty
  bool synth = false;      // `args` are arguments of `sluice synth`
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
  std::vector<QualityRow> rows;  // the first one is the base of the others
};

// INVALID_ARGUMENT naming the place in the file.
absl::StatusOr<QualityPlan> ParseQualityPlan(const std::string& toml, const std::string& subject);

// An argument of `sluice pack --recipe`: a name or a file.
struct QualityRecipe {
  std::string word;
  bool by_usage = false;  // needs a profile to rank experts
};

// Returns every recipe with every preset; the base is bf16 with `exact`, whose profile ranks experts.
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

// Parses the JSON of `sluice perplexity`; INTERNAL if it is malformed.
absl::StatusOr<QualityResult> ParsePerplexityJson(const std::string& json);

// Returns a Markdown table of the measured rows; `results`: by row.
std::string QualityTable(const QualityPlan& plan, const std::vector<QualityResult>& results);

// Readers of the tables in a plan's TOML file (quality_rows.h, preset_rows.h): unknown keys are errors, and
// every error names its line.
//
// Thread safety: thread-compatible; a reader belongs to one thread.

// INVALID_ARGUMENT naming the file and the line.
absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& subject);
absl::Status Wrong(const std::string& subject, const toml::node& node, const std::string& what);

// Returns the tables of [[key]]; INVALID_ARGUMENT if an entry is not a table, or if there is none and it is
// `required`.
absl::StatusOr<std::vector<const toml::table*>> Tables(const toml::table& root, const std::string& subject,
                                                       const char* key, bool required = true);

// Returns the [[pack]]s (quality_rows.h): names are unique, profile_of names an earlier one.
absl::StatusOr<std::vector<QualityPack>> ReadPackTables(const toml::table& root, const std::string& subject);

// Reads one table of the file; the first error is sticky. `subject` and the table must outlive it.
class TableReader {
 public:
  TableReader(const std::string& subject, const toml::table& table) : subject_(subject), table_(table) {}

  void Text(const char* key, bool required, std::string* out);
  void Texts(const char* key, std::vector<std::string>* out);
  void Flag(const char* key, bool* out);
  void Real(const char* key, std::optional<double>* out);
  // Returns the first error; a key that was not read is an error.
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
