// JSON output, progress lines and whole-file helpers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command_line.h"
#include "cli/json.h"
#include "cli/terminal.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JsonTest, KeysKeepTheirOrderAndNumbersTheirKind) {
  const Json json = Json::Object()
                        .Set("b", 1)
                        .Set("a", 0.5)
                        .Set("u", UINT64_MAX)
                        .Set("n", -3)
                        .Set("t", true)
                        .Set("s", "x\"y")
                        .Set("l", std::vector<int32_t>{1, 2})
                        .Set("o", Json::Object())
                        .Set("z", Json());
  EXPECT_EQ(
      json.Dump(),
      R"({"b":1,"a":0.5,"u":18446744073709551615,"n":-3,"t":true,"s":"x\"y","l":[1,2],"o":{},"z":null})");
}

TEST(JsonTest, NonNumbersBecomeNullAndBadTextIsReplaced) {
  EXPECT_EQ(Json(std::nan("")).Dump(), "null");
  EXPECT_EQ(Json(std::string("a\xff")).Dump(), "\"a\xef\xbf\xbd\"");
}

TEST(JsonTest, CopiesAreIndependent) {
  Json one = Json::Object().Set("a", 1);
  Json two = one;
  two.Set("a", 2);
  EXPECT_EQ(one.Dump(), R"({"a":1})");
  EXPECT_EQ(two.Dump(), R"({"a":2})");
}

TEST(TokenIdsFromJsonTest, TakesAnArrayOfIds) {
  EXPECT_THAT(*TokenIdsFromJson(" [1, 2,\n2147483647]"), ElementsAre(1, 2, 2147483647));
}

TEST(TokenIdsFromJsonTest, RefusesEverythingElseNamingTheEntry) {
  for (const char* text : {"", "{}", "[1,", "[-1]", "[1.5]", "[2147483648]", "[\"1\"]", "[[1]]", "[null]"}) {
    EXPECT_EQ(TokenIdsFromJson(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(TokenIdsFromJson("[1,2,-3]").status().message()), HasSubstr("entry 2"));
}

TEST(ProgressLineTest, ShowsShareRateAndTimeLeft) {
  const std::string line =
      ProgressLine("packing", ProgressUnit::kBytes, 1ull << 30, 4ull << 30, absl::Seconds(2));
  EXPECT_EQ(line, "packing  [#####               ]  25 %  1.0 GiB of 4.0 GiB  512.0 MiB/s  6s left");
}

TEST(ProgressLineTest, UnknownTotalShowsNoBar) {
  EXPECT_EQ(ProgressLine("scoring", ProgressUnit::kTokens, 30, 0, absl::Seconds(2)),
            "scoring  30  15.0 tokens/s");
}

TEST(StyledTest, StylesOnlyOnATerminalWithoutNoColor) {
  unsetenv("NO_COLOR");
  EXPECT_EQ(Styled("x", Style::kRed, false), "x");
  EXPECT_NE(Styled("x", Style::kRed, true), "x");
  setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(Styled("x", Style::kRed, true), "x");
}

TEST(ReadWholeFileTest, ReadsBytesAndNamesWhatFailed) {
  char path[] = "/tmp/sluice-test-XXXXXX";
  const int fd = mkstemp(path);
  const std::string bytes("a\0b\r\n", 5);
  ASSERT_EQ(write(fd, bytes.data(), bytes.size()), 5);
  close(fd);
  EXPECT_EQ(*ReadWholeFile(path), bytes);
  unlink(path);
  const auto missing = ReadWholeFile(path);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(path));
}

TEST(FailTest, PrintsTheErrorAsTheOneObjectWithJson) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Fail("sluice run", absl::DataLossError("extent 3"), true), kExitFailed);
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "{\"error\":{\"code\":\"DATA_LOSS\",\"message\":\"extent 3\"}}\n");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "sluice run: DATA_LOSS: extent 3\n");
}

}  // namespace
}  // namespace sluice::cli
