// When waiting for bytes becomes an error.
#include "inferd/residency/stall_limit.h"

#include <gtest/gtest.h>

namespace sluice {
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
    ASSERT_EQ(stall_.EndOfWait(until), until);
  }
  EXPECT_TRUE(stall_.Exceeded(start_ + absl::Seconds(5)));
}

TEST_F(StallLimitTest, NoWaitLastsLongerThanTheLimit) {
  EXPECT_EQ(stall_.EndOfWait(), start_ + absl::Seconds(5));
  EXPECT_EQ(stall_.EndOfWait(start_ + absl::Seconds(9)), start_ + absl::Seconds(5));
}

TEST_F(StallLimitTest, WhatCameBeginsTheCountAgain) {
  stall_.EndOfWait();
  stall_.Restart(start_ + absl::Seconds(4));
  EXPECT_FALSE(stall_.Exceeded(start_ + absl::Seconds(8)));
  EXPECT_EQ(stall_.EndOfWait(), start_ + absl::Seconds(9));
  EXPECT_TRUE(stall_.Exceeded(start_ + absl::Seconds(9)));
}

TEST_F(StallLimitTest, AProcessThatWasStoppedBeginsAgain) {
  const absl::Time until = stall_.EndOfWait(start_ + absl::Milliseconds(300));
  const absl::Time woken = until + absl::Seconds(12);
  EXPECT_FALSE(stall_.Exceeded(woken));
  EXPECT_EQ(stall_.EndOfWait(), woken + absl::Seconds(5));
  EXPECT_TRUE(stall_.Exceeded(woken + absl::Seconds(5)));
}

TEST_F(StallLimitTest, AThreadThatWasOnlyLateIsCounted) {
  EXPECT_TRUE(stall_.Exceeded(stall_.EndOfWait() + absl::Milliseconds(900)));
}

}  // namespace
}  // namespace sluice
