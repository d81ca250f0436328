#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands/top_report.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TopSample At(int second) {
  TopSample sample;
  sample.at = absl::UnixEpoch() + absl::Seconds(second);
  sample.weightd = WeightdFacts();
  sample.weightd->life = 1;
  sample.weightd->dram_budget = 8ull << 30;
  sample.weightd->segment_bytes = 4ull << 30;
  sample.inferd = InferdFacts();
  return sample;
}

TEST(TopReportTest, CountersBecomeRatesPerSecond) {
  const TopSample before = At(0);
  TopSample now = At(2);
  now.inferd->steps = 10;
  now.inferd->generated_tokens = 40;
  now.inferd->expert_requests = 100;
  now.inferd->expert_hits = 75;
  now.weightd->ssd_requests = 6;
  now.weightd->ssd_bytes = 4 << 20;
  now.weightd->evictions = 8;
  now.weightd->errors = 3;
  now.weightd->slow_reads = 5;
  now.weightd->hedged_reads = 4;
  now.weightd->hedged_reads_won = 2;
  now.weightd->timed_out = 1;
  now.weightd->sessions_lost = 3;
  now.weightd->sessions_stopped = 2;
  const std::string text = TopText(before, now, /*terminal=*/false);
  for (const char* part : {"20.0 tokens/s", "experts resident 75.0 %", "3.0 from SSD", "SSD 2.0 MiB/s",
                           "4.0 evictions/s", "errors 3", "ended by weightd: 3, of these stopped 2",
                           "slow reads 5 (read again 4, won 2), timed out 1", "50 %", "4.0 GiB of 8.0 GiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const std::string json = TopJson(before, now).Dump();
  EXPECT_TRUE(IsJson(json));
  EXPECT_THAT(json, HasSubstr("\"tokens_per_second\":20.0"));
  EXPECT_THAT(json, HasSubstr("\"evictions_per_second\":4.0"));
  EXPECT_THAT(json, HasSubstr("\"slow_reads\":5"));
  EXPECT_THAT(json, HasSubstr("\"sessions_stopped\":2"));
}

TEST(TopReportTest, AbsentDaemonIsShownWithItsReason) {
  TopSample now = At(1);
  now.inferd.reset();
  now.inferd_why = "nobody listens";
  const std::string text = TopText(At(0), now, /*terminal=*/false);
  EXPECT_THAT(text, HasSubstr("absent: nobody listens"));
  EXPECT_THAT(text, HasSubstr("DRAM"));
  EXPECT_THAT(TopJson(At(0), now).Dump(), HasSubstr("\"inferd\":{\"absent\":\"nobody listens\"}"));
}

TEST(TopReportTest, NewLifeOrFirstSightHasNoRatesYet) {
  TopSample before = At(0);
  before.weightd->life = 1;
  before.inferd->steps = 100;
  TopSample now = At(1);
  now.weightd->life = 2;
  now.weightd->evictions = 50;
  now.inferd->steps = 5;
  now.inferd->generated_tokens = 5;
  const std::string restarted = TopText(before, now, /*terminal=*/false);
  EXPECT_THAT(restarted, HasSubstr(" 0.0 tokens/s"));
  EXPECT_THAT(restarted, HasSubstr(" 0.0 evictions/s"));
  before.weightd.reset();
  before.inferd.reset();
  EXPECT_THAT(TopText(before, now, /*terminal=*/false), HasSubstr(" 0.0 evictions/s"));
}

TEST(TopReportTest, SessionsAreListedWithWhatTheyHold) {
  TopSample now = At(1);
  now.weightd->sessions = {{"inferd", "active", 3ull << 20, 7}, {"", "lost", 0, 0}};
  const std::string text = TopText(At(0), now, /*terminal=*/false);
  EXPECT_THAT(text, HasSubstr("session inferd           active  holds 3.0 MiB, 7 outstanding"));
  EXPECT_THAT(text, HasSubstr("session -                lost"));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
}

}  // namespace
}  // namespace sluice::cli
