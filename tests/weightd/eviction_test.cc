// Thread safety: tests.
#include "weightd/eviction.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "common/ring/session_abi.h"

namespace sluice {
namespace {

// What the clients know: the truth that a policy must ask for.
struct Truth {
  std::map<uint32_t, UseKey> last;
  std::set<uint32_t> held;
  int looks = 0;
  ExtentUse Look(uint32_t extent) {
    ++looks;
    if (held.contains(extent)) {
      return ExtentUse{UseKey{1u << 30, UINT64_MAX}, false};
    }
    return ExtentUse{last[extent], true};
  }
};

TEST(LruPolicyTest, OldestUseGoesFirstEvenIfThePolicyWasNotTold) {
  LruPolicy policy;
  Truth truth;
  for (uint32_t e = 0; e < 5; ++e) {
    truth.last[e] = UseKey{e + 1, 0};
    policy.Add(e, truth.last[e]);
  }
  truth.last[0] = UseKey{100, 0};  // hits without a message
  truth.last[1] = UseKey{99, 0};
  const auto look = [&truth](uint32_t e) { return truth.Look(e); };
  EXPECT_EQ(policy.Coldest(look)->extent, 2u);
  policy.Remove(2);
  EXPECT_EQ(policy.Coldest(look)->extent, 3u);
  policy.Remove(3);
  policy.Remove(4);
  EXPECT_EQ(policy.Coldest(look)->extent, 1u);
}

TEST(LruPolicyTest, HeldExtentsAreSkippedAndAllHeldIsSaid) {
  LruPolicy policy;
  Truth truth;
  const auto look = [&truth](uint32_t e) { return truth.Look(e); };
  EXPECT_FALSE(policy.Coldest(look).has_value());
  for (uint32_t e = 0; e < 2000; ++e) {
    truth.last[e] = UseKey{e, 0};
    truth.held.insert(e);
    policy.Add(e, truth.last[e]);
  }
  EXPECT_FALSE(policy.Coldest(look).has_value());
  truth.held.erase(1999);
  ASSERT_TRUE(policy.Coldest(look).has_value()) << "one of 2000 is free and must be found";
  EXPECT_EQ(policy.Coldest(look)->extent, 1999u);
  truth.held.erase(1000);
  EXPECT_TRUE(policy.Coldest(look).has_value());
}

TEST(LruPolicyTest, WorkOfADecisionIsBounded) {
  LruPolicy policy;
  Truth truth;
  for (uint32_t e = 0; e < 100000; ++e) {
    policy.Add(e, UseKey{e, 0});
    truth.last[e] = UseKey{200000 - e, 0};
  }
  policy.Coldest([&truth](uint32_t e) { return truth.Look(e); });
  EXPECT_LE(truth.looks, LruPolicy::kMaxLooks);
}

TEST(LruPolicyTest, DecidesLikeAnExactLruUnderRandomUse) {
  LruPolicy policy;
  Truth truth;
  std::mt19937_64 random(11);
  std::set<uint32_t> resident;
  uint64_t clock = 0;
  const auto look = [&truth](uint32_t e) { return truth.Look(e); };
  for (int i = 0; i < 20000; ++i) {
    const auto extent = static_cast<uint32_t>(random() % 300);
    truth.last[extent] = UseKey{++clock, 0};
    if (resident.contains(extent)) {
      continue;
    }
    if (resident.size() == 100) {
      uint32_t oldest = *resident.begin();
      for (uint32_t e : resident) {
        oldest = truth.last[e] < truth.last[oldest] ? e : oldest;
      }
      const auto victim = policy.Coldest(look);
      ASSERT_TRUE(victim.has_value());
      ASSERT_EQ(victim->extent, oldest);
      policy.Remove(oldest);
      resident.erase(oldest);
    }
    policy.Add(extent, truth.last[extent]);
    resident.insert(extent);
  }
}

TEST(StepTimelineTest, StampsLandBeforeTheDecisionThatSawThem) {
  StepTimeline timeline;
  timeline.Note(0, 5);
  EXPECT_EQ(timeline.ClockOf(1, 6), 6u);
  timeline.Note(StepStamp(1, 3), 10);
  timeline.Note(StepStamp(1, 3), 11);  // nothing new
  timeline.Note(StepStamp(2, 0), 12);
  timeline.Note(StepStamp(1, 9), 13);  // runs backwards: ignored
  EXPECT_EQ(timeline.ClockOf(StepStamp(1, 0), 20), 10u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(1, 3), 20), 10u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(1, 4), 20), 12u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(2, 0), 20), 12u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(2, 1), 20), 20u);
}

TEST(StepTimelineTest, TwoSessionsWithDifferentStepsAreOrderedByDecisions) {
  StepTimeline fast;
  StepTimeline slow;
  fast.Note(StepStamp(1'000'000, 0), 1);
  slow.Note(StepStamp(3, 0), 2);
  fast.Note(StepStamp(1'000'100, 0), 3);
  const UseKey first{fast.ClockOf(StepStamp(1'000'000, 0), 9), StepStamp(1'000'000, 0)};
  const UseKey second{slow.ClockOf(StepStamp(3, 0), 9), StepStamp(3, 0)};
  const UseKey third{fast.ClockOf(StepStamp(1'000'050, 0), 9), StepStamp(1'000'050, 0)};
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
}

TEST(StepTimelineTest, ThinningKeepsTheOrderOfAMillionMarks) {
  StepTimeline timeline;
  for (uint64_t i = 1; i <= 1'000'000; ++i) {
    timeline.Note(StepStamp(i, 0), i);
  }
  uint64_t before = 0;
  for (uint64_t i = 1; i <= 1'000'000; i += 997) {
    const uint64_t clock = timeline.ClockOf(StepStamp(i, 0), 2'000'000);
    EXPECT_GE(clock, i);
    EXPECT_GE(clock, before);
    before = clock;
  }
  EXPECT_EQ(timeline.ClockOf(StepStamp(999'999, 0), 2'000'000), 999'999u) << "recent marks stay exact";
}

}  // namespace
}  // namespace sluice
