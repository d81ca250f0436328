// Recorded features as training rows of predictors, and the score of a network on held-out rows.
//
// Thread safety: immutable after construction; safe to read from any thread.

#include "inferd/calibrate/predictor_stage.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/half.h"
#include "common/base/mutex.h"
#include "common/base/net_trainer.h"
#include "common/base/status.h"
#include "common/profile/predictor_weights.h"

namespace sluice::inferd {

// Rows [first, first + rows()) of another source: training and held-out parts.
class RowRange final : public TrainingRows {
 public:
  RowRange(const TrainingRows& rows, uint64_t first, uint64_t count)
      : source_(rows), first_(first), count_(count) {}
  uint64_t rows() const override { return count_; }
  void Fill(uint64_t row, float* x, float* target) const override { source_.Fill(first_ + row, x, target); }

 private:
  const TrainingRows& source_;
  const uint64_t first_;
  const uint64_t count_;
};

// The chosen experts of one layer, [positions, top_k].
struct ChosenExperts {
  uint32_t experts = 0;  // experts of the layer
  uint32_t top_k = 0;
  std::vector<uint16_t> ids;
};

// Inputs and targets of a learned predictor (inputs: predictor_weights.h).
class LearnedRows final : public TrainingRows {
 public:
  // `inputs`: float16 [positions, hidden]. `before` may have no ids if there is no previous layer.
  LearnedRows(uint32_t hidden, std::vector<uint16_t> inputs, ChosenExperts own, ChosenExperts before,
              ChosenExperts next);
  uint64_t rows() const override { return inputs_.size() / hidden_; }
  void Fill(uint64_t row, float* x, float* target) const override;
  uint32_t width() const { return hidden_ + own_.experts + before_.experts; }

 private:
  const uint32_t hidden_;
  const std::vector<uint16_t> inputs_;
  const ChosenExperts own_, before_, next_;
};

// Inputs a(p) * scale and the distribution softmax(logits(p + 1)) for the positions p of `followed`.
class FirstLayerRows final : public TrainingRows {
 public:
  // `outputs`: [positions, hidden]; `logits`: [positions, experts].
  FirstLayerRows(uint32_t hidden, uint32_t experts, std::vector<float> outputs, std::vector<float> logits,
                 const std::vector<uint64_t>& followed);
  uint64_t rows() const override { return followed_.size(); }
  void Fill(uint64_t row, float* x, float* target) const override;
  // Factor that scales the inputs to a root mean square of 1.
  float scale() const { return scale_; }

 private:
  const uint32_t hidden_;
  const uint32_t experts_;
  const std::vector<float> outputs_;
  const std::vector<float> logits_;
  const std::vector<uint64_t> followed_;
  float scale_ = 1;
};

struct HeldOutResult {
  double precision = 0;   // mean of |predicted top-K and true top-K| / K
  double divergence = 0;  // mean KL(target || softmax(out)), if targets are distributions
};
HeldOutResult Evaluate(const TrainedNet& net, const TrainingRows& rows, uint32_t top_k);

// Converts a network to its stored form. The input factor `scale` is folded into the weights.
PredictorNet Stored(const TrainedNet& net, float scale, double precision);

namespace {

void SetHot(const ChosenExperts& chosen, uint64_t row, float* out) {
  std::fill_n(out, chosen.experts, 0.0f);
  if (chosen.ids.empty()) return;
  const uint16_t* ids = chosen.ids.data() + row * chosen.top_k;
  for (uint32_t rank = 0; rank < chosen.top_k; ++rank) {
    if (ids[rank] < chosen.experts) out[ids[rank]] = 1;
  }
}

void Softmax(uint32_t count, const float* logits, float* out) {
  const double most = *std::max_element(logits, logits + count);
  double sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += std::exp(logits[i] - most);
  for (uint32_t i = 0; i < count; ++i) out[i] = static_cast<float>(std::exp(logits[i] - most) / sum);
}

// Marks the best `top_k` values, ties to the lower index as in routers.
void MarkTop(const std::vector<float>& values, uint32_t top_k, std::vector<uint32_t>* order,
             std::vector<uint8_t>* marks) {
  order->resize(values.size());
  std::iota(order->begin(), order->end(), 0u);
  std::partial_sort(order->begin(), order->begin() + top_k, order->end(), [&](uint32_t a, uint32_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  marks->assign(values.size(), 0);
  for (uint32_t i = 0; i < top_k; ++i) (*marks)[(*order)[i]] = 1;
}

}  // namespace

LearnedRows::LearnedRows(uint32_t hidden, std::vector<uint16_t> inputs, ChosenExperts own,
                         ChosenExperts before, ChosenExperts next)
    : hidden_(hidden),
      inputs_(std::move(inputs)),
      own_(std::move(own)),
      before_(std::move(before)),
      next_(std::move(next)) {}

void LearnedRows::Fill(uint64_t row, float* x, float* target) const {
  const uint16_t* halves = inputs_.data() + row * hidden_;
  std::transform(halves, halves + hidden_, x, F16ToFloat);
  SetHot(own_, row, x + hidden_);
  SetHot(before_, row, x + hidden_ + own_.experts);
  SetHot(next_, row, target);
}

FirstLayerRows::FirstLayerRows(uint32_t hidden, uint32_t experts, std::vector<float> outputs,
                               std::vector<float> logits, const std::vector<uint64_t>& followed)
    : hidden_(hidden),
      experts_(experts),
      outputs_(std::move(outputs)),
      logits_(std::move(logits)),
      followed_(followed) {
  // The residual grows from layer to layer: inputs are scaled to a mean square of 1, for which the initial
  // weights are designed. Stored() folds the factor into the weights.
  double sum = 0;
  for (const float value : outputs_) sum += double{value} * value;
  if (sum > 0) scale_ = static_cast<float>(std::sqrt(static_cast<double>(outputs_.size()) / sum));
}

void FirstLayerRows::Fill(uint64_t row, float* x, float* target) const {
  const uint64_t position = followed_[row];
  const float* outputs = outputs_.data() + position * hidden_;
  for (uint32_t i = 0; i < hidden_; ++i) x[i] = scale_ * outputs[i];
  // The target is the distribution at the next position of the text.
  Softmax(experts_, logits_.data() + (position + 1) * experts_, target);
}

HeldOutResult Evaluate(const TrainedNet& net, const TrainingRows& rows, uint32_t top_k) {
  std::vector<float> x(net.inputs), hidden(net.units), out(net.outputs), target(net.outputs);
  std::vector<float> chance(net.outputs);
  std::vector<uint32_t> order;
  std::vector<uint8_t> predicted, wanted;
  HeldOutResult result;
  for (uint64_t row = 0; row < rows.rows(); ++row) {
    rows.Fill(row, x.data(), target.data());
    RunNet(net, 1, x.data(), hidden.data(), out.data());
    MarkTop(out, top_k, &order, &predicted);
    MarkTop(target, top_k, &order, &wanted);
    Softmax(net.outputs, out.data(), chance.data());
    uint32_t right = 0;
    for (uint32_t i = 0; i < net.outputs; ++i) {
      right += predicted[i] & wanted[i];
      if (target[i] > 0) result.divergence += target[i] * std::log(target[i] / std::max(chance[i], 1e-30f));
    }
    result.precision += static_cast<double>(right) / top_k;
  }
  const double count = static_cast<double>(std::max<uint64_t>(rows.rows(), 1));
  return {result.precision / count, std::max(result.divergence / count, 0.0)};
}

// Converts a network. Training stores weights as [inputs, outputs], the order of its products; the backend's
// matrices have a row for each output.
PredictorNet Stored(const TrainedNet& net, float scale, double precision) {
  PredictorNet stored{net.inputs, net.units, net.outputs, precision, {}, net.b1, {}, net.b2};
  const auto transposed = [](const std::vector<float>& values, uint32_t rows, uint32_t cols, float factor) {
    std::vector<float> out(values.size());
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t c = 0; c < cols; ++c)
        out[uint64_t{c} * rows + r] = factor * values[uint64_t{r} * cols + c];
    }
    return out;
  };
  stored.w1 = transposed(net.w1, net.inputs, net.units, scale);
  stored.w2 = net.units > 0 ? transposed(net.w2, net.units, net.outputs, 1)
                            : transposed(net.w2, net.inputs, net.outputs, scale);
  return stored;
}

namespace {

constexpr uint32_t kUnits = 512;        // FloE 3.3.1
constexpr uint64_t kHeldOutShare = 10;  // one in this many positions
constexpr size_t kGroup = 16;           // networks per unit
constexpr auto kAskEvery = std::chrono::milliseconds(50);

struct Split {
  Split(const TrainingRows& rows)
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
