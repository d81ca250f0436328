// Sets of neurons: by share against a sort, by the share that follows a sparsity's target.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "inferd/policy/neuron_predictor.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/sparsity.h"

namespace sluice::inferd {
namespace {

TEST(NeuronSetTest, ShareSelectsLargestWithTiesToLowerIndex) {
  std::vector<uint64_t> chosen(1);
  const auto choose = [&](std::vector<float> values, double share) {
    ChooseByShare(values, share, absl::MakeSpan(chosen));
    return chosen[0];
  };
  EXPECT_EQ(choose({1, 5, 3, 2, 4}, 0.4), 0b10010u);
  EXPECT_EQ(choose({1, 5, 3, 2, 4}, 0.41), 0b10110u);  // ceil(2.05) = 3
  EXPECT_EQ(choose({2, 1, 2, 2, 1}, 0.4), 0b00101u);
  EXPECT_EQ(choose({2, 1, 2, 2, 1}, 0), 0u);
  EXPECT_EQ(choose({2, 1, 2, 2, 1}, 1), 0b11111u);
}

// Against a stable sort: signs, ties in every digit, one value many times, any width.
TEST(NeuronSetTest, ShareEqualsSortedPrefix) {
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::vector<float> values(1 + random() % 300);
    const uint32_t kinds = 1 + random() % (round % 2 == 0 ? 3 : 100000);
    for (float& value : values) {
      value = std::ldexp(static_cast<float>(random() % kinds) + 1, static_cast<int>(random() % 5) - 20);
      value = random() % 4 == 0 ? -value : value;
    }
    const double share = static_cast<double>(random() % 101) / 100;
    std::vector<uint32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
    order.resize(static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()) - 1e-9)));
    std::vector<uint64_t> wanted((values.size() + 63) / 64, 0);
    for (const uint32_t neuron : order) wanted[neuron / 64] |= uint64_t{1} << neuron % 64;
    std::vector<uint64_t> chosen(wanted.size(), ~uint64_t{0});
    ChooseByShare(values, share, absl::MakeSpan(chosen));
    EXPECT_EQ(chosen, wanted) << "round " << round;
  }
}

// Guesses at the last value fail: no mean, one value far from all others, values of one size.
TEST(NeuronSetTest, ShareIsExactOnSkewedValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& kinds : {std::vector<float>{kInfinity, 1, 2},
                                          {kNan, 1, 2, 3},
                                          {kNan, kInfinity, 0},
                                          {1e30f, 1e-30f, 2e-30f},
                                          {-kInfinity, -1, 3e38f},
                                          {0, -0.0f, 1e-45f},
                                          {5}}) {
    for (const double share : {0.01, 0.2, 0.5, 0.8, 0.99}) {
      std::vector<float> values(200);
      for (size_t i = 0; i < values.size(); ++i) values[i] = kinds[i % kinds.size()];
      const auto before = [&](uint32_t a, uint32_t b) {
        if (std::isnan(values[a]) || std::isnan(values[b]))
          return std::isnan(values[a]) > std::isnan(values[b]);
        if (values[a] == values[b]) return std::signbit(values[a]) < std::signbit(values[b]);
        return values[a] > values[b];
      };
      std::vector<uint32_t> order(values.size());
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(), before);
      std::vector<uint64_t> wanted(4, 0);
      for (size_t i = 0; i < std::ceil(share * 200 - 1e-9); ++i)
        wanted[order[i] / 64] |= uint64_t{1} << order[i] % 64;
      std::vector<uint64_t> chosen(4, ~uint64_t{0});
      ChooseByShare(values, share, absl::MakeSpan(chosen));
      EXPECT_EQ(chosen, wanted) << kinds[0] << " " << share;
    }
  }
}

TEST(NeuronSetTest, ThresholdSelectsValuesThatReachIt) {
  std::vector<float> values(130);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 130);
  values[5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint64_t> wanted(3, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    wanted[i / 64] |= uint64_t{values[i] >= 60} << i % 64;
  }
  std::vector<uint64_t> chosen(3, ~uint64_t{0});
  ChooseByThreshold(values, 60, absl::MakeSpan(chosen));
  EXPECT_EQ(chosen, wanted);
}

TEST(NeuronSetTest, TheShareFollowsTheSparsitysTarget) {
  Policies policies = *PoliciesOf("floe90", {}, DeviceKind::kSim);
  EXPECT_DOUBLE_EQ(NeuronShareOf(policies), 1 - 0.9);
  policies = *PoliciesOf("floe", {.sparsity_target = 0.6}, DeviceKind::kSim);
  EXPECT_DOUBLE_EQ(NeuronShareOf(policies), 1 - 0.6);
  policies = *PoliciesOf("floe", {.policy = {"sparsity_threshold=1.5"}}, DeviceKind::kSim);
  EXPECT_DOUBLE_EQ(NeuronShareOf(policies), 0.2);
}

}  // namespace
}  // namespace sluice::inferd
