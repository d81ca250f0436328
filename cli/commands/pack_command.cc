// `sluice pack`: converts a Hugging Face folder or a GGUF file to a pack.

#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/pack_cache.h"
#include "cli/pack_progress.h"
#include "cli/terminal.h"
#include "common/base/size.h"
#include "common/base/status.h"
#include "common/text/chat_template.h"
#include "pack/writer/pack_writer.h"

namespace sluice::cli {
namespace {

struct Options {
  std::string model_dir;
  std::string out;
  RowOptions rows;
  std::string profile;
  std::optional<std::string> chat_template;
  std::optional<uint64_t> threads;
  bool force = false;
  bool dry_run = false;
  bool json = false;
  bool quiet = false;
};

void Declare(ArgParser* parser, Options* o) {
  parser
      ->Positional("MODEL_DIR", &o->model_dir,
                   "a Hugging Face folder, or a GGUF file (of a split one the first)")
      .Text("--out", &o->out, "PACK: the folder to write")
      .Required()
      .Text("--profile", &o->profile, "DIR of measured usage (a pack or its profile/), for corm")
      .Text("--chat-template", &o->chat_template, "FILE: a Jinja template instead of the folder's")
      .Number("--threads", &o->threads, "that read and encode [all CPUs]", 1, 1024)
      .Flag("--force", &o->force, "replaces an existing pack")
      .Flag("--dry-run", &o->dry_run, "says what it would take, and writes nothing")
      .Flag("--json", &o->json, "prints one JSON object")
      .Flag("-q,--quiet", &o->quiet, "no progress");
  DeclareRowOptions(parser, &o->rows);
}

Json EstimateJson(const PackEstimate& estimate) {
  return Json::Object()
      .Set("bytes", estimate.payload_bytes)
      .Set("free_bytes", estimate.free_bytes)
      .Set("resumable_bytes", estimate.resumable_bytes)
      .Set("memory_bytes", estimate.memory_bytes)
      .Set("rows", estimate.rows_note);
}

std::string EstimateText(const PackEstimate& estimate) {
  std::string text =
      absl::StrCat("needs ", FormatSize(estimate.payload_bytes), " of ", FormatSize(estimate.free_bytes),
                   " free, and ", FormatSize(estimate.memory_bytes), " of memory");
  if (estimate.resumable_bytes > 0) {
    absl::StrAppend(&text, "; ", FormatSize(estimate.resumable_bytes), " are there from an interrupted run");
  }
  if (!estimate.rows_note.empty()) {
    absl::StrAppend(&text, "\n", estimate.rows_note);
  }
  return text;
}

absl::StatusOr<int> Pack(const CommandContext& context, const Options& o) {
  PackOptions options;
  ASSIGN_OR_RETURN(options.recipe, RecipeFromOptions(o.rows.Words()));
  if (!o.profile.empty() && !options.recipe.NeedsUsage()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--profile: the recipe ", options.recipe.name, " reads no profile"));
  }
  options.profile = o.profile;
  options.force = o.force;
  if (o.chat_template.has_value()) {
    ASSIGN_OR_RETURN(options.chat_template, ReadWholeFile(*o.chat_template));
    // A chat template that cannot run is refused now, before the long conversion.
    RETURN_IF_ERROR(Annotate(ChatTemplate::Create(*options.chat_template, {}).status(), *o.chat_template));
  }
  options.threads = static_cast<uint32_t>(o.threads.value_or(0));
  ASSIGN_OR_RETURN(const PackEstimate estimate, EstimatePack(o.model_dir, o.out, options));
  RETURN_IF_ERROR(CheckModelTexts(o.model_dir, estimate.tokenizer_files, estimate.chat_template));
  if (o.dry_run) {
    if (o.json) {
      return PrintJson(EstimateJson(estimate));
    }
    RETURN_IF_ERROR(WriteStdout(absl::StrCat(EstimateText(estimate), "\n")));
    return kExitOk;
  }
  if (!o.quiet && !o.json) {
    std::fprintf(stderr, "%s\n", EstimateText(estimate).c_str());
  }
  PackProgressBar bar(o.quiet);
  ASSIGN_OR_RETURN(const PackSummary summary,
                   PackModel(o.model_dir, o.out, options, bar.callback(), context.interrupt->flag()));
  bar.Finish();
  TellOldProfile(o.out, summary.old_profile);
  if (o.json) {
    return PrintJson(Json::Object()
                         .Set("model_id", summary.model_id)
                         .Set("bytes", summary.bytes)
                         .Set("experts", summary.experts)
                         .Set("seconds", summary.seconds));
  }
  RETURN_IF_ERROR(WriteStdout(absl::StrFormat("%s: model %s, %s, %d experts, %.1f s%s\n", o.out,
                                              summary.model_id, FormatSize(summary.bytes), summary.experts,
                                              summary.seconds, summary.resumed ? " (resumed)" : "")));
  return kExitOk;
}

}  // namespace

int RunPack(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice pack",
                   "Converts a model folder into a pack: one folder, written once, checksummed.");
  Declare(&parser, &options);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (options.rows.bits.has_value() && !options.rows.recipe.empty() && options.rows.recipe != "floe") {
    return parser.UsageError("--bits beside --recipe: only floe leaves bits open (those of gate and down)");
  }
  const absl::StatusOr<int> code = Pack(context, options);
  return code.ok() ? *code : Fail("sluice pack", code.status(), options.json);
}

}  // namespace sluice::cli
