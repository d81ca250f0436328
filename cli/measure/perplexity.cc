#include "cli/measure/perplexity.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/answer.h"
#include "cli/command_line.h"
#include "cli/measure/base_run.h"
#include "cli/prompt.h"
#include "cli/terminal.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "pack/row_layout.h"

namespace sluice::cli {

std::vector<Window> PlanWindows(uint64_t tokens, uint64_t window, uint64_t stride) {
  std::vector<Window> windows;
  uint64_t scored = 0;
  for (uint64_t begin = 0; scored < tokens; begin += stride) {
    const uint64_t end = std::min(begin + window, tokens);
    windows.push_back({begin, end, scored});
    scored = end;
  }
  return windows;
}

PerplexityResult Summarize(absl::Span<const WindowLoss> windows) {
  WindowLoss all;
  for (const WindowLoss& window : windows) {
    all.tokens += window.tokens;
    all.nll += window.nll;
    all.nll_squares += window.nll_squares;
    all.compared += window.compared;
    all.kld += window.kld;
    all.same_top += window.same_top;
  }
  PerplexityResult result;
  result.tokens = all.tokens;
  if (all.tokens > 0) {
    const double n = static_cast<double>(all.tokens);
    result.nll = all.nll / n;
    result.ppl = std::exp(result.nll);
    const double variance = std::max(0.0, all.nll_squares / n - result.nll * result.nll);
    result.ppl_stderr = result.ppl * std::sqrt(variance / n);
  }
  if (all.compared > 0) {
    result.kld_mean = all.kld / static_cast<double>(all.compared);
    result.same_top = static_cast<double>(all.same_top) / static_cast<double>(all.compared);
  }
  return result;
}

void LogSoftmax(absl::Span<float> row) {
  const double top = row[ArgMax(row)];
  double sum = 0;
  for (const float value : row) {
    sum += std::exp(value - top);
  }
  const double norm = top + std::log(sum);
  for (float& value : row) {
    value = static_cast<float>(value - norm);
  }
}

double KlDivergence(absl::Span<const float> base, absl::Span<const float> run) {
  double sum = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double b = base[i];
    sum += std::exp(b) * (b - run[i]);
  }
  return sum;
}

uint32_t ArgMax(absl::Span<const float> row) {
  return static_cast<uint32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

namespace {

// Returns true if every row of `part` is read, whatever the mask.
bool ReadWhole(Part part, const std::string& order) {
  if (order == "up") {
    return part == Part::kUp;
  }
  if (order == "gate") {
    return part == Part::kGate;
  }
  return order != "product" || part != Part::kDown;
}

double ExpertBytes(const Pack& pack, uint32_t layer, uint32_t expert, const std::string& order,
                   double left_out) {
  double bytes = 0;
  for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
    const PartView view = pack.part(layer, expert, part);
    const double whole =
        static_cast<double>(view.rows) * static_cast<double>(RowBytes(view.encoding, view.cols));
    bytes += ReadWhole(part, order) ? whole : whole * (1 - left_out);
  }
  return bytes;
}

}  // namespace

double BytesPerToken(const Pack& pack, const std::string& order, const std::vector<double>& left_out) {
  double bytes = 0;
  for (const DenseTensor& tensor : pack.dense_tensors()) {
    if (dense::IsRowTable(tensor.name)) continue;
    const bool one_row = tensor.name == dense::kEmbed && !pack.config().tied_embeddings;
    bytes += static_cast<double>(RowBytes(tensor.encoding, tensor.cols)) * (one_row ? 1 : tensor.rows);
  }
  for (uint32_t layer = 0; layer < ModelLayers(pack.config()); ++layer) {
    const uint32_t experts = pack.expert_count(layer);
    double sum = 0;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      sum += ExpertBytes(pack, layer, expert, order, layer < left_out.size() ? left_out[layer] : 0);
    }
    bytes += experts == 0 ? 0 : sum / experts * pack.config().layers[layer].moe.top_k;
  }
  return bytes;
}

double ExpertBitsPerWeight(const Pack& pack) {
  double bytes = 0;
  double weights = 0;
  for (uint32_t layer = 0; layer < pack.config().layers.size(); ++layer) {
    for (uint32_t expert = 0; expert < pack.expert_count(layer); ++expert) {
      bytes += ExpertBytes(pack, layer, expert, "none", 0);
      for (const Part part : {Part::kUp, Part::kGate, Part::kDown}) {
        const PartView view = pack.part(layer, expert, part);
        weights += static_cast<double>(view.rows) * view.cols;
      }
    }
  }
  return weights > 0 ? 8 * bytes / weights : 0;
}

namespace {

// State shared by all windows. Constant during the run, except for the progress.
struct Measurement {
  Client* client = nullptr;
  uint64_t vocab = 0;
  std::optional<int32_t> bos;
  std::vector<int32_t> tokens;
  std::vector<Window> windows;
  std::unique_ptr<BaseRunReader> base;  // or null
  std::unique_ptr<BaseRunWriter> save;  // or null
};

// The input of a window is BOS and its tokens without the last one; the targets are its tokens. Without BOS
// the model cannot predict a window's first token, which then does not count.
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

// Adds one position with its whole distribution.
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

// Scores all windows, `in_flight` at a time so that inferd computes them together. Their order does not
// affect the result.
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

// Returns the server's counters; empty without an admin socket.
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

namespace {

namespace api = inference::v1;

struct PredictionCounts {
  double predicted = 0;
  double right = 0;
  double wanted = 0;
  double rows = 0;
  double best_right = 0;
  double best_found = 0;
};

struct Counts {
  double requests = 0;
  double hits = 0;
  double late = 0;
  double skipped = 0;
  double issued = 0;
  double useful = 0;
  PredictionCounts predictions;
  double routed_rows = 0;
  double single = 0;
  double pairs = 0;
  double exchanged = 0;
  double neurons = 0;
  double neuron_hits = 0;
  double neurons_fetched = 0;
  double neurons_left_out = 0;
  double neurons_predicted = 0;
  double neurons_right = 0;
  double neurons_wanted = 0;
};

// Adds `sign` times the counts of a layer.
void Add(const api::LayerPredictions& from, double sign, PredictionCounts* to) {
  const auto add = [sign](uint64_t value, double* sum) { *sum += sign * static_cast<double>(value); };
  add(from.predicted(), &to->predicted);
  add(from.right(), &to->right);
  add(from.wanted(), &to->wanted);
  add(from.rows(), &to->rows);
  add(from.best_right(), &to->best_right);
  add(from.best_found(), &to->best_found);
}

void Add(const api::LayerStats& layer, double sign, Counts* to) {
  const auto add = [sign](uint64_t value, double* sum) { *sum += sign * static_cast<double>(value); };
  add(layer.experts().requests(), &to->requests);
  add(layer.experts().hits(), &to->hits);
  add(layer.experts().late(), &to->late);
  add(layer.experts().skipped(), &to->skipped);
  add(layer.experts().prefetch_issued(), &to->issued);
  add(layer.experts().prefetch_useful(), &to->useful);
  Add(layer.predictions(), sign, &to->predictions);
  add(layer.routing().rows(), &to->routed_rows);
  add(layer.routing().single(), &to->single);
  add(layer.routing().pairs(), &to->pairs);
  add(layer.routing().exchanged(), &to->exchanged);
  add(layer.neurons().requested(), &to->neurons);
  add(layer.neurons().hits(), &to->neuron_hits);
  add(layer.neurons().fetched(), &to->neurons_fetched);
  add(layer.neurons().left_out(), &to->neurons_left_out);
  add(layer.neurons().predicted(), &to->neurons_predicted);
  add(layer.neurons().right(), &to->neurons_right);
  add(layer.neurons().wanted(), &to->neurons_wanted);
}

Json ShareJson(double part, double whole) { return whole > 0 ? Json(part / whole) : Json(); }

Json Shares(const Counts& c) {
  return Json::Object()
      .Set("requests", static_cast<uint64_t>(c.requests))
      .Set("hit_rate", ShareJson(c.hits, c.requests))
      .Set("late_share", ShareJson(c.late, c.requests))
      .Set("skipped", static_cast<uint64_t>(c.skipped))
      .Set("predictor_precision", ShareJson(c.predictions.right, c.predictions.predicted))
      .Set("predictor_recall", ShareJson(c.predictions.right, c.predictions.wanted))
      .Set("best_prediction_right", ShareJson(c.predictions.best_right, c.predictions.rows))
      .Set("best_expert_predicted", ShareJson(c.predictions.best_found, c.predictions.rows))
      .Set("prefetched", static_cast<uint64_t>(c.issued))
      .Set("prefetched_active", ShareJson(c.useful + c.late, c.issued))
      .Set("single_share", ShareJson(c.single, c.routed_rows))
      .Set("exchanged_share", ShareJson(c.exchanged, c.pairs))
      .Set("neurons_requested", static_cast<uint64_t>(c.neurons))
      .Set("neuron_hit_rate", ShareJson(c.neuron_hits, c.neurons))
      .Set("neurons_fetched", static_cast<uint64_t>(c.neurons_fetched))
      .Set("neurons_left_out_share", ShareJson(c.neurons_left_out, c.neurons))
      .Set("neurons_predicted", static_cast<uint64_t>(c.neurons_predicted))
      .Set("neuron_precision", ShareJson(c.neurons_right, c.neurons_predicted))
      .Set("neuron_recall", ShareJson(c.neurons_right, c.neurons_wanted));
}

// Returns the counters of one layer by prediction depth.
Json DepthsJson(const api::LayerStats* before, const api::LayerStats& after) {
  Json depths = Json::Array();
  for (const api::DepthPredictions& at : after.depths()) {
    PredictionCounts counts;
    Add(at.predictions(), 1, &counts);
    for (int i = 0; before != nullptr && i < before->depths_size(); ++i) {
      if (before->depths(i).depth() == at.depth()) Add(before->depths(i).predictions(), -1, &counts);
    }
    depths.Append(Json::Object()
                      .Set("depth", uint64_t{at.depth()})
                      .Set("predicted", static_cast<uint64_t>(counts.predicted))
                      .Set("predictor_precision", ShareJson(counts.right, counts.predicted))
                      .Set("predictor_recall", ShareJson(counts.right, counts.wanted)));
  }
  return depths;
}

}  // namespace

Json ExpertsJson(const api::GetStatsResponse& before, const api::GetStatsResponse& after) {
  Counts all;
  Json layers = Json::Array();
  for (int i = 0; i < after.layers_size(); ++i) {
    Counts counts;
    Add(after.layers(i), 1, &counts);
    if (i < before.layers_size()) {
      Add(before.layers(i), -1, &counts);
      Add(before.layers(i), -1, &all);
    }
    Add(after.layers(i), 1, &all);
    const api::LayerStats* from = i < before.layers_size() ? &before.layers(i) : nullptr;
    layers.Append(Shares(counts).Set("depths", DepthsJson(from, after.layers(i))));
  }
  return Shares(all).Set("layers", std::move(layers));
}

}  // namespace sluice::cli
