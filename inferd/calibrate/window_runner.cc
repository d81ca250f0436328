#include "inferd/calibrate/window_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/status.h"
#include "inferd/model/expert_source.h"
#include "kernels/scalar_math.h"

namespace sluice::inferd {
absl::Status CalibrationRouting::Decide(const RoutingInput& input, Queue* /*queue*/) {
  const RouterArgs& args = input.model;
  const bool single = static_cast<int>(input.layer) == single_layer_;
  if (!single && gating_ == nullptr) return absl::OkStatus();
  const uint32_t ranks = args.top_k + (args.shared ? 1 : 0);
  const uint64_t bytes = uint64_t{args.tokens} * ranks * sizeof(float);
  float* weights = reinterpret_cast<float*>(backend_->HostWrite(args.weights, bytes));
  if (weights == nullptr) {
    return absl::InternalError("the router's staging memory cannot be written");
  }
  for (uint32_t token = 0; gating_ != nullptr && token < args.tokens; ++token) {
    const absl::Span<float> of_token(weights + uint64_t{token} * ranks, args.top_k);
    KeepExperts(of_token, ExpertsKept(of_token, gating_->sensitivities[input.layer], gating_->threshold));
  }
  // The best expert gets the weight of all, like the gating at run time.
  for (uint32_t token = 0; single && token < args.tokens; ++token, weights += ranks) {
    weights[0] = std::accumulate(weights, weights + args.top_k, 0.0f);
    std::fill(weights + 1, weights + args.top_k, 0.0f);
  }
  return absl::OkStatus();
}

// Forwards to the running window's hook, if it has one. The forward pass is created once with a fixed hook.
class WindowRunner::SwitchedHook final : public LayerObserver {
 public:
  void Set(LayerObserver* observer) { observer_ = observer; }
  absl::Status AfterRouter(const RouterState& state) override {
    return observer_ == nullptr ? absl::OkStatus() : observer_->AfterRouter(state);
  }
  absl::Status BeforeExperts(uint32_t layer, const MoeExpertsArgs& args) override {
    return observer_ == nullptr ? absl::OkStatus() : observer_->BeforeExperts(layer, args);
  }
  absl::Status AfterLayer(const LayerEnd& end) override {
    return observer_ == nullptr ? absl::OkStatus() : observer_->AfterLayer(end);
  }

 private:
  LayerObserver* observer_ = nullptr;
};

WindowRunner::WindowRunner(const ModelParts& parts, uint32_t positions,
                           std::unique_ptr<SparsityPolicy> sparsity)
    : parts_(parts),
      positions_(positions),
      sparsity_(std::move(sparsity)),
      observer_(std::make_unique<SwitchedHook>()),
      routing_(std::make_unique<CalibrationRouting>(parts.backend)),
      batch_(positions, 1) {}

WindowRunner::~WindowRunner() = default;

absl::StatusOr<std::unique_ptr<WindowRunner>> WindowRunner::Create(const ModelParts& parts,
                                                                   uint32_t positions,
                                                                   std::unique_ptr<SparsityPolicy> sparsity) {
  const BackendLimits& limits = parts.plan->backend;
  if (positions > limits.max_tokens || positions > limits.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "windows of ", positions, " positions, but a step of this server holds ", limits.max_tokens,
        " rows (--prefill-chunk) and a sequence ", limits.max_context, " (--context)"));
  }
  std::unique_ptr<WindowRunner> runner(new WindowRunner(parts, positions, std::move(sparsity)));
  RETURN_IF_ERROR(runner->Setup());
  return runner;
}

absl::Status WindowRunner::Setup() {
  options_ = parts_.plan->forward;
  options_.max_tokens = positions_;
  options_.max_sequences = 1;
  options_.context = positions_;
  options_.logit_rows = LogitRowsFor(parts_.config->vocab, positions_);
  options_.max_candidates = 1;
  const uint32_t pages = KvPages::PeakPages(positions_, WidestWindow(*parts_.config), positions_);
  // K and V stay in float32: rounding to 16 bits would hide the small changes from which derivatives are
  // computed.
  ASSIGN_OR_RETURN(kv_, KvCache::Create(*parts_.config, KvType::kF32, pages, 1, positions_, parts_.backend));
  ASSIGN_OR_RETURN(states_, RecurrentStates::Create(*parts_.config, 1, /*kept=*/0, parts_.backend));
  ASSIGN_OR_RETURN(forward_,
                   Forward::Create(*parts_.config, options_,
                                   {parts_.backend, parts_.weights, kv_.get(), states_.get(), parts_.experts,
                                    parts_.residency, routing_.get(), sparsity_.get(), observer_.get()}));
  uint64_t width = std::max(parts_.config->hidden, MaxExperts(*parts_.config));
  for (const LayerConfig& layer : parts_.config->layers) {
    width = std::max<uint64_t>(width, layer.moe.expert_width);
  }
  for (Rows& rows : scratch_) {
    ASSIGN_OR_RETURN(const BufferId buffer,
                     parts_.backend->Allocate(positions_ * width * sizeof(float), BufferKind::kStaging));
    rows = {{buffer, 0}, width};
  }
  if (!kv_->pages().Grow(0, positions_)) return absl::InternalError("no pages for a calibration window");
  return absl::OkStatus();
}

absl::StatusOr<double> WindowRunner::Run(const CalibrationWindow& window, const Hooks& hooks, uint64_t step) {
  observer_->Set(hooks.observer);
  routing_->Use(hooks.single_expert_layer, hooks.gating);
  batch_.Clear(step);
  // Recurrent states of an earlier step are never used, since every window begins at position 0.
  batch_.Add(window.input, {.pages = kv_->pages().table(0),
                            .state = states_->slots(0),
                            .long_sequence = window.input.size() > ShortRopeLimit(*parts_.config)});
  parts_.experts->BeginStep({.number = step, .cpu = false});
  if (hooks.residual != nullptr) {
    RETURN_IF_ERROR(WriteResidual(hooks.residual, batch_.tokens()));
    RETURN_IF_ERROR(forward_->RunFrom(hooks.first_layer, &batch_));
  } else {
    RETURN_IF_ERROR(forward_->Run(&batch_));
  }
  RETURN_IF_ERROR(forward_->Await());
  if (batch_.any_lost()) {
    return absl::DataLossError(absl::StrCat("extent ", batch_.failed_extent(0), " of the pack is damaged"));
  }
  return hooks.loss ? Loss(window) : 0.0;
}

absl::Status WindowRunner::WriteResidual(const float* values, uint32_t rows) {
  const Rows residual = forward_->residual();
  const uint32_t hidden = parts_.config->hidden;
  for (uint32_t row = 0; row < rows; ++row) {
    RETURN_IF_ERROR(parts_.backend->queue().Upload(values + uint64_t{row} * hidden, hidden * sizeof(float),
                                                   residual.base + row * residual.stride * sizeof(float)));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> WindowRunner::Loss(const CalibrationWindow& window) {
  const uint32_t vocab = parts_.config->vocab;
  const uint32_t first = static_cast<uint32_t>(window.input.size() - window.targets.size());
  double loss = 0;
  std::vector<uint32_t> rows;
  for (uint32_t begin = 0; begin < window.targets.size(); begin += options_.logit_rows) {
    const uint32_t count =
        std::min<uint32_t>(options_.logit_rows, static_cast<uint32_t>(window.targets.size()) - begin);
    rows.resize(count);
    std::iota(rows.begin(), rows.end(), first + begin);
    ASSIGN_OR_RETURN(const LogitRows logits, forward_->Logits(rows, 1, /*whole=*/true));
    for (uint32_t i = 0; i < count; ++i) {
      const float logit =
          logits.logits[uint64_t{i} * vocab + static_cast<uint32_t>(window.targets[begin + i])];
      loss += double{logits.log_sum_exp[i]} - double{logit};
    }
  }
  if (!std::isfinite(loss)) return absl::InternalError("the loss of a calibration window is not finite");
  return loss;
}

const float* WindowRunner::HostRow(Rows rows, uint32_t row, uint32_t width) const {
  return reinterpret_cast<const float*>(parts_.backend->HostRead(
      rows.base + row * rows.stride * sizeof(float), uint64_t{width} * sizeof(float)));
}

absl::Status WindowRunner::Read(Rows from, uint32_t rows, uint32_t width, float* to) const {
  Queue& queue = parts_.backend->queue();
  for (uint32_t row = 0; row < rows; ++row) {
    RETURN_IF_ERROR(queue.Download(from.base + row * from.stride * sizeof(float), width * sizeof(float),
                                   to + uint64_t{row} * width));
  }
  return queue.Wait(queue.Record());
}

}  // namespace sluice::inferd
