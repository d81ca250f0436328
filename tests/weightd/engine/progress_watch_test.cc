#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "weightd/engine/watchdog.h"

namespace sluice::weightd {
namespace {

using testing::HasSubstr;

constexpr int64_t kReaderTimeout = ProgressWatch::kReaderTimeoutNanos;

TEST(ProgressWatchTest, PumpThatMakesRoundsIsAlive) {
  ProgressWatch watch;
  EXPECT_EQ(watch.Look({0, 0, 0}, 1), "");
  EXPECT_EQ(watch.Look({1, 0, 0}, 2), "");
  EXPECT_EQ(watch.Look({2, 0, 0}, 2 + 10 * kReaderTimeout), "");  // nothing to read: no report is awaited
}

TEST(ProgressWatchTest, PumpWithoutARoundSinceItsNudgeIsStuck) {
  ProgressWatch watch;
  EXPECT_EQ(watch.Look({7, 0, 0}, 1), "");
  EXPECT_THAT(watch.Look({7, 0, 0}, 2), HasSubstr("no round"));
  EXPECT_THAT(watch.Look({7, 3, 0}, 3), HasSubstr("no round"));
  EXPECT_EQ(watch.Look({8, 3, 0}, 4), "");
}

TEST(ProgressWatchTest, SilentReaderWithReadsInFlightIsStuck) {
  ProgressWatch watch;
  EXPECT_EQ(watch.Look({1, 5, 4096}, 0), "");
  EXPECT_EQ(watch.Look({2, 5, 4096}, kReaderTimeout), "");
  EXPECT_THAT(watch.Look({3, 5, 4096}, kReaderTimeout + 1), HasSubstr("4096 bytes"));
  EXPECT_EQ(watch.Look({4, 6, 4096}, kReaderTimeout + 2), "");
  EXPECT_EQ(watch.Look({5, 6, 4096}, 2 * kReaderTimeout + 2), "");
}

TEST(ProgressWatchTest, ReaderIsGivenItsWholePatienceFromItsFirstRead) {
  ProgressWatch watch;
  EXPECT_EQ(watch.Look({1, 5, 0}, 0), "");
  EXPECT_EQ(watch.Look({2, 5, 4096}, 100 * kReaderTimeout), "");
  EXPECT_EQ(watch.Look({3, 5, 8192}, 101 * kReaderTimeout), "");
  EXPECT_NE(watch.Look({4, 5, 8192}, 101 * kReaderTimeout + 1), "");
}

TEST(ProgressWatchTest, ReaderThatHasNothingLeftIsNotSilent) {
  ProgressWatch watch;
  EXPECT_EQ(watch.Look({1, 5, 4096}, 0), "");
  EXPECT_EQ(watch.Look({2, 5, 0}, kReaderTimeout + 1), "") << "what was under way was abandoned";
}

TEST(StopGuardTest, CallsWhenThePatienceIsOver) {
  std::promise<void> late;
  const StopGuard guard(absl::ZeroDuration(), [&] { late.set_value(); });
  late.get_future().wait();
}

TEST(StopGuardTest, DoesNotCallWhatEndsInTime) {
  bool late = false;
  {
    const StopGuard guard(absl::InfiniteDuration(), [&] { late = true; });
  }
  EXPECT_FALSE(late);
}

}  // namespace
}  // namespace sluice::weightd
