#include "common/protocol/link_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace sluice {
namespace {

TEST(LinkModelTest, ACopyTakesItsLatencyAndItsBytesAtTheRate) {
  LinkModel link(MakeLinkRate(/*gbps=*/2, /*latency_us=*/10));
  EXPECT_EQ(link.Book(4000, 1000, 1000), 1000 + 10'000 + 2000);
}

TEST(LinkModelTest, CopiesInAQueueHideEachOthersLatency) {
  LinkModel link(MakeLinkRate(1, 10));
  EXPECT_EQ(link.Book(50'000, 0, 0), 60'000);
  EXPECT_EQ(link.Book(50'000, 0, 0), 110'000);
  EXPECT_EQ(link.Book(50'000, 105'000, 105'000), 165'000) << "submitted late: its latency shows";
}

TEST(LinkModelTest, WithoutARateOnlyTheLatencyPasses) {
  LinkModel link(MakeLinkRate(0, 3));
  EXPECT_EQ(link.Book(1 << 30, 7, 7), 3007);
  EXPECT_FALSE(MakeLinkRate(0, 0).throttled());
  EXPECT_TRUE(MakeLinkRate(0, 3).throttled());
}

TEST(LinkModelTest, FractionsOfANanosecondAreNotLost) {
  LinkModel link(MakeLinkRate(3, 0));
  int64_t last = 0;
  for (int i = 0; i < 3'000'000; ++i) {
    last = link.Book(1, 0, 0);
  }
  EXPECT_NEAR(static_cast<double>(last), 1e6, 1);
}

TEST(LinkModelTest, CatchUpAfterOversleepingIsBoundedByTheBucket) {
  LinkModel link(MakeLinkRate(1, 0));
  EXPECT_EQ(link.Book(1000, 0, 900), 1000);
  EXPECT_EQ(link.Book(1000, 1000, 50'000), 2000) << "it could have gone at 1000";
  const int64_t late = 2000 + 100 * LinkModel::kMaxBackdateNanos;
  EXPECT_EQ(link.Book(1000, 2000, late), late - LinkModel::kMaxBackdateNanos + 1000);
}

TEST(LinkModelTest, RateHoldsWithinTwoPercentOverAnySecond) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const double gbps = 0.5 + static_cast<double>(random() % 300) / 10;
    LinkModel link(MakeLinkRate(gbps, static_cast<double>(random() % 20)));
    std::vector<std::pair<int64_t, uint64_t>> arrived;
    int64_t now = 0;
    uint64_t window = 0;
    while (now < 3'000'000'000) {
      const uint64_t bytes = 1 + random() % (4 << 20);
      const int64_t end = link.Book(bytes, now, now + static_cast<int64_t>(random() % 1'000'000));
      arrived.emplace_back(end, bytes);
      now = std::max(now, end - 2'000'000);  // two milliseconds are queued at a time
    }
    size_t first = 0;
    for (const auto& [end, bytes] : arrived) {
      window += bytes;
      while (arrived[first].first <= end - 1'000'000'000) {
        window -= arrived[first++].second;
      }
      if (end > 1'100'000'000) {
        ASSERT_NEAR(static_cast<double>(window) / (gbps * 1e9), 1.0, 0.02) << "seed " << seed;
      }
    }
  }
}

TEST(LinkModelTest, InvalidRatesAreClamped) {
  EXPECT_EQ(MakeLinkRate(-4, -1), LinkRate());
  EXPECT_EQ(MakeLinkRate(std::nan(""), std::nan("")), LinkRate());
  EXPECT_EQ(MakeLinkRate(1e300, 0).bytes_per_second, 1'000'000'000'000'000u);
}

}  // namespace
}  // namespace sluice
