// Sixteen lanes at once against the equivalent loops, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/base/hqq.h"

namespace sluice {
namespace {

// Finite values of every size, including extreme ones.
std::vector<float> AnyLanes(std::mt19937* random) {
  constexpr float kEdges[] = {0.0f,
                              -0.0f,
                              std::numeric_limits<float>::denorm_min(),
                              -std::numeric_limits<float>::max(),
                              std::numeric_limits<float>::max(),
                              1.0f};
  std::vector<float> lanes;
  while (lanes.size() < kQuantLanes) {
    const auto bits = static_cast<uint32_t>((*random)());
    const float value = bits % 4 == 0 ? kEdges[bits / 4 % std::size(kEdges)] : std::bit_cast<float>(bits);
    if (std::abs(value) <= std::numeric_limits<float>::max()) lanes.push_back(value);
  }
  return lanes;
}

// Adds halves to each other, as the solver has always done.
float SumByHalves(std::vector<float> sums) {
  for (int width = kQuantLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(Lanes, SumsAndExtremesAreThoseOfTheLoops) {
  std::mt19937 random(5);
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<float> lanes = AnyLanes(&random);
    // Infinite sums of opposite signs make a NaN, whose bits nobody defines.
    const float sum = SumByHalves(lanes);
    if (sum == sum) {
      ASSERT_EQ(Bits(SumOfLanes(LoadLanes(lanes.data()))), Bits(sum)) << i;
    }
    ASSERT_EQ(MinOfLanes(LoadLanes(lanes.data())), *std::min_element(lanes.begin(), lanes.end())) << i;
    ASSERT_EQ(MaxOfLanes(LoadLanes(lanes.data())), *std::max_element(lanes.begin(), lanes.end())) << i;
  }
}

TEST(Lanes, LowerAndRaiseKeepTheFirstOfEqualZeros) {
  std::mt19937 random(6);
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<float> first = AnyLanes(&random);
    const std::vector<float> second = AnyLanes(&random);
    LaneVectors low = LoadLanes(first.data());
    LaneVectors high = low;
    UpdateMinLanes(LoadLanes(second.data()), &low);
    UpdateMaxLanes(LoadLanes(second.data()), &high);
    float lows[kQuantLanes];
    float highs[kQuantLanes];
    std::memcpy(lows, &low, sizeof(low));
    std::memcpy(highs, &high, sizeof(high));
    for (int lane = 0; lane < kQuantLanes; ++lane) {
      ASSERT_EQ(Bits(lows[lane]), Bits(std::min(first[lane], second[lane]))) << i << " lane " << lane;
      ASSERT_EQ(Bits(highs[lane]), Bits(std::max(first[lane], second[lane]))) << i << " lane " << lane;
    }
  }
}

}  // namespace
}  // namespace sluice
