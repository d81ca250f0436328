#include "lab/compare.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "common/base/status.h"
#include "inferd/policy/policies.h"
#include "lab/preset_bench.h"
#include "lab/preset_report.h"
#include "lab/preset_rows.h"
#include "lab/work_packs.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxSequences = 1024;

absl::Status Write(const std::string& folder, const std::string& name, const std::string& text) {
  if (text.empty()) {
    return absl::OkStatus();
  }
  const std::string path = absl::StrCat(folder, "/", name);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<PresetPlan> PlanFrom(const CommonOptions& common, const CompareOptions& o) {
  if (!o.rows.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.rows));
    return ParsePresetPlan(text, o.rows);
  }
  std::vector<std::string> presets = SplitList(common.ValueOr("preset", "all"));
  if (presets == std::vector<std::string>{"all"}) {
    presets = inferd::PresetNames();
  }
  if (presets.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--preset '", common.ValueOr("preset", ""), "' names none"));
  }
  return PlanOfPresets(presets);
}

// Default unless options are given: a device with its own memory that holds half of the experts, in the
// virtual time of a cost table.
CommonOptions WithDefaults(CommonOptions common) {
  if (!common.Has("device")) {
    common.Set("device", "sim");
    if (!common.Has("clock") && !common.Has("link-gbps")) {
      common.Set("clock", "virtual");
    }
  }
  const bool simulated = common.ValueOr("device", "") == "sim";
  if (simulated && common.ValueOr("clock", "") == "virtual" && !common.Has("virtual-costs")) {
    common.Set("virtual-costs", "3x");
  }
  if (simulated && !common.Has("device-budget")) {
    common.Set("device-budget", "50%");
  }
  return common;
}

std::string SettingText(const CommonOptions& common, const PresetBenchOptions& bench) {
  std::string text = absl::StrCat("device ", common.ValueOr("device", ""));
  for (const char* name : {"device-budget", "clock", "virtual-costs", "link-gbps"}) {
    if (common.Has(name)) absl::StrAppend(&text, ", ", name, " ", common.ValueOr(name, ""));
  }
  absl::StrAppend(&text, "; prompts of ", bench.prompt, " tokens for ttft, answers of ", bench.generate,
                  " tokens, ", bench.repetitions, " each", bench.text.empty() ? ", from random ids" : "");
  return text;
}

absl::StatusOr<PresetBenchOptions> BenchOptionsOf(const CompareOptions& o) {
  PresetBenchOptions bench;
  bench.common = WithDefaults(o.common);
  bench.work = {o.model, o.work, o.calibration, o.calibration_tokens, /*whole_profile=*/true};
  bench.text = o.text;
  bench.prompt = o.prompt.value_or(bench.prompt);
  bench.generate = o.generate.value_or(bench.generate);
  if (o.batches.has_value()) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> batches, ParseNumberList(*o.batches, "-b", 1, kMaxSequences));
    bench.batches.assign(batches.begin(), batches.end());
  }
  bench.repetitions = o.repetitions.value_or(bench.repetitions);
  bench.temperature = o.temperature.value_or(bench.temperature);
  bench.quality_tokens = o.quality_tokens.value_or(bench.quality_tokens);
  if (bench.batches.empty()) {
    return absl::InvalidArgumentError("-b names no number of sequences");
  }
  return bench;
}

// Checks all of them before the first one runs.
absl::StatusOr<std::vector<PresetSweep>> SweepsOf(const CommonOptions& common,
                                                  const std::vector<std::string>& texts) {
  std::vector<PresetSweep> sweeps;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(PresetSweep sweep, ParseSweep(text));
    for (const std::string& value : sweep.values) {
      RETURN_IF_ERROR(WithSweepValue(common, sweep.name, value).status());
    }
    sweeps.push_back(std::move(sweep));
  }
  return sweeps;
}

absl::StatusOr<SweepResults> RunSweep(const CommandContext& context, const PresetBenchOptions& bench,
                                      const PresetPlan& plan, const PresetSweep& sweep) {
  SweepResults results;
  results.sweep = sweep;
  for (const std::string& value : results.sweep.values) {
    PresetBenchOptions at = bench;
    ASSIGN_OR_RETURN(at.common, WithSweepValue(bench.common, results.sweep.name, value));
    ASSIGN_OR_RETURN(std::vector<PresetResult> one, RunPresets(context, at, plan));
    results.results.push_back(std::move(one));
  }
  return results;
}

// Output to stdout, and to files in --out.
class Output {
 public:
  Output(const CompareOptions& options, bool json, const PresetPlan& plan)
      : options_(options), json_(json), plan_(plan) {}

  void AddRows(const std::string& setting, const std::vector<PresetResult>& results) {
    NoteFailures(results);
    text_ = absl::StrCat(setting, "\n\n", PresetTable(plan_, results));
    const std::string ratios = RatioTable(plan_, results);
    absl::StrAppend(&text_, ratios.empty() ? "" : "\n", ratios);
    if (options_.explain) {
      absl::StrAppend(&text_, "\n", ExplainTexts(plan_, results));
    }
    object_ = PresetJson(plan_, results, options_.explain);
    object_.Set("setting", setting);
  }
  void AddSweep(const SweepResults& results) {
    for (const std::vector<PresetResult>& one : results.results) {
      NoteFailures(one);
    }
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", SweepTable(plan_, results));
    sweeps_.Append(SweepJson(plan_, results));
  }
  absl::StatusOr<int> Finish() {
    object_.Set("sweeps", std::move(sweeps_));
    RETURN_IF_ERROR(Save("presets.md", text_));
    RETURN_IF_ERROR(Save("presets.json", object_.Dump()));
    if (json_) {
      const int printed = PrintJson(object_);
      return failed_ ? kExitFailed : printed;
    }
    RETURN_IF_ERROR(WriteStdout(text_));
    return failed_ ? kExitFailed : kExitOk;
  }

 private:
  void NoteFailures(const std::vector<PresetResult>& results) {
    for (const PresetResult& result : results) {
      failed_ = failed_ || result.failed;
    }
  }
  absl::Status Save(const std::string& name, const std::string& text) {
    return options_.out.empty() ? absl::OkStatus() : Write(options_.out, name, text);
  }

  const CompareOptions& options_;
  const bool json_;
  const PresetPlan& plan_;
  std::string text_;
  bool failed_ = false;
  Json object_ = Json::Object();
  Json sweeps_ = Json::Array();
};

// Makes a folder that is removed with its content when the comparison ends.
absl::StatusOr<std::string> MakeScratch() {
  std::error_code error;
  std::string path = absl::StrCat(std::filesystem::temp_directory_path(error).string(), "/sluice-lab-XXXXXX");
  if (error || mkdtemp(path.data()) == nullptr) {
    return ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  }
  return path;
}

}  // namespace

void CompareOptions::Declare(ArgParser* parser) {
  parser
      ->Number("-p,--n-prompt", &prompt, "length of the prompts that TTFT is measured on [64]", 1, kMaxTokens)
      .Number("-n,--n-gen", &generate, "length of the answers [64]", 2, kMaxTokens)
      .Text("-b,--batch", &batches, "1,3,16: sequences at once [1,3]")
      .Number("-r,--repetitions", &repetitions, "of each [3]", 1, 10000);
  parser->Group("Rows and curves")
      .Text("--rows", &rows, "FILE.toml of runs and ratios (lab/preset_rows.h) instead of --preset")
      .Texts("--sweep", &sweeps,
             "NAME=V,V,..: curves over device-budget, link-gbps, a policy or cost; repeat")
      .Flag("--explain", &explain, "says what bounds each run and which option would help")
      .Text("--out", &out, "FOLDER for presets.md and presets.json, which plot.py draws")
      .Text("--text", &text, "FILE that prompts come from and perplexity is measured on [random ids, none]")
      .Number("--quality-tokens", &quality_tokens, "of --text for perplexity, 0 for none [1024]", 0, 1 << 24)
      .Real("--temperature", &temperature, "of answers to prompts of --text [1]", 0, 100);
  parser->Group("Packs that --rows makes")
      .Text("--model", &model, "MODEL_DIR that they are made from")
      .Text("--work", &work, "FOLDER where they are kept")
      .Text("--calibration", &calibration, "FILE to calibrate them on")
      .Number("--calibration-tokens", &calibration_tokens, "of it", 1);
  common.DeclareCosts(parser);
  common.Declare(parser, /*needs_pack=*/false);
}

absl::StatusOr<int> ComparePresets(const CommandContext& context, const CompareOptions& o, bool json) {
  ASSIGN_OR_RETURN(PresetBenchOptions bench, BenchOptionsOf(o));
  ASSIGN_OR_RETURN(const PresetPlan plan, PlanFrom(o.common, o));
  ASSIGN_OR_RETURN(const std::vector<PresetSweep> sweeps, SweepsOf(bench.common, o.sweeps));
  if (!plan.packs.empty() && o.work.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(o.rows, " makes packs: --work is missing"));
  }
  for (const std::string& folder : {o.work, o.out}) {
    if (!folder.empty()) RETURN_IF_ERROR(MakeFolder(folder));
  }
  ASSIGN_OR_RETURN(bench.scratch, MakeScratch());
  const absl::Cleanup remove = [&bench] {
    std::error_code ignored;
    std::filesystem::remove_all(bench.scratch, ignored);
  };
  Output output(o, json, plan);
  if (sweeps.empty() || !plan.ratios.empty()) {
    ASSIGN_OR_RETURN(const std::vector<PresetResult> results, RunPresets(context, bench, plan));
    output.AddRows(SettingText(bench.common, bench), results);
  }
  for (const PresetSweep& sweep : sweeps) {
    ASSIGN_OR_RETURN(const SweepResults results, RunSweep(context, bench, plan, sweep));
    output.AddSweep(results);
  }
  return output.Finish();
}

}  // namespace sluice::cli
