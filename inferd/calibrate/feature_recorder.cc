#include "inferd/calibrate/feature_recorder.h"

#include <algorithm>
#include <utility>

#include "common/base/half.h"
#include "common/base/status.h"

namespace sluice::inferd {
namespace {

uint64_t BytesPerPosition(const ModelConfig& config) {
  uint64_t bytes = 2 * uint64_t{config.hidden} * sizeof(float) + MaxExperts(config) * sizeof(float);
  for (const LayerConfig& layer : config.layers) {
    if (layer.moe.experts > 0) bytes += (uint64_t{config.hidden} + layer.moe.top_k) * sizeof(uint16_t);
  }
  return bytes;
}

}  // namespace

uint64_t FeatureRecorder::PositionsFor(const ModelConfig& config, uint64_t positions, uint64_t budget_bytes) {
  return std::min(positions, budget_bytes / BytesPerPosition(config));
}

absl::StatusOr<std::unique_ptr<FeatureRecorder>> FeatureRecorder::Open(const std::string& path,
                                                                       const ModelConfig& config,
                                                                       uint64_t positions) {
  ASSIGN_OR_RETURN(File file, File::OpenForWrite(path));
  std::unique_ptr<FeatureRecorder> recorder(new FeatureRecorder(config, positions, std::move(file)));
  RETURN_IF_ERROR(recorder->file_.Reserve(recorder->bytes_));
  return recorder;
}

// Each section is an array over positions in one file, in the order training reads them: one section at a
// time, while recording writes a window of each section.
FeatureRecorder::FeatureRecorder(const ModelConfig& config, uint64_t positions, File file)
    : config_(config), positions_(positions), file_(std::move(file)) {
  const auto place = [this](uint64_t value_bytes) {
    return std::exchange(bytes_, bytes_ + positions_ * value_bytes);
  };
  for (const LayerConfig& layer : config.layers) {
    inputs_at_.push_back(place(layer.moe.experts > 0 ? config.hidden * sizeof(uint16_t) : 0));
    experts_at_.push_back(place(layer.moe.top_k * sizeof(uint16_t)));
  }
  outputs_at_[0] = place(config.hidden * sizeof(float));
  outputs_at_[1] = place(config.hidden * sizeof(float));
  while (config.layers[first_routed_].moe.experts == 0) ++first_routed_;
  logits_at_ = place(config.layers[first_routed_].moe.experts * sizeof(float));
}

uint32_t FeatureRecorder::Kept(uint32_t rows) const {
  // A disk budget bounds the kept positions to the first ones of the text, so that a longer text only adds
  // rows to the other measurements.
  return static_cast<uint32_t>(std::min<uint64_t>(rows, positions_ - std::min(first_, positions_)));
}

template <typename T>
absl::Status FeatureRecorder::Write(uint64_t section, uint32_t width, const std::vector<T>& values) {
  return file_.WriteAt(
      section + first_ * width * sizeof(T),
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)));
}

template <typename T>
absl::StatusOr<std::vector<T>> FeatureRecorder::Read(uint64_t section, uint32_t width) const {
  std::vector<T> values(positions_ * width);
  RETURN_IF_ERROR(file_.ReadAt(
      section, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T))));
  return values;
}

absl::Status FeatureRecorder::TakeRouter(const RouterState& state, const WindowRunner& runner) {
  const uint32_t rows = Kept(state.routing.tokens);
  if (rows == 0) return absl::OkStatus();
  const uint32_t hidden = config_.hidden;
  rows_.resize(uint64_t{rows} * hidden);
  RETURN_IF_ERROR(runner.Read(state.normed, rows, hidden, rows_.data()));
  halves_.resize(rows_.size());
  std::transform(rows_.begin(), rows_.end(), halves_.begin(), FloatToF16);
  RETURN_IF_ERROR(Write(inputs_at_[state.layer], hidden, halves_));
  const uint32_t top_k = state.routing.top_k;
  halves_.resize(uint64_t{rows} * top_k);
  for (uint64_t row = 0; row < rows; ++row) {
    const int32_t* ids = state.routing.ids + row * state.routing.ranks;
    std::transform(ids, ids + top_k, halves_.begin() + static_cast<ptrdiff_t>(row * top_k),
                   [](int32_t id) { return static_cast<uint16_t>(id); });
  }
  RETURN_IF_ERROR(Write(experts_at_[state.layer], top_k, halves_));
  return state.layer == first_routed_ ? TakeFirstLogits(state, rows, runner) : absl::OkStatus();
}

absl::Status FeatureRecorder::TakeFirstLogits(const RouterState& state, uint32_t rows,
                                              const WindowRunner& runner) {
  const ModelParts& parts = runner.parts();
  const uint32_t experts = config_.layers[state.layer].moe.experts;
  const MatMulPart router[] = {{parts.weights->layer(state.layer).router, runner.scratch(0), {}}};
  MatMulArgs args;
  args.x = state.normed;
  args.tokens = rows;
  args.cols = config_.hidden;
  args.parts = router;
  RETURN_IF_ERROR(parts.backend->queue().MatMul(args));
  rows_.resize(uint64_t{rows} * experts);
  RETURN_IF_ERROR(runner.Read(runner.scratch(0), rows, experts, rows_.data()));
  return Write(logits_at_, experts, rows_);
}

absl::Status FeatureRecorder::TakeLayerEnd(const LayerEnd& end, const WindowRunner& runner) {
  const uint32_t rows = Kept(end.batch->tokens());
  if (rows == 0 || end.layer + 1 != config_.layers.size()) return absl::OkStatus();
  const uint32_t hidden = config_.hidden;
  rows_.resize(uint64_t{rows} * hidden);
  RETURN_IF_ERROR(runner.Read(end.residual, rows, hidden, rows_.data()));
  RETURN_IF_ERROR(Write(outputs_at_[0], hidden, rows_));
  const ModelParts& parts = runner.parts();
  RETURN_IF_ERROR(parts.backend->queue().Norm(
      {end.residual, rows, hidden, parts.weights->final_norm(), runner.scratch(0)}));
  RETURN_IF_ERROR(runner.Read(runner.scratch(0), rows, hidden, rows_.data()));
  return Write(outputs_at_[1], hidden, rows_);
}

absl::StatusOr<std::vector<uint16_t>> FeatureRecorder::ReadRouterInputs(uint32_t layer) const {
  return Read<uint16_t>(inputs_at_[layer], config_.hidden);
}

absl::StatusOr<std::vector<uint16_t>> FeatureRecorder::ReadExperts(uint32_t layer) const {
  return Read<uint16_t>(experts_at_[layer], config_.layers[layer].moe.top_k);
}

absl::StatusOr<std::vector<float>> FeatureRecorder::ReadOutputs(bool normed) const {
  return Read<float>(outputs_at_[normed ? 1 : 0], config_.hidden);
}

absl::StatusOr<std::vector<float>> FeatureRecorder::ReadFirstLogits() const {
  return Read<float>(logits_at_, config_.layers[first_routed_].moe.experts);
}

}  // namespace sluice::inferd
