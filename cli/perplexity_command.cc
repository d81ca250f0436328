// `sluice perplexity`: how well the model predicts a text, and how far it is from a base run.
#include <atomic>
#include <cstdio>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "cli/base_run.h"
#include "cli/command.h"
#include "cli/launcher.h"
#include "cli/perplexity_math.h"
#include "cli/score.h"
#include "cli/terminal.h"
#include "cli/tokenizer_source.h"
#include "common/status.h"

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

// What all windows share. Immutable while they run but for the progress.
struct Measurement {
  Client* client = nullptr;
  uint64_t vocab = 0;
  std::optional<int32_t> bos;
  std::vector<int32_t> tokens;
  std::vector<Window> windows;
  std::unique_ptr<BaseRunReader> base;  // or null
  std::unique_ptr<BaseRunWriter> save;  // or null
};

// The window's input is BOS and its tokens without the last, its targets are its tokens. A model without BOS
// cannot predict a window's first token, which then does not count.
ScoreTask TaskOf(const Measurement& m, const Window& window) {
  ScoreTask task;
  const auto begin = m.tokens.begin() + static_cast<int64_t>(window.begin);
  const auto end = m.tokens.begin() + static_cast<int64_t>(window.end);
  if (m.bos.has_value()) {
    task.input.push_back(*m.bos);
    task.targets.assign(begin, end);
  } else {
    task.targets.assign(begin + 1, end);
  }
  task.input.insert(task.input.end(), begin, end - 1);
  task.want_logits = m.base != nullptr || m.save != nullptr;
  return task;
}

// One position with its whole distribution.
absl::Status TakeRow(const Measurement& m, uint64_t position, absl::Span<const float> logits,
                     std::vector<float>* run, std::vector<float>* base, WindowLoss* loss) {
  run->assign(logits.begin(), logits.end());
  LogSoftmax(absl::MakeSpan(*run));
  if (m.save != nullptr) {
    RETURN_IF_ERROR(m.save->WriteRow(position, *run));
  }
  if (m.base != nullptr) {
    base->resize(m.vocab);
    RETURN_IF_ERROR(m.base->ReadRow(position, absl::MakeSpan(*base)));
    ++loss->compared;
    loss->kld += KlDivergence(*base, *run);
    loss->same_top += ArgMax(*base) == ArgMax(*run) ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::Status ScoreWindow(const Measurement& m, const Window& window, WindowLoss* loss) {
  const ScoreTask task = TaskOf(m, window);
  if (task.input.empty()) {
    return absl::OkStatus();
  }
  const uint64_t first_target = window.end - task.targets.size();
  std::vector<float> run;
  std::vector<float> base;
  return Score(m.client, task, m.vocab, [&](const ScoredRows& rows) -> absl::Status {
    for (size_t i = 0; i < rows.argmax.size(); ++i) {
      const uint64_t position = first_target + rows.first + i;
      if (position < window.first_scored) {
        continue;
      }
      loss->AddTarget(rows.target_logprobs[i]);
      if (task.want_logits) {
        RETURN_IF_ERROR(TakeRow(m, position, rows.logits.subspan(i * m.vocab, m.vocab), &run, &base, loss));
      }
    }
    return absl::OkStatus();
  });
}

// Scores all windows, `in_flight` at a time so that inferd computes them together. The result does not depend
// on their order.
absl::StatusOr<std::vector<WindowLoss>> ScoreAll(const Measurement& m, uint64_t in_flight, bool quiet) {
  std::vector<WindowLoss> losses(m.windows.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  absl::Mutex mutex;
  absl::Status first_error;
  uint64_t done = 0;
  Progress progress("perplexity", ProgressUnit::kTokens, quiet);
  const auto work = [&] {
    for (size_t i = next++; i < m.windows.size() && !failed.load(); i = next++) {
      const absl::Status status = ScoreWindow(m, m.windows[i], &losses[i]);
      absl::MutexLock lock(&mutex);
      if (!status.ok() && first_error.ok()) {
        first_error = status;
        failed = true;
      }
      done += losses[i].tokens;
      progress.Update(done, m.tokens.size());
    }
  };
  std::vector<std::thread> workers;
  for (uint64_t i = 0; i < std::min<uint64_t>(in_flight, m.windows.size()); ++i) {
    workers.emplace_back(work);
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
  RETURN_IF_ERROR(first_error);
  return losses;
}

absl::Status OpenBase(const Options& o, const Launcher& launcher, uint64_t window, uint64_t stride,
                      Measurement* m) {
  BaseRunHeader header;
  header.positions = m->tokens.size();
  header.vocab = static_cast<uint32_t>(m->vocab);
  header.window = static_cast<uint32_t>(window);
  header.stride = static_cast<uint32_t>(stride);
  header.token_hash = HashTokens(m->tokens);
  header.model_id = launcher.model().id();
  if (!o.kl_base.empty()) {
    ASSIGN_OR_RETURN(m->base, BaseRunReader::Open(o.kl_base, header));
  }
  if (!o.save_base.empty()) {
    ASSIGN_OR_RETURN(m->save, BaseRunWriter::Create(o.save_base, header));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> EncodeText(const Options& o) {
  TokenizerSource source;
  source.pack = o.common.pack;
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(source));
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.text));
  EncodeOptions encode;
  encode.add_special_tokens = false;
  encode.parse_special = false;
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer->Encode(text, encode));
  tokens.resize(std::min<uint64_t>(tokens.size(), o.max_tokens.value_or(tokens.size())));
  if (tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(o.text, ": the text is empty"));
  }
  return tokens;
}

int PrintResult(const PerplexityResult& result, bool json) {
  if (json) {
    return PrintJson(Json::Object()
                         .Set("ppl", result.ppl)
                         .Set("nll", result.nll)
                         .Set("tokens", result.tokens)
                         .Set("ppl_stderr", result.ppl_stderr)
                         .Set("kld_mean", result.kld_mean.has_value() ? Json(*result.kld_mean) : Json())
                         .Set("same_top", result.same_top.has_value() ? Json(*result.same_top) : Json()));
  }
  std::string text = absl::StrFormat("Final estimate: PPL = %.4f +/- %.5f\n%d tokens, %.5f nats per token\n",
                                     result.ppl, result.ppl_stderr, result.tokens, result.nll);
  if (result.kld_mean.has_value()) {
    absl::StrAppendFormat(&text, "Mean KL divergence from the base run: %.6f nats; same top token: %.3f %%\n",
                          *result.kld_mean, 100 * *result.same_top);
  }
  return WriteStdout(text).ok() ? kExitOk : kExitFailed;
}

absl::StatusOr<int> Perplexity(const CommandContext& context, const Options& o) {
  const uint64_t window = o.window.value_or(512);
  const uint64_t stride = o.stride.value_or(window);
  Measurement m;
  ASSIGN_OR_RETURN(m.tokens, EncodeText(o));
  ASSIGN_OR_RETURN(const std::unique_ptr<Launcher> launcher, Launcher::Launch(context, o.common, o.json));
  if (window > launcher->model().context_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--window ", window, " is more than the server's context of ", launcher->model().context_tokens()));
  }
  m.client = &launcher->client();
  m.vocab = launcher->model().vocab_size();
  if (launcher->model().has_bos_token_id()) {
    m.bos = static_cast<int32_t>(launcher->model().bos_token_id());
  }
  m.windows = PlanWindows(m.tokens.size(), window, stride);
  RETURN_IF_ERROR(OpenBase(o, *launcher, window, stride, &m));
  uint64_t in_flight = 0;
  if (!absl::SimpleAtoi(launcher->server_option("parallel"), &in_flight) || in_flight == 0) {
    in_flight = 1;
  }
  ASSIGN_OR_RETURN(const std::vector<WindowLoss> losses, ScoreAll(m, in_flight, o.common.quiet));
  if (m.save != nullptr) {
    RETURN_IF_ERROR(m.save->Finish());
  }
  return PrintResult(Summarize(losses), o.json);
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
  return code.ok() ? *code : Fail("perplexity", code.status(), options.json);
}

}  // namespace sluice::cli
