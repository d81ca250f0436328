#include "inferd/calibrate/stages/predictor_stage.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "common/mutex.h"
#include "common/status.h"
#include "inferd/calibrate/stages/predictor_rows.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kUnits = 512;        // FloE 3.3.1
constexpr uint64_t kHeldOutShare = 10;  // one in this many positions
constexpr size_t kGroup = 16;           // networks per unit
constexpr auto kAskEvery = std::chrono::milliseconds(50);

struct Split {
  Split(const RowSource& rows)
      : held_out_rows(rows.rows() / kHeldOutShare),
        training(rows, 0, rows.rows() - held_out_rows),
        held_out(rows, rows.rows() - held_out_rows, held_out_rows) {}
  const uint64_t held_out_rows;
  const RowRange training;
  const RowRange held_out;
};

absl::StatusOr<ChosenExperts> ReadChosen(const FeatureRecorder& features, const ModelConfig& config,
                                         uint32_t layer) {
  ChosenExperts chosen{config.layers[layer].moe.experts, config.layers[layer].moe.top_k, {}};
  ASSIGN_OR_RETURN(chosen.ids, features.ReadExperts(layer));
  return chosen;
}

}  // namespace

PredictorStage::PredictorStage(const ModelConfig& config, const ProfileKeys& keys,
                               const std::vector<CalibrationWindow>& windows, const FeatureRecorder* features,
                               PredictorTraining training)
    : config_(config), features_(features), training_(std::move(training)) {
  for (uint32_t layer = 0; layer + 1 < config.layers.size(); ++layer) {
    if (config.layers[layer].moe.experts > 0 && config.layers[layer + 1].moe.experts > 0) {
      layers_.push_back(layer);
    }
  }
  uint64_t position = 0;
  for (const CalibrationWindow& window : windows) {
    const uint64_t end = position + window.input.size();
    // Positions with a next one in the same window: only these have a target.
    for (; position + 1 < end && position + 1 < features->positions(); ++position) {
      followed_.push_back(position);
    }
    position = end;
  }
  profile_.model_id = keys.model_id;
  profile_.tokens = features->positions();
  profile_.learned.resize(layers_.size());
}

uint64_t PredictorStage::units() const { return (layers_.size() + 1 + kGroup - 1) / kGroup; }

// Trains the networks of a unit on several threads that draw jobs from a shared counter. The calling thread
// does not train but polls for cancellation, since training may take minutes.
absl::Status PredictorStage::RunUnit(uint64_t unit) {
  const size_t end = std::min(layers_.size() + 1, (unit + 1) * kGroup);
  std::atomic<size_t> next{unit * kGroup};
  std::atomic<bool> stop{false};
  Mutex mutex;
  CondVar changed;
  absl::Status first_error;  // guarded by mutex, like `running`
  const size_t started = std::clamp<size_t>(training_.threads, 1, kGroup);
  size_t running = started;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < started; ++i) {
    threads.emplace_back([&] {
      absl::Status status;
      for (size_t job = next++; job < end && status.ok(); job = next++) status = TrainJob(job, &stop);
      MutexLock lock(&mutex);
      first_error.Update(status);
      --running;
      changed.SignalAll();
    });
  }
  {
    MutexLock lock(&mutex);
    while (running > 0) {
      changed.WaitFor(&mutex, kAskEvery);
      if (!first_error.ok() || (training_.cancelled && training_.cancelled())) stop = true;
    }
  }
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

absl::Status PredictorStage::TrainJob(size_t job, const std::atomic<bool>* stop) {
  if (job == layers_.size()) {
    ASSIGN_OR_RETURN(profile_.first_layer, TrainFirstLayer(stop));
    return absl::OkStatus();
  }
  LearnedPredictor& learned = profile_.learned[job];
  learned.layer = layers_[job];
  ASSIGN_OR_RETURN(learned.net, TrainLearned(learned.layer, stop));
  return absl::OkStatus();
}

absl::StatusOr<PredictorNet> PredictorStage::TrainLearned(uint32_t layer,
                                                          const std::atomic<bool>* stop) const {
  ASSIGN_OR_RETURN(std::vector<uint16_t> inputs, features_->ReadRouterInputs(layer));
  ASSIGN_OR_RETURN(ChosenExperts own, ReadChosen(*features_, config_, layer));
  ASSIGN_OR_RETURN(ChosenExperts next, ReadChosen(*features_, config_, layer + 1));
  ChosenExperts before{own.experts, own.top_k, {}};
  if (const int routed = RoutedLayerBefore(config_, layer); routed >= 0) {
    ASSIGN_OR_RETURN(before, ReadChosen(*features_, config_, static_cast<uint32_t>(routed)));
  }
  const uint32_t outputs = next.experts;
  const uint32_t top_k = next.top_k;
  const LearnedRows rows(config_.hidden, std::move(inputs), std::move(own), std::move(before),
                         std::move(next));
  const Split split(rows);
  std::optional<PredictorNet> best;
  // A linear predictor and a network are trained; the one with the higher held-out precision is kept.
  for (const uint32_t units : {0u, kUnits}) {
    const TrainOptions options{.units = units, .epochs = training_.epochs, .seed = training_.seed + layer};
    ASSIGN_OR_RETURN(const TrainedNet net, TrainNet(split.training, rows.width(), outputs, options, stop));
    const double precision = Evaluate(net, split.held_out, top_k).precision;
    if (!best.has_value() || precision > best->precision) best = Stored(net, 1, precision);
  }
  return *std::move(best);
}

absl::StatusOr<FirstLayerGate> PredictorStage::TrainFirstLayer(const std::atomic<bool>* stop) const {
  const MoeConfig& moe = config_.layers[features_->first_routed()].moe;
  std::optional<FirstLayerGate> best;
  // The better input, the output before or after the final norm, depends on the model, so both are tried.
  for (const bool normed : {false, true}) {
    ASSIGN_OR_RETURN(std::vector<float> outputs, features_->ReadOutputs(normed));
    ASSIGN_OR_RETURN(std::vector<float> logits, features_->ReadFirstLogits());
    const FirstLayerRows rows(config_.hidden, moe.experts, std::move(outputs), std::move(logits), followed_);
    const Split split(rows);
    const TrainOptions options{
        .loss = TrainingLoss::kSoftmax, .epochs = training_.epochs, .seed = training_.seed};
    ASSIGN_OR_RETURN(const TrainedNet net,
                     TrainNet(split.training, config_.hidden, moe.experts, options, stop));
    const HeldOutResult result = Evaluate(net, split.held_out, moe.top_k);
    if (!best.has_value() || result.divergence < best->divergence) {
      best = FirstLayerGate{normed, result.divergence, Stored(net, rows.scale(), result.precision)};
    }
  }
  return *std::move(best);
}

void PredictorStage::Save(std::string* out) const {
  PredictorProfile done = profile_;
  std::erase_if(done.learned, [](const LearnedPredictor& learned) { return learned.net.outputs == 0; });
  const std::string bytes = SerializePredictors(done);
  AppendValue(uint64_t{bytes.size()}, out);
  *out += bytes;
}

absl::Status PredictorStage::Load(ByteReader* reader) {
  uint64_t size = 0;
  std::string bytes;
  RETURN_IF_ERROR(reader->Take(&size));
  RETURN_IF_ERROR(reader->TakeText(size, &bytes));
  ASSIGN_OR_RETURN(PredictorProfile done,
                   ParsePredictors(bytes, "finished predictors", config_, profile_.model_id));
  for (LearnedPredictor& learned : done.learned) {
    const auto place = std::find(layers_.begin(), layers_.end(), learned.layer);
    profile_.learned[static_cast<size_t>(place - layers_.begin())] = std::move(learned);
  }
  profile_.first_layer = std::move(done.first_layer);
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> PredictorStage::Finish() {
  return std::map<std::string, std::string>{{kPredictorsName, SerializePredictors(profile_)}};
}

}  // namespace sluice::inferd
