// `sluice quality`: what compression and sparsity cost, as a table and a plot, over many packs and runs in
// one call. Finished runs are kept, so that an interrupted call goes on where it was.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/quality_rows.h"
#include "cli/self_run.h"
#include "cli/work_packs.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string model;
  std::string text;
  std::string calibration;
  std::string rows;
  std::string recipes = "bf16,q8,q4,q2";
  std::string presets = "exact";
  std::string work;
  std::string out;
  std::optional<uint64_t> max_tokens;
  std::optional<uint64_t> calibration_tokens;
  bool json = false;
};

std::string Path(const Options& o, const std::string& name) { return absl::StrCat(o.work, "/", name); }

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<QualityResult> MeasureRow(const CommandContext& context, const Options& o,
                                         const QualityRow& row, const std::string& pack, bool is_base) {
  std::vector<std::string> args = {"perplexity", "--pack", pack, "--text", o.text, "--kv", "f32", "--json"};
  if (o.max_tokens.has_value()) {
    args.insert(args.end(), {"--max-tokens", absl::StrCat(*o.max_tokens)});
  }
  args.insert(args.end(), row.options.begin(), row.options.end());
  const std::string base = Path(o, absl::StrFormat("base-%d.lp", o.max_tokens.value_or(0)));
  const std::string done = Path(o, absl::StrCat("run-", DigestName(absl::StrJoin(args, "\n")), ".json"));
  if (FileExists(done) && (!is_base || !o.max_tokens.has_value() || FileExists(base))) {
    ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(done));
    return ParsePerplexityJson(text);
  }
  // Whole distributions of a long text would fill a disk: divergences only with --max-tokens.
  if (o.max_tokens.has_value()) {
    args.insert(args.end(), {is_base ? "--save-base" : "--kl-base", base});
  }
  ASSIGN_OR_RETURN(const std::string text, RunSelf(context, args));
  ASSIGN_OR_RETURN(const QualityResult result, ParsePerplexityJson(text));
  RETURN_IF_ERROR(Write(done, text));
  return result;
}

Json ResultsJson(const QualityPlan& plan, const std::vector<QualityResult>& results) {
  Json rows = Json::Array();
  const auto optional = [](const std::optional<double>& value) {
    return value.has_value() ? Json(*value) : Json();
  };
  for (size_t i = 0; i < results.size(); ++i) {
    const QualityResult& r = results[i];
    rows.Append(Json::Object()
                    .Set("series", plan.rows[i].series)
                    .Set("run", plan.rows[i].name)
                    .Set("ppl", r.ppl)
                    .Set("ppl_stderr", r.ppl_stderr)
                    .Set("tokens", r.tokens)
                    .Set("bits_per_weight", r.bits_per_weight)
                    .Set("bytes_per_token", r.bytes_per_token)
                    .Set("sparsity", optional(r.sparsity))
                    .Set("kld_mean", optional(r.kld_mean))
                    .Set("same_top", optional(r.same_top))
                    .Set("reference", optional(plan.rows[i].reference)));
  }
  return Json::Object().Set("rows", std::move(rows));
}

absl::StatusOr<QualityPlan> PlanFrom(const Options& o) {
  if (o.rows.empty()) {
    return PlanOf(SplitList(o.recipes), SplitList(o.presets));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.rows));
  return ParseQualityPlan(text, o.rows);
}

absl::StatusOr<int> Quality(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const QualityPlan plan, PlanFrom(o));
  std::error_code error;
  std::filesystem::create_directories(o.work, error);
  std::filesystem::create_directories(o.out, error);
  std::vector<QualityResult> results;
  const PackWork packs = {o.model, o.work, o.calibration, o.calibration_tokens, /*whole_profile=*/false};
  for (const QualityRow& row : plan.rows) {
    ASSIGN_OR_RETURN(const std::string dir, EnsurePack(context, packs, plan.packs, row.pack));
    ASSIGN_OR_RETURN(const QualityResult result, MeasureRow(context, o, row, dir, results.empty()));
    results.push_back(result);
    std::fprintf(stderr, "%zu of %zu: %s: %.4f\n", results.size(), plan.rows.size(), row.name.c_str(),
                 result.ppl);
  }
  const std::string table = QualityTable(plan, results);
  RETURN_IF_ERROR(Write(absl::StrCat(o.out, "/quality_table.md"), table));
  RETURN_IF_ERROR(Write(absl::StrCat(o.out, "/quality.svg"), QualityPlot(plan, results)));
  return o.json ? PrintJson(ResultsJson(plan, results)) : (WriteStdout(table).ok() ? kExitOk : kExitFailed);
}

}  // namespace

int RunQuality(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice quality", "Measures what compression and sparsity cost: a table and a plot.");
  parser.Text("--model", &options.model, "MODEL_DIR to pack")
      .Required()
      .Text("--text", &options.text, "FILE to measure perplexity on")
      .Required()
      .Text("--work", &options.work, "FOLDER for packs and finished runs; a second call goes on from there")
      .Required()
      .Text("--out", &options.out, "FOLDER for quality_table.md and quality.svg")
      .Required()
      .Text("--calibration", &options.calibration, "FILE to calibrate on (rows with sparsity need it)")
      .Text("--rows", &options.rows, "FILE.toml of packs and runs; else every recipe with every preset")
      .Text("--recipes", &options.recipes, "LIST of `sluice pack --recipe` [bf16,q8,q4,q2]")
      .Text("--presets", &options.presets, "LIST of presets [exact]")
      .Number("--max-tokens", &options.max_tokens, "of the text; adds KL divergence from the first run", 2)
      .Number("--calibration-tokens", &options.calibration_tokens, "of the calibration text", 1)
      .Flag("--json", &options.json, "prints one JSON object");
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  const absl::StatusOr<int> code = Quality(context, options);
  return code.ok() ? *code : Fail("quality", code.status(), options.json);
}

}  // namespace sluice::cli
