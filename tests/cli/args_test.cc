#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/command_line.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Values {
  std::string pack;
  std::optional<std::string> text;
  std::vector<std::string> stops;
  std::optional<std::string> kv;
  std::optional<uint64_t> n;
  std::optional<double> temperature;
  std::optional<uint64_t> budget;
  std::optional<absl::Duration> keep;
  std::optional<bool> direct;
  bool json = false;
};

// The exit code of parsing, -1 for "go on".
int Parse(const std::vector<std::string>& args, Values* v) {
  ArgParser parser("sluice test", "A test.");
  parser.Text("--pack", &v->pack, "a pack")
      .Required()
      .Text("--text", &v->text, "a text")
      .Texts("--stop", &v->stops, "a stop")
      .Choice("--kv", {"f32", "f16"}, &v->kv, "type")
      .Number("-n,--tokens", &v->n, "count", 1, 100)
      .Real("--temperature", &v->temperature, "heat", 0, 2)
      .Size("--dram-budget", &v->budget, "bytes")
      .TimeSpan("--keep", &v->keep, "time")
      .Values(
          "--direct", /*repeats=*/false,
          [v](const std::vector<std::string>& texts) {
            v->direct = texts[0] == "on";
            return texts[0] == "on" || texts[0] == "off" ? absl::OkStatus()
                                                         : absl::InvalidArgumentError("neither on nor off");
          },
          "reads")
      .Flag("--json", &v->json, "JSON");
  return parser.Parse(args).value_or(-1);
}

TEST(ArgParserTest, EveryKindOfValueLandsInItsVariable) {
  Values v;
  ASSERT_EQ(Parse({"--pack", "p",   "--text",   "t",   "--stop",        "a",   "--stop",        "b",
                   "--kv",   "f16", "-n",       "7",   "--temperature", "0.5", "--dram-budget", "2MiB",
                   "--keep", "10m", "--direct", "off", "--json"},
                  &v),
            -1);
  EXPECT_EQ(v.pack, "p");
  EXPECT_EQ(v.text, "t");
  EXPECT_THAT(v.stops, ElementsAre("a", "b"));
  EXPECT_EQ(v.kv, "f16");
  EXPECT_EQ(v.n, 7u);
  EXPECT_EQ(v.temperature, 0.5);
  EXPECT_EQ(v.budget, 2u << 20);
  EXPECT_EQ(v.keep, absl::Minutes(10));
  EXPECT_EQ(v.direct, false);
  EXPECT_TRUE(v.json);
}

TEST(ArgParserTest, AbsentOptionsStayEmpty) {
  Values v;
  ASSERT_EQ(Parse({"--pack", "p"}, &v), -1);
  EXPECT_FALSE(v.text.has_value() || v.kv.has_value() || v.n.has_value() || v.budget.has_value());
}

TEST(ArgParserTest, ValuesMayBeEmptyOrBeginWithADash) {
  Values v;
  ASSERT_EQ(Parse({"--pack=p", "--text", "-- no", "--stop", "", "--stop", "--json"}, &v), -1);
  EXPECT_EQ(v.text, "-- no");
  EXPECT_THAT(v.stops, ElementsAre("", "--json"));
  EXPECT_FALSE(v.json);
  ASSERT_EQ(Parse({"--pack=p", "--text", ""}, &v), -1);
  EXPECT_EQ(v.text, "");
  ASSERT_EQ(Parse({"--pack=p", "--text", "[a, b] {c} \"d\" %x"}, &v), -1);
  EXPECT_EQ(v.text, "[a, b] {c} \"d\" %x");
}

TEST(ArgParserTest, WrongUsageExitsWithTwo) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {},
           {"--pack"},
           {"--pack", "p", "--unknown"},
           {"--pack", "p", "extra"},
           {"--pack", "p", "--kv", "f64"},
           {"--pack", "p", "-n", "0"},
           {"--pack", "p", "-n", "101"},
           {"--pack", "p", "-n", "-1"},
           {"--pack", "p", "-n", "1.5"},
           {"--pack", "p", "--temperature", "nan"},
           {"--pack", "p", "--temperature", "2.1"},
           {"--pack", "p", "--dram-budget", "many"},
           {"--pack", "p", "--keep", "soon"},
           {"--pack", "p", "--direct", "maybe"},
       }) {
    Values v;
    EXPECT_EQ(Parse(args, &v), kExitUsage) << ::testing::PrintToString(args);
  }
}

TEST(ArgParserTest, HelpFitsOneScreenAndExitsWithZero) {
  Values v;
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse({"--help"}, &v), kExitOk);
  std::istringstream help(::testing::internal::GetCapturedStdout());
  int lines = 0;
  for (std::string line; std::getline(help, line); ++lines) {
    EXPECT_LE(line.size(), 110u) << line;
  }
  EXPECT_GT(lines, 10);
  EXPECT_LE(lines, 40);
}

TEST(ParseNumberListTest, TakesNumbersInRangeAndNamesTheOffender) {
  EXPECT_THAT(*ParseNumberList("1, 3,16", "-b", 1, 64), ElementsAre(1, 3, 16));
  EXPECT_TRUE(ParseNumberList("", "-b", 1, 64)->empty());
  for (const char* text : {"1,,2", "0", "65", "1;2", "a"}) {
    const auto list = ParseNumberList(text, "-b", 1, 64);
    ASSERT_FALSE(list.ok()) << text;
    EXPECT_THAT(std::string(list.status().message()), HasSubstr("-b"));
  }
}

TEST(ParseTokenIdsTest, EmptyListAndNegativeIdsAreRefused) {
  EXPECT_THAT(*ParseTokenIds("1,2,2147483647"), ElementsAre(1, 2, 2147483647));
  EXPECT_FALSE(ParseTokenIds("").ok());
  EXPECT_FALSE(ParseTokenIds("-1").ok());
  EXPECT_FALSE(ParseTokenIds("2147483648").ok());
}

TEST(SplitListTest, EmptyEntriesFall) { EXPECT_THAT(SplitList("a,,b,"), ElementsAre("a", "b")); }

}  // namespace
}  // namespace sluice::cli
