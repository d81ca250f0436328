// Timeout of waits for bytes.
#include <gtest/gtest.h>

#include "inferd/model/fetch_queue.h"

namespace sluice::inferd {
namespace {

class StallLimitTest : public ::testing::Test {
 protected:
  void SetUp() override { stall_.Restart(start_); }

  const absl::Time start_ = absl::UnixEpoch();
  StallLimit stall_{absl::Seconds(5)};
};

TEST_F(StallLimitTest, WaitsInARowAreCountedTogether) {
  for (int ms = 0; ms < 5000; ms += 50) {
    ASSERT_FALSE(stall_.Exceeded(start_ + absl::Milliseconds(ms)));
    const absl::Time until = start_ + absl::Milliseconds(ms + 50);
    ASSERT_EQ(stall_.EndOfWait(start_ + absl::Milliseconds(ms), until), until);
  }
  EXPECT_TRUE(stall_.Exceeded(start_ + absl::Seconds(5)));
}

TEST_F(StallLimitTest, NoWaitLastsLongerThanTheLimitOrASecond) {
  EXPECT_EQ(stall_.EndOfWait(start_), start_ + absl::Seconds(1));
  EXPECT_EQ(stall_.EndOfWait(start_ + absl::Seconds(4.5)), start_ + absl::Seconds(5));
  EXPECT_EQ(stall_.EndOfWait(start_, start_ + absl::Seconds(9)), start_ + absl::Seconds(1));
}

// A wait until a past time ends at once, which does not look like a stopped process.
TEST_F(StallLimitTest, WaitsUntilAPastTimeAreCountedAllTheSame) {
  for (int ms = 0; ms < 5000; ms += 50) {
    const absl::Time now = start_ + absl::Milliseconds(ms);
    ASSERT_FALSE(stall_.Exceeded(now));
    ASSERT_EQ(stall_.EndOfWait(now, start_ - absl::Hours(1)), now);
  }
  EXPECT_TRUE(stall_.Exceeded(start_ + absl::Seconds(5)));
}

TEST_F(StallLimitTest, CompletionRestartsTheTimeout) {
  stall_.EndOfWait(start_ + absl::Seconds(3));
  stall_.Restart(start_ + absl::Seconds(4));
  EXPECT_FALSE(stall_.Exceeded(start_ + absl::Seconds(8)));
  EXPECT_EQ(stall_.EndOfWait(start_ + absl::Seconds(8.5)), start_ + absl::Seconds(9));
  EXPECT_TRUE(stall_.Exceeded(start_ + absl::Seconds(9)));
}

// Also detects a stop after a timely wake-up, before the check.
TEST_F(StallLimitTest, StoppedProcessRestartsTheTimeout) {
  for (const double seconds : {12.0, 5.5, 2.1}) {
    stall_.Restart(start_);
    stall_.EndOfWait(start_);
    const absl::Time woken = start_ + absl::Seconds(seconds);
    EXPECT_FALSE(stall_.Exceeded(woken));
    EXPECT_FALSE(stall_.Exceeded(woken + absl::Seconds(4.9)));
    EXPECT_TRUE(stall_.Exceeded(woken + absl::Seconds(5)));
  }
}

TEST_F(StallLimitTest, AThreadThatWasOnlyLateIsCounted) {
  const absl::Time due = stall_.EndOfWait(start_ + absl::Seconds(4.5));
  EXPECT_TRUE(stall_.Exceeded(due + absl::Milliseconds(900)));
}

}  // namespace
}  // namespace sluice::inferd
