// The trainer: products and gradients against plain sums, and tasks that must be learned.
#include "common/base/net_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace sluice {
namespace {

std::vector<float> RandomValues(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

TEST(MatrixProductTest, EqualsPlainSumsOverRemaindersAndBothOrders) {
  for (const uint32_t rows : {1u, 4u, 6u, 9u}) {
    for (const uint32_t cols : {1u, 8u, 15u, 16u, 33u}) {
      for (const uint32_t depth : {1u, 7u, 20u}) {
        const std::vector<float> a = RandomValues(rows * depth, 1);
        const std::vector<float> b = RandomValues(depth * cols, 2);
        for (const bool transposed : {false, true}) {
          std::vector<float> c(rows * cols, 0.5f);
          const uint64_t a_row = transposed ? 1 : depth;
          const uint64_t a_col = transposed ? rows : 1;
          AddProduct(rows, cols, depth, a.data(), a_row, a_col, b.data(), c.data());
          for (uint32_t i = 0; i < rows; ++i) {
            for (uint32_t j = 0; j < cols; ++j) {
              double sum = 0.5;
              for (uint32_t k = 0; k < depth; ++k) sum += double{a[i * a_row + k * a_col]} * b[k * cols + j];
              ASSERT_NEAR(c[i * cols + j], sum, 1e-5) << rows << "x" << cols << "x" << depth;
            }
          }
        }
      }
    }
  }
}

TrainedNet RandomNet(uint32_t inputs, uint32_t units, uint32_t outputs) {
  TrainedNet net{inputs, units, outputs, {}, {}, {}, {}};
  net.w1 = RandomValues(inputs * units, 3);
  net.b1 = RandomValues(units, 4);
  net.w2 = RandomValues((units > 0 ? units : inputs) * outputs, 5);
  net.b2 = RandomValues(outputs, 6);
  return net;
}

// Central differences of the loss by every weight.
void ExpectGradientMatchesDifferences(uint32_t units, TrainingLoss loss, std::vector<float> target) {
  constexpr uint32_t kRows = 5, kInputs = 6, kOutputs = 3;
  constexpr float kStep = 1e-2f;
  TrainedNet net = RandomNet(kInputs, units, kOutputs);
  const std::vector<float> x = RandomValues(kRows * kInputs, 7);
  NetGradient gradient, unused;
  LossAndGradient(net, loss, kRows, x.data(), target.data(), &gradient);
  const auto check = [&](std::vector<float>* weights, const std::vector<float>& slopes, const char* what) {
    ASSERT_EQ(weights->size(), slopes.size()) << what;
    for (size_t i = 0; i < weights->size(); ++i) {
      const float before = (*weights)[i];
      (*weights)[i] = before + kStep;
      const double above = LossAndGradient(net, loss, kRows, x.data(), target.data(), &unused);
      (*weights)[i] = before - kStep;
      const double below = LossAndGradient(net, loss, kRows, x.data(), target.data(), &unused);
      (*weights)[i] = before;
      EXPECT_NEAR(slopes[i], (above - below) / (2 * kStep), 3e-3) << what << " " << i;
    }
  };
  if (units > 0) {
    check(&net.w1, gradient.w1, "w1");
    check(&net.b1, gradient.b1, "b1");
  }
  check(&net.w2, gradient.w2, "w2");
  check(&net.b2, gradient.b2, "b2");
}

TEST(NetTrainerTest, GradientsMatchNumericDifferences) {
  std::vector<float> hot(15, 0);
  for (const size_t i : {0u, 2u, 4u, 7u, 11u, 14u}) hot[i] = 1;
  std::vector<float> distributions = {0.2f, 0.3f, 0.5f, 1,    0,    0,    0.1f, 0.8f,
                                      0.1f, 0,    0.5f, 0.5f, 0.4f, 0.4f, 0.2f};
  for (const uint32_t units : {0u, 4u}) {
    ExpectGradientMatchesDifferences(units, TrainingLoss::kBinary, hot);
    ExpectGradientMatchesDifferences(units, TrainingLoss::kSoftmax, distributions);
  }
}

// Points of a plane, labelled by a function.
class LabelledPoints final : public TrainingRows {
 public:
  LabelledPoints(bool separable, uint64_t rows) : separable_(separable), x_(RandomValues(2 * rows, 8)) {}
  uint64_t rows() const override { return x_.size() / 2; }
  bool label(uint64_t row) const {
    return separable_ ? x_[2 * row] + 0.5f * x_[2 * row + 1] > 0.2f : x_[2 * row] * x_[2 * row + 1] > 0;
  }
  void Fill(uint64_t row, float* x, float* target) const override {
    std::copy_n(x_.begin() + static_cast<ptrdiff_t>(2 * row), 2, x);
    target[0] = label(row) ? 1.0f : 0.0f;
    target[1] = 1 - target[0];
  }

 private:
  const bool separable_;
  const std::vector<float> x_;
};

double Accuracy(const TrainedNet& net, const LabelledPoints& points) {
  std::vector<float> hidden(net.units);
  uint64_t right = 0;
  for (uint64_t row = 0; row < points.rows(); ++row) {
    float x[2], target[2], out[2];
    points.Fill(row, x, target);
    RunNet(net, 1, x, hidden.data(), out);
    right += (out[0] > out[1]) == points.label(row);
  }
  return static_cast<double>(right) / static_cast<double>(points.rows());
}

TEST(NetTrainerTest, ALinearNetLearnsWhatALineSeparates) {
  const LabelledPoints points(true, 4000);
  for (const TrainingLoss loss : {TrainingLoss::kBinary, TrainingLoss::kSoftmax}) {
    const auto net = TrainNet(points, 2, 2, {.units = 0, .loss = loss, .epochs = 20, .rate = 0.05f}, nullptr);
    ASSERT_TRUE(net.ok()) << net.status();
    EXPECT_GT(Accuracy(*net, points), 0.98);
  }
}

TEST(NetTrainerTest, OnlyANetWithUnitsLearnsWhatNoLineSeparates) {
  const LabelledPoints points(false, 4000);
  const auto linear = TrainNet(points, 2, 2, {.units = 0, .epochs = 10, .rate = 0.05f}, nullptr);
  const auto net = TrainNet(points, 2, 2, {.units = 32, .epochs = 30, .rate = 0.01f}, nullptr);
  ASSERT_TRUE(linear.ok() && net.ok());
  EXPECT_LT(Accuracy(*linear, points), 0.7);
  EXPECT_GT(Accuracy(*net, points), 0.95);
}

TEST(NetTrainerTest, TheSameSeedMakesTheSameBits) {
  const LabelledPoints points(false, 500);
  const TrainOptions options{.units = 8, .epochs = 2};
  const auto a = TrainNet(points, 2, 2, options, nullptr);
  const auto b = TrainNet(points, 2, 2, options, nullptr);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->w1, b->w1);
  EXPECT_EQ(a->w2, b->w2);
  TrainOptions other = options;
  other.seed = 2;
  EXPECT_NE(TrainNet(points, 2, 2, other, nullptr)->w1, a->w1);
}

TEST(NetTrainerTest, NothingToTrainOnAndACancelAreErrors) {
  EXPECT_EQ(TrainNet(LabelledPoints(true, 0), 2, 2, {}, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::atomic<bool> cancel{true};
  EXPECT_EQ(TrainNet(LabelledPoints(true, 10), 2, 2, {}, &cancel).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace sluice
