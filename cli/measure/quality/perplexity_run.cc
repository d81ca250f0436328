#include "cli/measure/quality/perplexity_run.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/client/score.h"
#include "cli/client/tokenizer_source.h"
#include "cli/measure/quality/base_run.h"
#include "cli/measure/quality/bytes_per_token.h"
#include "cli/measure/quality/expert_run.h"
#include "cli/ui/command.h"
#include "cli/ui/terminal.h"
#include "common/status.h"

namespace sluice::cli {
namespace {

// State shared by all windows. Immutable while they run but for the progress.
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

absl::Status OpenBase(const PerplexityTask& o, const Launcher& launcher, Measurement* m) {
  BaseRunHeader header;
  header.positions = m->tokens.size();
  header.vocab = static_cast<uint32_t>(m->vocab);
  header.window = static_cast<uint32_t>(o.window);
  header.stride = static_cast<uint32_t>(o.stride);
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

// Counters of the server; empty if it has no admin socket here.
absl::StatusOr<api::GetStatsResponse> ReadStats(Launcher* launcher) {
  return launcher->client().has_admin() ? launcher->client().GetStats() : api::GetStatsResponse();
}

SparsityRun SparsityOf(const api::GetStatsResponse& stats_before, const api::GetStatsResponse& stats_after) {
  const auto& before = stats_before.sparsity();
  const auto& after = stats_after.sparsity();
  SparsityRun run;
  double neurons = 0;
  double kept = 0;
  for (int layer = 0; layer < after.size(); ++layer) {
    const double n = static_cast<double>(after[layer].neurons() - before[layer].neurons());
    const double k = static_cast<double>(after[layer].kept() - before[layer].kept());
    run.by_layer.push_back(n > 0 ? 1 - k / n : 0);
    neurons += n;
    kept += k;
  }
  run.mean = neurons > 0 ? 1 - kept / neurons : 0;
  return run;
}

}  // namespace

absl::StatusOr<PerplexityRun> MeasurePerplexity(Launcher* launcher, const PerplexityTask& task) {
  Measurement m;
  ASSIGN_OR_RETURN(m.tokens, EncodeTextFile(launcher->pack().dir(), task.text, task.max_tokens));
  if (task.window > launcher->model().context_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("--window ", task.window,
                                                   " is more than the server's context of ",
                                                   launcher->model().context_tokens()));
  }
  m.client = &launcher->client();
  m.vocab = launcher->model().vocab_size();
  if (launcher->model().has_bos_token_id()) {
    m.bos = static_cast<int32_t>(launcher->model().bos_token_id());
  }
  m.windows = PlanWindows(m.tokens.size(), task.window, task.stride);
  RETURN_IF_ERROR(OpenBase(task, *launcher, &m));
  uint64_t in_flight = 0;
  if (!absl::SimpleAtoi(launcher->server_option("parallel"), &in_flight) || in_flight == 0) {
    in_flight = 1;
  }
  ASSIGN_OR_RETURN(const api::GetStatsResponse before, ReadStats(launcher));
  ASSIGN_OR_RETURN(const std::vector<WindowLoss> losses, ScoreAll(m, in_flight, task.quiet));
  ASSIGN_OR_RETURN(const api::GetStatsResponse after, ReadStats(launcher));
  PerplexityRun run;
  run.result = Summarize(losses);
  if (run.result.tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        task.text, ": ", m.tokens.size(),
        " tokens, none with a prediction: the model has no BOS to predict a window's first from"));
  }
  if (m.save != nullptr) {
    RETURN_IF_ERROR(m.save->Finish());
  }
  run.sparsity = SparsityOf(before, after);
  if (after.layers_size() > 0) {
    run.experts = ExpertsJson(before, after);
  }
  run.bytes_per_token =
      BytesPerToken(launcher->pack(), launcher->server_option("sparsity"), run.sparsity.by_layer);
  run.bits_per_weight = ExpertBitsPerWeight(launcher->pack());
  return run;
}

}  // namespace sluice::cli
