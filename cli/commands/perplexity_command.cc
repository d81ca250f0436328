// `sluice perplexity`: measures how well the model predicts a text, and its divergence from a base run.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line.h"
#include "cli/launcher.h"
#include "cli/measure/perplexity.h"
#include "common/base/size.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

struct Options {
  CommonOptions common;
  std::string text;
  std::optional<uint64_t> window;
  std::optional<uint64_t> stride;
  std::optional<uint64_t> max_tokens;
  std::string kl_base;
  std::string save_base;
  bool json = false;
};

Json ResultJson(const PerplexityRun& run) {
  const PerplexityResult& result = run.result;
  Json json = Json::Object()
                  .Set("ppl", result.ppl)
                  .Set("nll", result.nll)
                  .Set("tokens", result.tokens)
                  .Set("ppl_stderr", result.ppl_stderr)
                  .Set("kld_mean", result.kld_mean.has_value() ? Json(*result.kld_mean) : Json())
                  .Set("same_top", result.same_top.has_value() ? Json(*result.same_top) : Json())
                  .Set("bytes_per_token", run.bytes_per_token)
                  .Set("bits_per_weight", run.bits_per_weight);
  if (!run.sparsity.by_layer.empty()) {
    json.Set("sparsity", run.sparsity.mean).Set("sparsity_by_layer", run.sparsity.by_layer);
  }
  if (run.experts.has_value()) {
    json.Set("experts", *run.experts);
  }
  return json;
}

int PrintResult(const PerplexityRun& run, bool json) {
  if (json) {
    return PrintJson(ResultJson(run));
  }
  const PerplexityResult& result = run.result;
  std::string text = absl::StrFormat("Final estimate: PPL = %.4f +/- %.5f\n%d tokens, %.5f nats per token\n",
                                     result.ppl, result.ppl_stderr, result.tokens, result.nll);
  if (result.kld_mean.has_value()) {
    absl::StrAppendFormat(&text, "Mean KL divergence from the base run: %.6f nats; same top token: %.3f %%\n",
                          *result.kld_mean, 100 * *result.same_top);
  }
  if (!run.sparsity.by_layer.empty()) {
    absl::StrAppendFormat(&text, "Neurons left out: %.2f %%; by layer", 100 * run.sparsity.mean);
    for (const double share : run.sparsity.by_layer) {
      absl::StrAppendFormat(&text, " %.1f", 100 * share);
    }
    text += "\n";
  }
  absl::StrAppend(&text, "A generated token reads ", FormatSize(static_cast<uint64_t>(run.bytes_per_token)),
                  " of weights\n");
  return WriteStdout(text).ok() ? kExitOk : kExitFailed;
}

absl::StatusOr<int> Perplexity(const CommandContext& context, const Options& o) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  PerplexityTask task;
  task.text = o.text;
  task.window = o.window.value_or(task.window);
  task.stride = o.stride.value_or(task.window);
  task.max_tokens = o.max_tokens.value_or(task.max_tokens);
  task.kl_base = o.kl_base;
  task.save_base = o.save_base;
  task.quiet = o.common.quiet;
  ASSIGN_OR_RETURN(const PerplexityRun run, MeasurePerplexity(launcher.get(), task));
  return PrintResult(run, o.json);
}

}  // namespace

int RunPerplexity(const CommandContext& context, const std::vector<std::string>& args) {
  Options options;
  ArgParser parser("sluice perplexity", "Measures perplexity on a text.");
  parser.Text("--text", &options.text, "FILE: taken as bytes, encoded without BOS, special tokens as text")
      .Required()
      .Number("--window", &options.window, "tokens that go through the model together [512]", 2, 1u << 30)
      .Number("--stride", &options.stride, "tokens from window to window [the window]", 1, 1u << 30)
      .Number("--max-tokens", &options.max_tokens, "takes the first N tokens only", 1)
      .Text("--kl-base", &options.kl_base, "FILE of a base run: adds KL divergence and same-top share")
      .Text("--save-base", &options.save_base,
            "FILE: saves this run as a base (4 bytes x vocabulary x tokens)")
      .Flag("--json", &options.json, "prints one JSON object");
  options.common.Declare(&parser);
  if (const auto exit_code = parser.Parse(args)) {
    return *exit_code;
  }
  if (options.stride.value_or(1) > options.window.value_or(512)) {
    return parser.UsageError("--stride must not be larger than --window: every token counts once");
  }
  if (!options.kl_base.empty() && !options.save_base.empty()) {
    return parser.UsageError("--kl-base and --save-base exclude each other");
  }
  const absl::StatusOr<int> code = Perplexity(context, options);
  return code.ok() ? *code : Fail("sluice perplexity", code.status(), options.json);
}

}  // namespace sluice::cli
