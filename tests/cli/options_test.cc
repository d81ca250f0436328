// Common options, the daemons' command lines, and codes in logs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "cli/daemon_options.h"
#include "cli/measure/bench_run.h"
#include "cli/runtime_paths.h"
#include "cli/terminal.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

CommonOptions Parse(const std::vector<std::string>& args) {
  CommonOptions options;
  ArgParser parser("sluice test", "A test.");
  options.Declare(&parser);
  EXPECT_EQ(parser.Parse(args), std::nullopt);
  return options;
}

TEST(CommonOptionsTest, OnlyWhatWasGivenReachesTheDaemons) {
  const CommonOptions none = Parse({"--pack", "p"});
  EXPECT_THAT(none.InferdSettings(), IsEmpty());
  EXPECT_THAT(none.WeightdSettings(), IsEmpty());
  const CommonOptions some =
      Parse({"--pack", "p", "--kv", "f32", "--threads", "2", "--dram-budget", "6MiB", "--direct", "off"});
  EXPECT_THAT(some.InferdSettings(), ElementsAre(OptionText{"kv", "f32"}, OptionText{"threads", "2"}));
  EXPECT_THAT(some.WeightdSettings(),
              ElementsAre(OptionText{"dram-budget", "6291456"}, OptionText{"direct", "off"}));
  EXPECT_THAT(AsFlags(some.InferdSettings()), ElementsAre("--kv", "f32", "--threads", "2"));
}

TEST(CommonOptionsTest, DeviceBudgetIsBytesOrAShare) {
  EXPECT_THAT(Parse({"--pack", "p", "--device-budget", "1MiB"}).InferdSettings(),
              ElementsAre(OptionText{"device-budget", "1048576"}));
  EXPECT_EQ(Parse({"--pack", "p", "--device-budget", "50%"}).ValueOr("device-budget", ""), "50%");
  CommonOptions options;
  ArgParser parser("sluice test", "A test.");
  options.Declare(&parser);
  EXPECT_EQ(parser.Parse({"--pack", "p", "--device-budget", "150%"}), kExitUsage);
}

TEST(CommonOptionsTest, PackIsRequired) {
  CommonOptions options;
  ArgParser parser("sluice test", "A test.");
  options.Declare(&parser);
  EXPECT_EQ(parser.Parse({}), kExitUsage);
}

TEST(SameOptionValueTest, ComparesByMeaning) {
  EXPECT_TRUE(SameOptionValue("f32", "f32"));
  EXPECT_TRUE(SameOptionValue("16", "16.0"));
  EXPECT_TRUE(SameOptionValue("6MiB", "6291456"));
  EXPECT_FALSE(SameOptionValue("f32", "f16"));
  EXPECT_FALSE(SameOptionValue("", "8"));
  EXPECT_FALSE(SameOptionValue("6MiB", "6MB"));
}

TEST(DaemonsOfTest, CommandLinesNameSocketsPackAndOptions) {
  const RuntimePaths paths("/r");
  const CommonOptions options =
      Parse({"--pack", "p", "--kv", "f32", "--dram-budget", "1024", "--no-restart"});
  const SupervisorOptions daemons = DaemonsOf(paths, "/bin", "/abs/p", options);
  EXPECT_FALSE(daemons.restart);
  ASSERT_EQ(daemons.daemons.size(), 2u);
  EXPECT_THAT(daemons.daemons[0].argv, ElementsAre("/bin/weightd", "--socket", "/r/weightd.sock", "--pack",
                                                   "/abs/p", "--dram-budget", "1024"));
  EXPECT_THAT(daemons.daemons[1].argv,
              ElementsAre("/bin/inferd", "--pack", "/abs/p", "--weightd", "/r/weightd.sock", "--listen",
                          "unix:/r/inferd.sock", "--admin", "unix:/r/inferd-admin.sock", "--self-test", "off",
                          "--kv", "f32"));
}

TEST(DaemonsOfTest, ServersProveThemselvesFirst) {
  CommonOptions options = Parse({"--pack", "p"});
  options.self_test = true;
  EXPECT_THAT(DaemonsOf(RuntimePaths("/r"), "/bin", "/abs/p", options).daemons[1].argv,
              testing::Not(testing::Contains("--self-test")));
}

TEST(AdminAddressOfTest, FollowsTheNamesOfTheRuntimeDirectory) {
  EXPECT_EQ(AdminAddressOf("unix:/r/inferd.sock"), "unix:/r/inferd-admin.sock");
  EXPECT_EQ(AdminAddressOf("unix:/r/other.sock"), "");
  EXPECT_EQ(AdminAddressOf("127.0.0.1:7070"), "");
}

TEST(AdminAddressFromTest, TakesASocketByAddressOrPathAndNothingElse) {
  EXPECT_EQ(*AdminAddressFrom("unix:/r/ops.sock"), "unix:/r/ops.sock");
  EXPECT_EQ(*AdminAddressFrom("/r/ops.sock"), "unix:/r/ops.sock");
  for (const char* wrong : {"", "127.0.0.1:7070", "unix:"}) {
    EXPECT_EQ(AdminAddressFrom(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(RandomInputTest, TheSeedDecidesAndAnotherGivesOtherPrompts) {
  const BenchTest test{.prompt = 32, .generate = 1, .batch = 2};
  const BenchInput input = RandomInput(test, 1000, 1);
  ASSERT_EQ(input.prompts.size(), 2u);
  EXPECT_EQ(input.prompts[0].size(), 32u);
  EXPECT_NE(input.prompts[0], input.prompts[1]);
  EXPECT_EQ(RandomInput(test, 1000, 1).prompts, input.prompts);
  EXPECT_NE(RandomInput(test, 1000, 2).prompts, input.prompts);
}

TEST(LogTailTest, GivesTheLastLinesIndented) {
  char path[] = "/tmp/sluice-test-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << "one\ntwo\nthree\n";
  EXPECT_EQ(LogTail(path, 2), "\n  two\n  three");
  unlink(path);
  EXPECT_EQ(LogTail(path, 2), "");
}

TEST(LastWordsTest, GivesAnErrorThatEndsTheLogAloneElseTheTail) {
  char path[] = "/tmp/sluice-test-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << "2026-01-01T00:00:00.000 info pack=p\n"
                         "2026-01-01T00:00:01.000 error ended while starting: NOT_FOUND: p\n";
  EXPECT_EQ(LastWords(path, 2), absl::StrCat("ended while starting: NOT_FOUND: p (", path, ")"));
  std::ofstream(path) << "terminate called\n  without an error of the log\n";
  EXPECT_EQ(LastWords(path, 2),
            absl::StrCat(path, " ends with:\n  terminate called\n    without an error of the log"));
  std::ofstream(path) << "";
  EXPECT_EQ(LastWords(path, 2), absl::StrCat(path, " ends with:"));
  unlink(path);
}

TEST(CodeFromTextTest, LastCodeNameWins) {
  const auto code = [](const std::string& text) {
    return CodeFromText(text, absl::StatusCode::kUnavailable, "m").code();
  };
  EXPECT_EQ(code("DATA_LOSS: extent 3"), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code("UNAVAILABLE: later\ninferd: RESOURCE_EXHAUSTED: 4 GiB"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("DATA_LOSS: x\nUNAVAILABLE: y"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("nothing known"), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sluice::cli
