#include "common/base/size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(ParseSizeTest, DecimalAndBinaryUnitsDiffer) {
  EXPECT_EQ(*ParseSize("512MiB"), 512ull << 20);
  EXPECT_EQ(*ParseSize("2GB"), 2'000'000'000ull);
  EXPECT_EQ(*ParseSize("3KiB"), 3072u);
  EXPECT_EQ(*ParseSize("3kb"), 3000u);
  EXPECT_EQ(*ParseSize("1TiB"), 1ull << 40);
}

TEST(ParseSizeTest, BareNumbersAreBytesAndBareLettersBinary) {
  EXPECT_EQ(*ParseSize("0"), 0u);
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("17 B"), 17u);
  EXPECT_EQ(*ParseSize("4g"), 4ull << 30);
}

TEST(ParseSizeTest, FractionsAndSpacesAreTaken) {
  EXPECT_EQ(*ParseSize(" 1.5 GiB "), 3ull << 29);
  EXPECT_EQ(*ParseSize(".5KiB"), 512u);
}

TEST(ParseSizeTest, LargestValueIsExactAndOneMoreIsRefused) {
  EXPECT_EQ(*ParseSize("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(ParseSize("18446744073709551616").ok());
  EXPECT_FALSE(ParseSize("20000000 TiB").ok());
}

TEST(ParseSizeTest, GarbageIsRefusedQuotingTheText) {
  for (const char* text : {"", " ", "MiB", "-1", "+1", "1..5", "5XB", "5 MiBs", "5K5", "1e9", "0x10", "."}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(size.status().message()), HasSubstr(absl::StrCat("'", text, "'")));
  }
}

TEST(FormatSizeTest, PicksTheUnitWithOneDecimal) {
  EXPECT_EQ(FormatSize(0), "0 B");
  EXPECT_EQ(FormatSize(1023), "1023 B");
  EXPECT_EQ(FormatSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatSize((1ull << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatSize(3ull << 30), "3.0 GiB");
}

TEST(ParseTimeSpanTest, UnitsAddUpAndABareNumberIsSeconds) {
  EXPECT_EQ(*ParseTimeSpan("10m"), absl::Minutes(10));
  EXPECT_EQ(*ParseTimeSpan("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseTimeSpan("250ms"), absl::Milliseconds(250));
  EXPECT_EQ(*ParseTimeSpan("0"), absl::ZeroDuration());
  EXPECT_EQ(*ParseTimeSpan("1.5"), absl::Milliseconds(1500));
}

TEST(ParseTimeSpanTest, GarbageIsRefusedQuotingTheText) {
  for (const char* text : {"", "m", "-5s", "5x", "10m5", "1h m", "99999999999h"}) {
    const auto duration = ParseTimeSpan(text);
    ASSERT_FALSE(duration.ok()) << text;
    EXPECT_THAT(std::string(duration.status().message()), HasSubstr(absl::StrCat("'", text, "'")));
  }
}

TEST(FormatTimeSpanTest, ShowsTwoUnitsAtMost) {
  EXPECT_EQ(FormatTimeSpan(absl::Milliseconds(350)), "350ms");
  EXPECT_EQ(FormatTimeSpan(absl::Seconds(12)), "12s");
  EXPECT_EQ(FormatTimeSpan(absl::Seconds(185)), "3m05s");
  EXPECT_EQ(FormatTimeSpan(absl::Seconds(7830)), "2h10m");
  EXPECT_EQ(FormatTimeSpan(-absl::Seconds(1)), "0ms");
}

}  // namespace
}  // namespace sluice
