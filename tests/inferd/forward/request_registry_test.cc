#include "inferd/forward/request_registry.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/support/fakes/fake_clock.h"

namespace sluice::inferd {
namespace {

TEST(RequestRegistryTest, LiveIdsAreUnique) {
  RequestRegistry registry({});
  const absl::StatusOr<SequenceId> first = registry.Enter("a", 1, 1);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsAlreadyExists(registry.Enter("a", 1, 1).status()));
  EXPECT_EQ(registry.Find("a"), *first);
  registry.End("a");
  EXPECT_EQ(registry.Find("a"), std::nullopt);
  const absl::StatusOr<SequenceId> second = registry.Enter("a", 1, 1);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
}

TEST(RequestRegistryTest, EachLimitBoundsTheQueue) {
  RequestRegistry by_count({2, 1000, 1000});
  ASSERT_TRUE(by_count.Enter("a", 1, 1).ok());
  ASSERT_TRUE(by_count.Enter("b", 1, 1).ok());
  EXPECT_EQ(ReasonOf(by_count.Enter("c", 1, 1).status()), "QUEUE_FULL");
  RequestRegistry by_tokens({9, 10, 1000});
  ASSERT_TRUE(by_tokens.Enter("a", 6, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(by_tokens.Enter("b", 5, 1).status()));
  EXPECT_TRUE(by_tokens.Enter("c", 4, 1).ok());
  RequestRegistry by_bytes({9, 1000, 10});
  ASSERT_TRUE(by_bytes.Enter("a", 1, 6).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(by_bytes.Enter("b", 1, 5).status()));
}

TEST(RequestRegistryTest, NewLimitsApplyToNewRequestsOnly) {
  RequestRegistry registry({2, 1000, 1000});
  ASSERT_TRUE(registry.Enter("a", 1, 1).ok());
  ASSERT_TRUE(registry.Enter("b", 1, 1).ok());
  registry.SetLimits({1, 1000, 1000});
  EXPECT_EQ(registry.waiting(), 2u);
  registry.LeaveQueue("a");
  EXPECT_EQ(ReasonOf(registry.Enter("c", 1, 1).status()), "QUEUE_FULL");
  registry.SetLimits({3, 1000, 1000});
  EXPECT_TRUE(registry.Enter("c", 1, 1).ok());
}

TEST(RequestRegistryTest, SingleWaitingRequestIsAlwaysAccepted) {
  RequestRegistry registry({4, 10, 10});
  EXPECT_TRUE(registry.Enter("a", 500, 500).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(registry.Enter("b", 1, 1).status()));
}

TEST(RequestRegistryTest, LeavingTheQueueMakesRoomOnce) {
  RequestRegistry registry({1, 10, 10});
  ASSERT_TRUE(registry.Enter("a", 5, 5).ok());
  EXPECT_EQ(registry.waiting(), 1u);
  registry.LeaveQueue("a");
  registry.LeaveQueue("a");
  EXPECT_EQ(registry.waiting(), 0u);
  EXPECT_EQ(registry.live(), 1u);
  ASSERT_TRUE(registry.Enter("b", 5, 5).ok());
  registry.End("a");
  EXPECT_EQ(registry.waiting(), 1u);
  registry.End("b");
  registry.End("b");
  EXPECT_EQ(registry.live(), 0u);
}

TEST(RequestRegistryTest, FloodingClientLeavesPlacesToOthers) {
  RequestRegistry registry({16, 1000, 1000});
  int taken = 0;
  while (registry.Enter(absl::StrCat("f", taken), 1, 1, "flood").ok()) {
    ++taken;
  }
  EXPECT_EQ(taken, 14);
  EXPECT_TRUE(registry.Enter("a", 1, 1, "quiet").ok());
  EXPECT_TRUE(registry.Enter("b", 1, 1, "quiet").ok());
  EXPECT_EQ(ReasonOf(registry.Enter("c", 1, 1, "third").status()), "QUEUE_FULL");
  registry.LeaveQueue("f0");
  EXPECT_EQ(ReasonOf(registry.Enter("f20", 1, 1, "flood").status()), "QUEUE_FULL");
  EXPECT_TRUE(registry.Enter("c", 1, 1, "third").ok());
}

TEST(RequestRegistryTest, RefusedClientGetsARetryDelay) {
  FakeClock clock;
  RequestRegistry registry({3, 100, 100}, &clock);
  const auto refused_for = [&registry] {
    const absl::Status status = registry.Enter("x", 1, 1).status();
    EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
    return RetryDelayOf(status).value_or(absl::ZeroDuration());
  };
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(registry.Enter(id, 1, 1).ok());
  }
  EXPECT_EQ(refused_for(), absl::Seconds(1)) << "no place has come free yet";
  // Places come free every 200 ms.
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    clock.Advance(200'000'000);
    registry.LeaveQueue(id);
    ASSERT_TRUE(registry.Enter(std::string(1, static_cast<char>(*id + 3)), 1, 1).ok());
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(refused_for()), 200, 1);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(refused_for()), 400, 1) << "one was refused before it";
  EXPECT_NEAR(absl::ToDoubleMilliseconds(registry.RetryDelay()), 600, 1);
  for (int i = 0; i < 1000; ++i) {
    refused_for();
  }
  EXPECT_EQ(refused_for(), RequestRegistry::kMaxRetry);
  registry.LeaveQueue("f");
  EXPECT_LT(registry.RetryDelay(), absl::Seconds(1));
}

}  // namespace
}  // namespace sluice::inferd
