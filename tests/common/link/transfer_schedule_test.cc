#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "common/protocol/link_model.h"

namespace sluice {
namespace {

LinkTransfer Transfer(uint64_t number, RequestClass request_class, std::vector<uint32_t> chunks,
                      uint64_t session = 1, uint32_t link = 0) {
  return LinkTransfer{number, session, link, request_class, std::move(chunks)};
}

constexpr RequestClass kDemand = RequestClass::kDemand;
constexpr RequestClass kPrefetch = RequestClass::kPrefetch;

TEST(TransferScheduleTest, ChunksGoInOrderAndTheLastEndsTheTransfer) {
  TransferSchedule schedule({.window_bytes = 100});
  schedule.Add(Transfer(7, kDemand, {30, 20, 10}));
  const auto a = schedule.Next();
  const auto b = schedule.Next();
  const auto c = schedule.Next();
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->index, 0u);
  EXPECT_EQ(c->bytes, 10u);
  EXPECT_FALSE(schedule.Next());
  EXPECT_EQ(schedule.in_flight_bytes(), 60u);
  EXPECT_FALSE(schedule.Deliver(*b));
  EXPECT_FALSE(schedule.Deliver(*a));
  EXPECT_TRUE(schedule.Deliver(*c));
  EXPECT_TRUE(schedule.empty());
}

TEST(TransferScheduleTest, TheWindowBoundsBytesButLetsTwoLargeChunksGo) {
  TransferSchedule schedule({.window_bytes = 100});
  schedule.Add(Transfer(1, kDemand, {1000, 1000, 1000}));
  const auto first = schedule.Next();
  ASSERT_TRUE(first && schedule.Next());
  EXPECT_FALSE(schedule.Next());
  schedule.Deliver(*first);
  EXPECT_TRUE(schedule.Next());
}

TEST(TransferScheduleTest, OnePrefetchChunkAndNoneWhileADemandWaits) {
  TransferSchedule schedule({.window_bytes = 100});
  schedule.Add(Transfer(1, kPrefetch, {10, 10, 10}));
  const auto prefetch = schedule.Next();
  ASSERT_TRUE(prefetch);
  EXPECT_FALSE(schedule.Next()) << "one chunk of prefetches at a time";
  schedule.Add(Transfer(2, kDemand, {60, 60}));
  const auto first = schedule.Next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->number, 2u);
  schedule.Deliver(*prefetch);
  const auto second = schedule.Next();
  ASSERT_TRUE(second) << "two chunks always may";
  EXPECT_EQ(second->number, 2u);
  schedule.Deliver(*first);
  EXPECT_EQ(schedule.Next()->number, 1u) << "no demand waits any more";
}

TEST(TransferScheduleTest, AnotherLinksFullWindowHoldsNoPrefetchBack) {
  TransferSchedule schedule({.window_bytes = 10, .min_chunks = 1});
  schedule.Add(Transfer(1, kDemand, {10, 10}, 1, 1));
  schedule.Add(Transfer(2, kPrefetch, {10}, 2, 2));
  EXPECT_EQ(schedule.Next()->number, 1u);
  EXPECT_EQ(schedule.Next()->number, 2u);
}

TEST(TransferScheduleTest, SessionsTakeTurnsByBytes) {
  TransferSchedule schedule({.window_bytes = 1000});
  schedule.Add(Transfer(1, kDemand, std::vector<uint32_t>(100, 10), 1, 1));
  schedule.Add(Transfer(2, kDemand, std::vector<uint32_t>(100, 40), 2, 2));
  uint64_t served[3] = {};
  for (int i = 0; i < 50; ++i) {
    const auto chunk = schedule.Next();
    served[chunk->number] += chunk->bytes;
    schedule.Deliver(*chunk);
  }
  EXPECT_NEAR(static_cast<double>(served[1]), static_cast<double>(served[2]), 40);
}

TEST(TransferScheduleTest, IdleTimeEarnsNoCredit) {
  TransferSchedule schedule({.window_bytes = 1000});
  schedule.Add(Transfer(1, kDemand, std::vector<uint32_t>(1000, 10), 1, 1));
  for (int i = 0; i < 500; ++i) {
    schedule.Deliver(*schedule.Next());
  }
  schedule.Add(Transfer(2, kDemand, std::vector<uint32_t>(1000, 10), 2, 2));
  int newcomer = 0;
  for (int i = 0; i < 100; ++i) {
    const auto chunk = schedule.Next();
    newcomer += chunk->number == 2 ? 1 : 0;
    schedule.Deliver(*chunk);
  }
  EXPECT_NEAR(newcomer, 50, 1);
}

TEST(TransferScheduleTest, CancellingEndsAtOnceOrWithWhatIsInFlight) {
  TransferSchedule schedule({});
  schedule.Add(Transfer(1, kDemand, {10, 10, 10}));
  const auto chunk = schedule.Next();
  EXPECT_TRUE(schedule.Started(1));
  EXPECT_EQ(schedule.Cancel(1), TransferSchedule::CancelResult::kDraining);
  EXPECT_FALSE(schedule.Next());
  EXPECT_TRUE(schedule.Deliver(*chunk));
  schedule.Add(Transfer(2, kPrefetch, {10}));
  EXPECT_FALSE(schedule.Started(2));
  EXPECT_EQ(schedule.Cancel(2), TransferSchedule::CancelResult::kEnded);
  EXPECT_EQ(schedule.Cancel(2), TransferSchedule::CancelResult::kUnknown);
  EXPECT_TRUE(schedule.empty());
}

TEST(TransferScheduleTest, APromotedPrefetchGoesAsADemand) {
  TransferSchedule schedule({.window_bytes = 100});
  schedule.Add(Transfer(1, kPrefetch, {10, 10, 10, 10}));
  schedule.Add(Transfer(2, kPrefetch, {10}));
  const auto first = schedule.Next();
  schedule.Promote(1);
  EXPECT_EQ(schedule.Next()->number, 1u);
  EXPECT_EQ(schedule.Next()->number, 1u);
  schedule.Deliver(*first);
  EXPECT_EQ(schedule.Next()->number, 1u);
  EXPECT_EQ(schedule.Next()->number, 2u);
}

// Random traffic: no chunk is lost or sent twice, bounds hold, every transfer ends.
TEST(TransferScheduleTest, InvariantsHoldUnderRandomTraffic) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    TransferSchedule schedule({.window_bytes = 64, .min_chunks = 1});
    std::vector<LinkChunk> flying;
    std::set<uint64_t> open;
    std::map<uint64_t, uint32_t> next;
    uint64_t number = 0;
    for (int event = 0; event < 2000 || !open.empty(); ++event) {
      const uint64_t dice = event < 2000 ? random() % 10 : 8 + random() % 2;
      if (dice < 2) {
        const auto session = 1 + random() % 3;
        std::vector<uint32_t> chunks(1 + random() % 6, static_cast<uint32_t>(1 + random() % 40));
        open.insert(++number);
        schedule.Add(Transfer(number, random() % 2 == 0 ? kDemand : kPrefetch, chunks, session,
                              static_cast<uint32_t>(session)));
      } else if (dice == 2 && number != 0) {
        const uint64_t victim = 1 + random() % number;
        if (schedule.Cancel(victim) == TransferSchedule::CancelResult::kEnded) {
          ASSERT_EQ(open.erase(victim), 1u);
        }
      } else if (dice == 3 && number != 0) {
        schedule.Promote(1 + random() % number);
      } else if (dice < 7 || (dice == 9 && !flying.empty())) {
        if (!flying.empty()) {
          const size_t at = random() % flying.size();
          const LinkChunk chunk = flying[at];
          flying.erase(flying.begin() + static_cast<ptrdiff_t>(at));
          if (schedule.Deliver(chunk)) {
            ASSERT_EQ(open.erase(chunk.number), 1u) << "seed " << seed;
          }
        }
      } else if (const auto chunk = schedule.Next()) {
        ASSERT_EQ(chunk->index, next[chunk->number]++) << "seed " << seed;
        flying.push_back(*chunk);
        uint64_t bytes = 0;
        for (const LinkChunk& other : flying) {
          bytes += other.link == chunk->link ? other.bytes : 0;
        }
        ASSERT_LE(bytes, 64u) << "seed " << seed;
      }
    }
    EXPECT_TRUE(schedule.empty()) << "seed " << seed;
    EXPECT_EQ(schedule.in_flight_bytes(), 0u);
  }
}

}  // namespace
}  // namespace sluice
