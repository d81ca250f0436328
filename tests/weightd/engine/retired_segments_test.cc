// The sessions that still map a retired segment, and since when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weightd/engine/segment_notices.h"

namespace sluice::weightd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(RetiredSegmentsTest, ASegmentIsFreeWhenItsLastSessionHasUnmappedIt) {
  RetiredSegments retired;
  retired.Add(7, {1, 2}, 100, 10);
  EXPECT_FALSE(retired.Unmapped(1, 7));
  EXPECT_FALSE(retired.Unmapped(1, 7)) << "said twice, it counts once";
  EXPECT_FALSE(retired.Unmapped(3, 7)) << "it never had it";
  EXPECT_FALSE(retired.Unmapped(2, 8)) << "no such segment";
  EXPECT_TRUE(retired.Unmapped(2, 7));
  EXPECT_FALSE(retired.Unmapped(2, 7)) << "it is forgotten";
}

TEST(RetiredSegmentsTest, ASessionsEndFindsWhatItHasNotUnmapped) {
  RetiredSegments retired;
  retired.Add(7, {1, 2}, 100, 10);
  retired.Add(8, {2}, 100, 10);
  EXPECT_THAT(retired.MappedBy(1), ElementsAre(7));
  EXPECT_THAT(retired.MappedBy(2), ElementsAre(7, 8));
  EXPECT_THAT(retired.MappedBy(3), IsEmpty());
}

TEST(RetiredSegmentsTest, BytesCountOnceTheyAreOldEnough) {
  RetiredSegments retired;
  EXPECT_EQ(retired.NextSince(0, 50), 0);
  retired.Add(7, {1}, 100, 10);
  retired.Add(8, {1}, 1000, 20);
  EXPECT_EQ(retired.BytesSince(59, 50), 0u);
  EXPECT_EQ(retired.BytesSince(60, 50), 100u);
  EXPECT_EQ(retired.BytesSince(70, 50), 1100u);
  EXPECT_EQ(retired.NextSince(30, 50), 60);
  EXPECT_EQ(retired.NextSince(60, 50), 70);
  EXPECT_EQ(retired.NextSince(70, 50), 0);
}

}  // namespace
}  // namespace sluice::weightd
