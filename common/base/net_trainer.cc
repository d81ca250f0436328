#include "common/base/net_trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace sluice {
namespace {

// Four rows by sixteen columns: eight vector accumulators, two loads of b and four broadcasts of a for eight
// multiply-adds, within the sixteen registers of AVX2.
constexpr uint32_t kTileRows = 4;
constexpr uint32_t kTileCols = 16;
typedef float Vec __attribute__((vector_size(32)));
constexpr uint32_t kLanes = 8;

Vec Load(const float* from) {
  Vec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

void Store(const Vec& v, float* to) { std::memcpy(to, &v, sizeof(v)); }

// c[4][16] += a[4][depth] * b[depth][16], the sums in registers for the whole depth. `a` has free strides, so
// that the same loop serves a transposed left side (gradients).
void Tile(uint32_t cols, uint32_t depth, const float* a, uint64_t a_row, uint64_t a_col, const float* b,
          float* c) {
  Vec sum[kTileRows][2];
  for (uint32_t i = 0; i < kTileRows; ++i) {
    sum[i][0] = Load(c + uint64_t{i} * cols);
    sum[i][1] = Load(c + uint64_t{i} * cols + kLanes);
  }
  for (uint32_t k = 0; k < depth; ++k) {
    const Vec b0 = Load(b + uint64_t{k} * cols);
    const Vec b1 = Load(b + uint64_t{k} * cols + kLanes);
    for (uint32_t i = 0; i < kTileRows; ++i) {
      const float value = a[i * a_row + k * a_col];
      sum[i][0] += value * b0;
      sum[i][1] += value * b1;
    }
  }
  for (uint32_t i = 0; i < kTileRows; ++i) {
    Store(sum[i][0], c + uint64_t{i} * cols);
    Store(sum[i][1], c + uint64_t{i} * cols + kLanes);
  }
}

// Computes the remainder at the right and at the bottom of the tiles, with the sums over k in the same order.
void Plain(uint32_t rows, uint32_t width, uint32_t cols, uint32_t depth, const float* a, uint64_t a_row,
           uint64_t a_col, const float* b, float* c) {
  for (uint32_t i = 0; i < rows; ++i) {
    for (uint32_t k = 0; k < depth; ++k) {
      const float value = a[i * a_row + k * a_col];
      for (uint32_t j = 0; j < width; ++j) c[uint64_t{i} * cols + j] += value * b[uint64_t{k} * cols + j];
    }
  }
}

}  // namespace

void AddProduct(uint32_t rows, uint32_t cols, uint32_t depth, const float* a, uint64_t a_row, uint64_t a_col,
                const float* b, float* c) {
  const uint32_t tile_cols = cols / kTileCols * kTileCols;
  for (uint32_t i = 0; i < rows; i += kTileRows) {
    const float* a_tile = a + i * a_row;
    float* c_tile = c + uint64_t{i} * cols;
    if (rows - i < kTileRows) {
      Plain(rows - i, cols, cols, depth, a_tile, a_row, a_col, b, c_tile);
      return;
    }
    for (uint32_t j = 0; j < tile_cols; j += kTileCols) {
      Tile(cols, depth, a_tile, a_row, a_col, b + j, c_tile + j);
    }
    Plain(kTileRows, cols - tile_cols, cols, depth, a_tile, a_row, a_col, b + tile_cols, c_tile + tile_cols);
  }
}

namespace {

// Adam's decay rates and guard, as published.
constexpr float kFirstDecay = 0.9f;
constexpr float kSecondDecay = 0.999f;
constexpr float kGuard = 1e-8f;
constexpr float kLastRate = 0.1f;  // share of the initial step size that is left at the end

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {  // splitmix64
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  float Symmetric() { return static_cast<float>(Next() >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)

 private:
  uint64_t state_;
};

void FillUniform(float bound, Random* random, std::vector<float>* values) {
  for (float& value : *values) value = bound * random->Symmetric();
}

TrainedNet InitialNet(uint32_t inputs, uint32_t outputs, uint32_t units, uint64_t seed) {
  TrainedNet net{inputs, units, outputs, {}, {}, {}, {}};
  const uint32_t last = units > 0 ? units : inputs;
  net.w1.resize(uint64_t{inputs} * units);
  net.b1.resize(units);
  net.w2.resize(uint64_t{last} * outputs);
  net.b2.resize(outputs);
  Random random(seed);
  // Variances as for ReLU (He) below and for a linear layer above, so that values keep their size from layer
  // to layer.
  FillUniform(std::sqrt(6.0f / static_cast<float>(inputs)), &random, &net.w1);
  FillUniform(std::sqrt(1.0f / static_cast<float>(last)), &random, &net.w2);
  return net;
}

// Every row of `out` begins as the bias; AddProduct() adds to it.
void FillRows(uint32_t rows, const std::vector<float>& bias, float* out) {
  for (uint32_t row = 0; row < rows; ++row) std::copy(bias.begin(), bias.end(), out + row * bias.size());
}

// The loss of one row, and in `out`, which held the logits, its gradient (probability - target). Written so
// that exp never overflows: log(1 + e^z) = max(z, 0) + log1p(e^-|z|).
double BinaryLoss(uint32_t outputs, const float* target, float* out) {
  double loss = 0;
  for (uint32_t j = 0; j < outputs; ++j) {
    const double z = out[j];
    loss += std::max(z, 0.0) - z * target[j] + std::log1p(std::exp(-std::abs(z)));
    out[j] = static_cast<float>(1.0 / (1.0 + std::exp(-z))) - target[j];
  }
  return loss;
}

// The same for a distribution as target; the largest logit is taken off first, so that exp never overflows.
double SoftmaxLoss(uint32_t outputs, const float* target, float* out) {
  const double max_output = *std::max_element(out, out + outputs);
  double sum = 0;
  for (uint32_t j = 0; j < outputs; ++j) sum += std::exp(out[j] - max_output);
  const double log_sum = max_output + std::log(sum);
  double loss = 0;
  for (uint32_t j = 0; j < outputs; ++j) {
    loss += target[j] * (log_sum - out[j]);
    out[j] = static_cast<float>(std::exp(out[j] - log_sum)) - target[j];
  }
  return loss;
}

// Scratch of one training, kept so that a batch allocates nothing.
struct Batch {
  std::vector<float> x, target, hidden, out, back, w2_rows;
};

// The loss of a batch whose x and target are filled; gradients are means over its rows.
double Backward(const TrainedNet& net, TrainingLoss loss, uint32_t rows, const float* x, const float* target,
                Batch* batch, NetGradient* gradient) {
  const uint32_t last = net.units > 0 ? net.units : net.inputs;
  batch->hidden.resize(uint64_t{rows} * net.units);
  batch->out.resize(uint64_t{rows} * net.outputs);
  RunNet(net, rows, x, batch->hidden.data(), batch->out.data());
  double total = 0;
  for (uint32_t row = 0; row < rows; ++row) {
    float* out = batch->out.data() + uint64_t{row} * net.outputs;
    const float* expected = target + uint64_t{row} * net.outputs;
    total += loss == TrainingLoss::kBinary ? BinaryLoss(net.outputs, expected, out)
                                           : SoftmaxLoss(net.outputs, expected, out);
  }
  const float share = 1.0f / static_cast<float>(rows);
  for (float& value : batch->out) value *= share;
  gradient->w2.assign(net.w2.size(), 0);
  gradient->b2.assign(net.outputs, 0);
  for (size_t i = 0; i < batch->out.size(); ++i) gradient->b2[i % net.outputs] += batch->out[i];
  const float* below = net.units > 0 ? batch->hidden.data() : x;
  AddProduct(last, net.outputs, rows, below, 1, last, batch->out.data(), gradient->w2.data());
  if (net.units == 0) return total * share;
  batch->w2_rows.resize(net.w2.size());  // [outputs, units]
  for (uint32_t u = 0; u < net.units; ++u) {
    for (uint32_t j = 0; j < net.outputs; ++j) {
      batch->w2_rows[uint64_t{j} * net.units + u] = net.w2[uint64_t{u} * net.outputs + j];
    }
  }
  batch->back.assign(batch->hidden.size(), 0);
  AddProduct(rows, net.units, net.outputs, batch->out.data(), net.outputs, 1, batch->w2_rows.data(),
             batch->back.data());
  for (size_t i = 0; i < batch->back.size(); ++i) {
    batch->back[i] = batch->hidden[i] > 0 ? batch->back[i] : 0.0f;
  }
  gradient->w1.assign(net.w1.size(), 0);
  gradient->b1.assign(net.units, 0);
  for (size_t i = 0; i < batch->back.size(); ++i) gradient->b1[i % net.units] += batch->back[i];
  AddProduct(net.inputs, net.units, rows, x, 1, net.inputs, batch->back.data(), gradient->w1.data());
  return total * share;
}

// Adam for one parameter vector: running means of the gradient and of its square. They begin at zero;
// `first_fix` and `second_fix` undo the bias of that beginning.
struct Moments {
  std::vector<float> first, second;
  void Step(const std::vector<float>& gradient, float rate, float first_fix, float second_fix,
            std::vector<float>* values) {
    first.resize(values->size());
    second.resize(values->size());
    for (size_t i = 0; i < values->size(); ++i) {
      const float g = gradient[i];
      first[i] = kFirstDecay * first[i] + (1 - kFirstDecay) * g;
      second[i] = kSecondDecay * second[i] + (1 - kSecondDecay) * g * g;
      (*values)[i] -= rate * (first[i] * first_fix) / (std::sqrt(second[i] * second_fix) + kGuard);
    }
  }
};

class Adam {
 public:
  void Step(const NetGradient& gradient, float rate, TrainedNet* net) {
    ++steps_;
    const float first_fix = 1.0f / (1.0f - std::pow(kFirstDecay, static_cast<float>(steps_)));
    const float second_fix = 1.0f / (1.0f - std::pow(kSecondDecay, static_cast<float>(steps_)));
    if (net->units > 0) {
      w1_.Step(gradient.w1, rate, first_fix, second_fix, &net->w1);
      b1_.Step(gradient.b1, rate, first_fix, second_fix, &net->b1);
    }
    w2_.Step(gradient.w2, rate, first_fix, second_fix, &net->w2);
    b2_.Step(gradient.b2, rate, first_fix, second_fix, &net->b2);
  }

 private:
  uint64_t steps_ = 0;
  Moments w1_, b1_, w2_, b2_;
};

// Fisher-Yates with our own generator: the same order with every standard library, so a calibration can be
// repeated to the bit.
void Shuffle(Random* random, std::vector<uint64_t>* order) {
  for (size_t i = order->size(); i > 1; --i) std::swap((*order)[i - 1], (*order)[random->Next() % i]);
}

}  // namespace

void RunNet(const TrainedNet& net, uint32_t rows, const float* x, float* hidden, float* out) {
  FillRows(rows, net.b2, out);
  if (net.units == 0) {
    AddProduct(rows, net.outputs, net.inputs, x, net.inputs, 1, net.w2.data(), out);
    return;
  }
  FillRows(rows, net.b1, hidden);
  AddProduct(rows, net.units, net.inputs, x, net.inputs, 1, net.w1.data(), hidden);
  for (uint64_t i = 0; i < uint64_t{rows} * net.units; ++i) hidden[i] = std::max(hidden[i], 0.0f);
  AddProduct(rows, net.outputs, net.units, hidden, net.units, 1, net.w2.data(), out);
}

double LossAndGradient(const TrainedNet& net, TrainingLoss loss, uint32_t rows, const float* x,
                       const float* target, NetGradient* gradient) {
  Batch batch;
  return Backward(net, loss, rows, x, target, &batch, gradient);
}

absl::StatusOr<TrainedNet> TrainNet(const TrainingRows& source, uint32_t inputs, uint32_t outputs,
                                    const TrainOptions& options, const std::atomic<bool>* cancel) {
  const uint64_t rows = source.rows();
  if (rows == 0 || inputs == 0 || outputs == 0 || options.batch == 0) {
    return absl::InvalidArgumentError(absl::StrCat("training on ", rows, " rows of ", inputs, " inputs and ",
                                                   outputs, " outputs in batches of ", options.batch));
  }
  TrainedNet net = InitialNet(inputs, outputs, options.units, options.seed);
  Random random(options.seed ^ 0x5eed);
  Adam adam;
  Batch batch;
  NetGradient gradient;
  batch.x.resize(uint64_t{options.batch} * inputs);
  batch.target.resize(uint64_t{options.batch} * outputs);
  std::vector<uint64_t> order(rows);
  std::iota(order.begin(), order.end(), uint64_t{0});
  const double total = static_cast<double>(rows) * options.epochs;
  for (uint32_t epoch = 0; epoch < options.epochs; ++epoch) {
    Shuffle(&random, &order);
    for (uint64_t begin = 0; begin < rows; begin += options.batch) {
      if (cancel != nullptr && cancel->load()) return absl::CancelledError("training was interrupted");
      const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(options.batch, rows - begin));
      for (uint32_t i = 0; i < count; ++i) {
        source.Fill(order[begin + i], batch.x.data() + uint64_t{i} * inputs,
                    batch.target.data() + uint64_t{i} * outputs);
      }
      Backward(net, options.loss, count, batch.x.data(), batch.target.data(), &batch, &gradient);
      const double done = (static_cast<double>(rows) * epoch + static_cast<double>(begin)) / total;
      // The rate falls linearly to kLastRate of itself, so that the last steps settle.
      const float rate = options.rate * static_cast<float>(1.0 - (1.0 - kLastRate) * done);
      adam.Step(gradient, rate, &net);
    }
  }
  return net;
}

}  // namespace sluice
