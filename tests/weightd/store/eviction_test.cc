#include "weightd/store/eviction.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "common/protocol/session_abi.h"

namespace sluice::weightd {
namespace {

// The clients' knowledge: the true uses that a policy must ask for.
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

TEST(LruPolicyTest, OldestUseGoesFirstEvenIfUnreported) {
  LruPolicy policy;
  Truth truth;
  for (uint32_t e = 0; e < 5; ++e) {
    truth.last[e] = UseKey{e + 1, 0};
    policy.Add(e, ExtentUse{truth.last[e]});
  }
  truth.last[0] = UseKey{100, 0};  // hits without a message
  truth.last[1] = UseKey{99, 0};
  const auto look = [&truth](uint32_t e) { return truth.Look(e); };
  EXPECT_EQ(policy.Coldest(0, look)->extent, 2u);
  policy.Remove(2, 0);
  EXPECT_EQ(policy.Coldest(0, look)->extent, 3u);
  policy.Remove(3, 0);
  policy.Remove(4, 0);
  EXPECT_EQ(policy.Coldest(0, look)->extent, 1u);
}

TEST(LruPolicyTest, HeldExtentsAreSkippedAndAllHeldIsSaid) {
  LruPolicy policy;
  Truth truth;
  const auto look = [&truth](uint32_t e) { return truth.Look(e); };
  EXPECT_FALSE(policy.Coldest(0, look).has_value());
  for (uint32_t e = 0; e < 2000; ++e) {
    truth.last[e] = UseKey{e, 0};
    truth.held.insert(e);
    policy.Add(e, ExtentUse{truth.last[e]});
  }
  EXPECT_FALSE(policy.Coldest(0, look).has_value());
  truth.held.erase(1999);
  ASSERT_TRUE(policy.Coldest(0, look).has_value()) << "one of 2000 is free and must be found";
  EXPECT_EQ(policy.Coldest(0, look)->extent, 1999u);
  truth.held.erase(1000);
  EXPECT_TRUE(policy.Coldest(0, look).has_value());
}

TEST(LruPolicyTest, WorkOfADecisionIsBounded) {
  LruPolicy policy;
  Truth truth;
  for (uint32_t e = 0; e < 100000; ++e) {
    policy.Add(e, ExtentUse{UseKey{e, 0}});
    truth.last[e] = UseKey{200000 - e, 0};
  }
  policy.Coldest(0, [&truth](uint32_t e) { return truth.Look(e); });
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
      const auto victim = policy.Coldest(0, look);
      ASSERT_TRUE(victim.has_value());
      ASSERT_EQ(victim->extent, oldest);
      policy.Remove(oldest, 0);
      resident.erase(oldest);
    }
    policy.Add(extent, ExtentUse{truth.last[extent]});
    resident.insert(extent);
  }
}

// Uses of a few extents, which policies learn by looking. One use per turnover unless set otherwise.
struct Counted {
  struct Extent {
    uint64_t uses = 0;
    double at = 0;
    bool held = false;
  };
  std::map<uint32_t, Extent> extents;
  void Use(uint32_t extent, double at, uint64_t times = 1) {
    extents[extent].uses += times;
    extents[extent].at = at;
  }
  ExtentUse Look(uint32_t extent) const {
    const Extent& found = extents.at(extent);
    return ExtentUse{UseKey{static_cast<uint64_t>(found.at * 100), 0}, !found.held, found.uses, found.at};
  }
  void Fill(EvictionPolicy* policy, uint32_t extent, double at) {
    extents[extent].at = at;
    policy->Add(extent, Look(extent));
  }
  uint32_t Victim(EvictionPolicy* policy, double now) {
    const auto found = policy->Coldest(now, [this](uint32_t extent) { return Look(extent); });
    return found.has_value() ? found->extent : kNone;
  }
  static constexpr uint32_t kNone = 999;
};

TEST(EvictionKindTest, NamesAreReadBack) {
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    EXPECT_EQ(ParseEviction(NameOf(kind)), kind);
  }
  EXPECT_EQ(ParseEviction("fifo"), std::nullopt);
}

TEST(LfruPolicyTest, LeastUsedGoesAndUsesHalveEachTurnover) {
  LfruPolicy policy;
  Counted world;
  for (uint32_t e = 0; e < 3; ++e) {
    world.Fill(&policy, e, 0);  // each counts 1
  }
  world.Use(0, 0, 7);  // 8 at 0: 1 at turnover 3
  world.Use(1, 2, 1);  // 1 at 0 and 1 at 2: 1/8 + 1/2 at 3
  world.Use(2, 3, 1);  // 1 at 0 and 1 at 3: 1/8 + 1 at 3
  EXPECT_EQ(world.Victim(&policy, 3), 1u) << "0.625, then 1, then 1.125";
  policy.Remove(1, 3);
  EXPECT_EQ(world.Victim(&policy, 3), 0u);
  world.Use(0, 3, 1);
  EXPECT_EQ(world.Victim(&policy, 3), 2u) << "1 + 1 against 1.125";
}

TEST(LfruPolicyTest, LeastRecentOfEqualsGoesAndHeldOnesStay) {
  LfruPolicy policy;
  Counted world;
  for (uint32_t e = 0; e < 4; ++e) {
    policy.Add(e, ExtentUse{UseKey{10 - e, 0}, true, 0, 0});
    world.extents[e] = {};
  }
  world.extents[3].held = true;
  EXPECT_EQ(world.Victim(&policy, 0), 2u);
  for (uint32_t e = 0; e < 3; ++e) {
    world.extents[e].held = true;
  }
  EXPECT_EQ(world.Victim(&policy, 0), Counted::kNone);
  world.extents[0].held = false;
  EXPECT_EQ(world.Victim(&policy, 0), 0u);
}

TEST(LfruPolicyTest, AFillForgetsWhatWasBefore) {
  LfruPolicy policy;
  Counted world;
  world.Fill(&policy, 0, 0);
  world.Use(0, 0, 1000);
  EXPECT_EQ(world.Victim(&policy, 0), 0u);
  policy.Remove(0, 0);
  world.Fill(&policy, 0, 1);
  world.Fill(&policy, 1, 1);
  world.Use(1, 1, 1);
  EXPECT_EQ(world.Victim(&policy, 1), 0u) << "1 against 2; its 1000 are gone";
}

TEST(LfruPolicyTest, WorkOfADecisionIsBounded) {
  LfruPolicy policy;
  for (uint32_t e = 0; e < 20000; ++e) {
    policy.Add(e, ExtentUse{UseKey{e, 0}, true, 0, 0});
  }
  int looks = 0;
  policy.Coldest(1, [&looks](uint32_t) {
    ++looks;
    return ExtentUse{UseKey{100000, 0}, true, 5, 1};
  });
  EXPECT_LE(looks, LfruPolicy::kMaxLooks);
}

TEST(ScorePolicyTest, ScoreIsTheDecayedCountOverTheAge) {
  ScorePolicy policy;
  Counted world;
  for (uint32_t e = 0; e < 3; ++e) {
    world.Fill(&policy, e, 0);
  }
  world.Use(0, 0, 6);
  world.Use(1, 4, 1);
  // Extent 2 was never used. At turnover 4, one half-life:
  EXPECT_EQ(world.Victim(&policy, 4), 2u);
  EXPECT_DOUBLE_EQ(policy.Score(0, 4), (1 + 6 * 0.5) / (1 + 4));
  EXPECT_DOUBLE_EQ(policy.Score(1, 4), (1 + 1) / 1.0);
  EXPECT_DOUBLE_EQ(policy.Score(2, 4), 1.0 / 5);
  world.Use(2, 4, 1);
  EXPECT_EQ(world.Victim(&policy, 4), 0u) << "0.8 against 2 and 2";
}

TEST(ScorePolicyTest, CountsOutliveEviction) {
  ScorePolicy policy;
  Counted world;
  world.Fill(&policy, 0, 0);
  world.Use(0, 0, 8);
  EXPECT_EQ(world.Victim(&policy, 0), 0u);
  policy.Remove(0, 0);
  EXPECT_EQ(policy.size(), 0u);
  EXPECT_EQ(world.Victim(&policy, 0), Counted::kNone);
  world.Fill(&policy, 0, 4);
  world.Fill(&policy, 1, 4);
  world.Use(1, 4, 2);
  EXPECT_EQ(world.Victim(&policy, 4), 1u) << "1 + 8 / 2 against 1 + 2";
  EXPECT_DOUBLE_EQ(policy.Score(0, 4), 5);
  EXPECT_DOUBLE_EQ(policy.Score(1, 4), 3);
}

TEST(ScorePolicyTest, SamplesFindTheColdHalfAndTheOnlyFreeOne) {
  ScorePolicy policy;
  Counted world;
  for (uint32_t e = 0; e < 1000; ++e) {
    world.Fill(&policy, e, 0);
    world.Use(e, 0, e < 500 ? 1 : 100);
  }
  int looks = 0;
  for (int i = 0; i < 200; ++i) {
    const auto victim = policy.Coldest(0, [&](uint32_t e) {
      ++looks;
      return world.Look(e);
    });
    ASSERT_TRUE(victim.has_value());
    EXPECT_LT(victim->extent, 500u);
  }
  EXPECT_EQ(looks, 200 * static_cast<int>(ScorePolicy::kSamples));
  for (uint32_t e = 0; e < 1000; ++e) {
    world.extents[e].held = e != 777;
  }
  EXPECT_EQ(world.Victim(&policy, 0), 777u);
  world.extents[777].held = true;
  EXPECT_EQ(world.Victim(&policy, 0), Counted::kNone);
}

TEST(EvictionPolicyTest, ClientWithFalseUseCountsDoesNoHarm) {
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    const auto policy = NewEvictionPolicy(kind);
    Counted world;
    for (uint32_t e = 0; e < 10; ++e) {
      world.Fill(policy.get(), e, 0);
    }
    std::mt19937_64 random(4);
    for (int i = 0; i < 2000; ++i) {
      world.extents[random() % 10].uses = random();  // falls too
      EXPECT_NE(world.Victim(policy.get(), i), Counted::kNone);
    }
    // An honest extent is still told from another.
    for (uint32_t e = 0; e < 10; ++e) {
      policy->Remove(e, 2000);
      world.Fill(policy.get(), e, 2000 + e * 0.01);
    }
    world.Use(0, 2001, 1);
    EXPECT_NE(world.Victim(policy.get(), 2001), 0u) << NameOf(kind);
  }
}

TEST(StepTimelineTest, StampsLandBeforeTheDecisionThatSawThem) {
  StepTimeline timeline;
  timeline.Note(0, 5);
  EXPECT_EQ(timeline.ClockOf(1, 6), 6u);
  timeline.Note(StepStamp(1, 3), 10);
  timeline.Note(StepStamp(1, 3), 11);  // no new stamp
  timeline.Note(StepStamp(2, 0), 12);
  timeline.Note(StepStamp(1, 9), 13);  // runs backwards: ignored
  EXPECT_EQ(timeline.ClockOf(StepStamp(1, 0), 20), 10u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(1, 3), 20), 10u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(1, 4), 20), 12u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(2, 0), 20), 12u);
  EXPECT_EQ(timeline.ClockOf(StepStamp(2, 1), 20), 20u);
}

TEST(StepTimelineTest, SessionsAreOrderedByDecisionsNotBySteps) {
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
}  // namespace sluice::weightd
