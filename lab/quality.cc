#include "lab/quality.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/output_files.h"
#include "common/base/file_io.h"
#include "common/base/status.h"
#include "inferd/policy/policies.h"
#include "lab/quality_rows.h"
#include "lab/work_packs.h"
#include "pack/writer/recipe.h"

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
  ASSIGN_OR_RETURN(PartialFile file, PartialFile::Create(path));
  RETURN_IF_ERROR(file.WriteAt(0, text));
  return file.Commit();
}

// Text and base run shared by all rows of a call.
struct Yardstick {
  std::string text;  // TextIdentity() of the text
  std::string base;  // file of the first row's distributions; empty: no comparison
};

std::vector<std::string> ArgumentsOf(const Options& o, const QualityRow& row, const std::string& pack) {
  std::vector<std::string> args = {"perplexity", "--pack", pack, "--text", o.text, "--kv", "f32", "--json"};
  if (o.max_tokens.has_value()) {
    args.insert(args.end(), {"--max-tokens", absl::StrCat(*o.max_tokens)});
  }
  args.insert(args.end(), row.options.begin(), row.options.end());
  return args;
}

// A finished run is identified by its arguments, the text's content and its base run.
absl::StatusOr<QualityResult> MeasureRow(const CommandContext& context, const Options& o,
                                         std::vector<std::string> args, const Yardstick& yardstick,
                                         bool is_base) {
  const std::string identity =
      absl::StrCat(absl::StrJoin(args, "\n"), "\n", yardstick.text, "\n", yardstick.base);
  const std::string done = Path(o, absl::StrCat("run-", DigestName(identity), ".json"));
  if (FileExists(done) && (!is_base || yardstick.base.empty() || FileExists(yardstick.base))) {
    ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(done));
    return ParsePerplexityJson(text);
  }
  if (!yardstick.base.empty()) {
    args.insert(args.end(), {is_base ? "--save-base" : "--kl-base", yardstick.base});
  }
  ASSIGN_OR_RETURN(const std::string text, RunSluice(context, args));
  ASSIGN_OR_RETURN(const QualityResult result, ParsePerplexityJson(text));
  RETURN_IF_ERROR(Write(done, text));
  return result;
}

absl::StatusOr<std::vector<QualityResult>> MeasureRows(const CommandContext& context, const Options& o,
                                                       const QualityPlan& plan) {
  Yardstick yardstick;
  ASSIGN_OR_RETURN(yardstick.text, TextIdentity(o.text));
  std::vector<QualityResult> results;
  const PackWork packs = {o.model, o.work, o.calibration, o.calibration_tokens, /*whole_profile=*/false};
  for (const QualityRow& row : plan.rows) {
    ASSIGN_OR_RETURN(const std::string pack, EnsurePack(context, packs, plan.packs, row.pack));
    const std::vector<std::string> args = ArgumentsOf(o, row, pack);
    // Whole distributions of a long text would fill the disk, so divergences need --max-tokens.
    if (results.empty() && o.max_tokens.has_value()) {
      const std::string identity = absl::StrCat(absl::StrJoin(args, "\n"), "\n", yardstick.text);
      yardstick.base = Path(o, absl::StrCat("base-", DigestName(identity), ".lp"));
    }
    ASSIGN_OR_RETURN(const QualityResult result, MeasureRow(context, o, args, yardstick, results.empty()));
    results.push_back(result);
    std::fprintf(stderr, "%zu of %zu: %s: %.4f\n", results.size(), plan.rows.size(), row.name.c_str(),
                 result.ppl);
  }
  return results;
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
    const std::vector<std::string> presets = SplitList(o.presets);
    if (presets.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--presets '", o.presets, "' names none"));
    }
    // Checks presets and recipes now, not after the rows before them.
    for (const std::string& preset : presets) {
      RETURN_IF_ERROR(inferd::PoliciesOf(preset, {}, inferd::DeviceKind::kHost).status());
    }
    std::vector<QualityRecipe> recipes;
    for (const std::string& word : SplitList(o.recipes)) {
      RecipeOptions words;
      words.recipe = word;
      ASSIGN_OR_RETURN(const Recipe recipe, RecipeFromOptions(words));
      recipes.push_back({word, recipe.NeedsUsage()});
    }
    return PlanOf(recipes, presets);
  }
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.rows));
  return ParseQualityPlan(text, o.rows);
}

absl::StatusOr<int> Quality(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const QualityPlan plan, PlanFrom(o));
  RETURN_IF_ERROR(MakeFolder(o.work));
  RETURN_IF_ERROR(MakeFolder(o.out));
  ASSIGN_OR_RETURN(const std::vector<QualityResult> results, MeasureRows(context, o, plan));
  const std::string table = QualityTable(plan, results);
  RETURN_IF_ERROR(Write(absl::StrCat(o.out, "/quality_table.md"), table));
  Json json = ResultsJson(plan, results);
  RETURN_IF_ERROR(Write(absl::StrCat(o.out, "/quality.json"), json.Dump()));
  return o.json ? PrintJson(json) : (WriteStdout(table).ok() ? kExitOk : kExitFailed);
}

}  // namespace

int RunQuality(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice-lab quality", "Measures what compression and sparsity cost.");
  parser.Text("--model", &options.model, "MODEL_DIR to pack")
      .Required()
      .Text("--text", &options.text, "FILE to measure perplexity on")
      .Required()
      .Text("--work", &options.work, "FOLDER for packs and finished runs; a second call goes on from there")
      .Required()
      .Text("--out", &options.out, "FOLDER for quality_table.md and quality.json, which plot.py draws")
      .Required()
      .Text("--calibration", &options.calibration, "FILE to calibrate on (sparsity and corm need it)")
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
  return code.ok() ? *code : Fail("sluice-lab quality", code.status(), options.json);
}

}  // namespace sluice::cli
