#include "gtest/gtest.h"
#include "inferd/cache/expert_slots.h"

namespace sluice::inferd {
namespace {

constexpr int64_t kMilli = 1'000'000;

TEST(LayerPaceTest, NothingIsKnownBeforeALayerFollowsAnother) {
  LayerPace pace;
  pace.Begin(0, /*prefill=*/false, 5 * kMilli);
  EXPECT_EQ(pace.Seconds(false), 0);
  pace.Begin(1, false, 7 * kMilli);
  EXPECT_DOUBLE_EQ(pace.Seconds(false), 2e-3);
  EXPECT_EQ(pace.Seconds(/*prefill=*/true), 0) << "they are known apart";
}

TEST(LayerPaceTest, LayersInBetweenShareTheTime) {
  LayerPace pace;
  pace.Begin(0, false, 1 * kMilli);
  pace.Begin(4, false, 9 * kMilli);
  EXPECT_DOUBLE_EQ(pace.Seconds(false), 2e-3);
}

TEST(LayerPaceTest, TheTimeBetweenStepsDoesNotCount) {
  LayerPace pace;
  pace.Begin(0, false, 1 * kMilli);
  pace.Begin(1, false, 3 * kMilli);
  pace.Begin(0, false, 900 * kMilli);
  EXPECT_DOUBLE_EQ(pace.Seconds(false), 2e-3);
  pace.Begin(1, false, 910 * kMilli);
  EXPECT_DOUBLE_EQ(pace.Seconds(false), 3e-3) << "an eighth of the way from 2 to 10 ms";
}

TEST(LayersInTest, PartsOfLayersCountWholeAndTheLeastIsOne) {
  EXPECT_EQ(LayersIn(0, 1e-3), 1u);
  EXPECT_EQ(LayersIn(2e-3, 1e-3), 2u);
  EXPECT_EQ(LayersIn(2.1e-3, 1e-3), 3u);
  EXPECT_EQ(LayersIn(5, 0), 1u) << "not known";
}

}  // namespace
}  // namespace sluice::inferd
