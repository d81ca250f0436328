#include "inferd/calibrate/stages/predictor_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/half.h"

namespace sluice::inferd {
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

HeldOutResult Evaluate(const TrainedNet& net, const RowSource& rows, uint32_t top_k) {
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

}  // namespace sluice::inferd
