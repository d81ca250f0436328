#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "inferd/cache/residency.h"

namespace sluice::inferd {
namespace {

const absl::Time kNow = absl::UnixEpoch();

TEST(FetchWindowTest, ShrinksToInFlightAndGrowsWithCompletions) {
  FetchWindow window(4);
  EXPECT_FALSE(window.IsFull(3));
  EXPECT_TRUE(window.IsFull(4));
  window.OnRefused(/*in_flight=*/2, kNow);
  EXPECT_TRUE(window.IsFull(2));
  window.OnCompleted();
  EXPECT_FALSE(window.IsFull(2));
  for (int i = 0; i < 9; ++i) {
    window.OnCompleted();
  }
  EXPECT_TRUE(window.IsFull(4)) << "never beyond the most";
}

TEST(FetchWindowTest, OneMayAlwaysBeInFlight) {
  FetchWindow window(4);
  window.OnRefused(/*in_flight=*/0, kNow);
  EXPECT_FALSE(window.IsFull(0));
}

TEST(FetchWindowTest, RetryWaitsForOthersAndAPause) {
  FetchWindow window(4);
  window.OnRefused(/*in_flight=*/1, kNow);
  EXPECT_TRUE(window.no_room());
  EXPECT_EQ(window.retry_at(), kNow + FetchWindow::kRetryPace);
  EXPECT_FALSE(window.CanRequest(/*in_flight=*/1, window.retry_at()));
  EXPECT_FALSE(window.CanRequest(/*in_flight=*/0, kNow));
  EXPECT_TRUE(window.CanRequest(/*in_flight=*/0, window.retry_at()));
  window.OnRoomMade();
  EXPECT_TRUE(window.CanRequest(/*in_flight=*/1, kNow));
}

TEST(FetchWindowTest, QuickRetriesAreMadeWithoutAPause) {
  FetchWindow window(4, /*quick_retries=*/2);
  for (int i = 0; i < 2; ++i) {
    window.OnRefused(/*in_flight=*/0, kNow);
    EXPECT_TRUE(window.CanRequest(0, kNow)) << i;
  }
  window.OnRefused(/*in_flight=*/0, kNow);
  EXPECT_FALSE(window.CanRequest(0, kNow));
  window.OnCompleted();
  window.OnRefused(/*in_flight=*/0, kNow);
  EXPECT_TRUE(window.CanRequest(0, kNow)) << "something came in between";
}

}  // namespace
}  // namespace sluice::inferd
