// Resizes of the KV cache while requests run: no token changes, no request ends, and impossible sizes are
// refused.
#include <cstdlib>
#include <random>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/inferd/engine/engine_fixture.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

// A hundred with SLUICE_STRESS=full.
int Resizes() {
  const char* stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::string(stress) == "full" ? 100 : 30;
}

class KvTuneTest : public EngineTest {
 protected:
  std::shared_ptr<CollectingSink> Send(const GenerateSpec& spec) {
    auto sink = std::make_shared<CollectingSink>();
    const absl::Status status = engine().Generate(spec, sink);
    EXPECT_TRUE(status.ok()) << status;
    return sink;
  }
  GenerateSpec Spec(int i) { return GreedySpec(absl::StrCat("r", i), {4, 9, 11, i % 8, i % 5}, 60); }
};

TEST_F(KvTuneTest, RandomSizesUnderEightClientsChangeNoToken) {
  options_.engine.parallel = 8;
  Start();
  std::vector<std::vector<int32_t>> wanted;
  for (int i = 0; i < 40; ++i) wanted.push_back(Answer(Spec(i)));
  const Engine::KvTuned full = engine().Kv();
  const uint64_t page = full.bytes / full.pages;
  const uint32_t least = full.pages / 8;  // one context
  std::mt19937 random(1);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  uint64_t restarted = 0;
  for (int resize = 0; resize < Resizes(); ++resize) {
    if (resize % 20 == 0) {
      // Eight run, the others wait.
      for (int i = 0; i < 8; ++i) {
        GenerateSpec spec = Spec(resize / 20 * 8 + i);
        spec.request_id = absl::StrCat(resize, "-", i);
        sinks.push_back(Send(spec));
      }
      sinks.back()->AwaitTokens(1);
    }
    const uint32_t pages = least + random() % (full.pages - least + 1);
    const auto tuned = engine().TuneKv(pages * page, std::nullopt);
    ASSERT_TRUE(tuned.ok()) << tuned.status();
    EXPECT_EQ(tuned->pages, pages);
    EXPECT_EQ(engine().Kv().pages, pages);
    EXPECT_EQ(engine().Stats().kv_pages_total, pages);
    restarted += tuned->restarted;
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->Await().ok()) << i;
    EXPECT_EQ(sinks[i]->ids(), wanted[i]) << i;
  }
  EXPECT_GT(restarted, 0u) << "sequences ran while it changed";
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.requests_failed, 0u);
  EXPECT_EQ(stats.kv_pages_used, 0u);
}

TEST_F(KvTuneTest, PrefixesAreFoundAgainAfterAResize) {
  options_.engine.parallel = 2;
  Start();
  const GenerateSpec spec = GreedySpec("a", std::vector<int32_t>(100, 7), 8);
  const std::vector<int32_t> wanted = Answer(spec);
  const Engine::KvTuned before = engine().Kv();
  ASSERT_TRUE(engine().TuneKv(before.bytes / 2, std::nullopt).ok());
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_cached, 0u) << "what was there is gone";
  const uint64_t cached = engine().Stats().cached_prompt_tokens;
  EXPECT_EQ(Answer(spec), wanted);
  EXPECT_EQ(engine().Stats().cached_prompt_tokens, cached);
  EXPECT_EQ(Answer(spec), wanted);
  EXPECT_GT(engine().Stats().cached_prompt_tokens, cached) << "and found again";
}

TEST_F(KvTuneTest, TooSmallBudgetIsRefusedWithNumbers) {
  Start();
  const Engine::KvTuned before = engine().Kv();
  const uint64_t one = before.bytes / before.pages;
  const auto refused = engine().TuneKv(one, std::nullopt);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), absl::StrCat(one))) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "8 pages")) << refused.status();
  EXPECT_TRUE(absl::IsInvalidArgument(engine().TuneKv(std::nullopt, 257).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(engine().TuneKv(std::nullopt, 0).status()));
  EXPECT_EQ(engine().Kv().pages, before.pages);
  EXPECT_EQ(engine().Kv().context, 256u);
}

TEST_F(KvTuneTest, ShorterContextAllowsASmallerCache) {
  Start();
  const Engine::KvTuned before = engine().Kv();
  const uint64_t one = before.bytes / before.pages;
  const auto running = Send(GreedySpec("long", {7, 8}, 250));
  running->AwaitTokens(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine().TuneKv(2 * one, 64).status()))
      << "it may take a whole context";
  EXPECT_EQ(engine().Kv().context, 256u) << "refused as a whole";
  ASSERT_TRUE(running->Await().ok());
  AwaitQuiet(engine());
  const auto tuned = engine().TuneKv(2 * one, 64);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(tuned->pages, 2u);
  EXPECT_EQ(tuned->context, 64u);
  auto sink = std::make_shared<CollectingSink>();
  EXPECT_TRUE(
      absl::IsInvalidArgument(engine().Generate(GreedySpec("b", std::vector<int32_t>(70, 7), 1), sink)));
  EXPECT_EQ(Answer(GreedySpec("c", {7, 8}, 20)).size(), 20u);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine().TuneKv(std::nullopt, 256).status()))
      << "two pages are no context";
  ASSERT_TRUE(engine().TuneKv(before.bytes, 256).ok());
  EXPECT_EQ(engine().Kv().pages, before.pages);
  EXPECT_EQ(Answer(GreedySpec("d", std::vector<int32_t>(70, 7), 4)).size(), 4u);
}

TEST_F(KvTuneTest, AsynchronousDeviceIsAwaited) {
  options_.delay_seed = 5;
  options_.engine.parallel = 4;
  Start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(Send(Spec(i)));
  sinks[0]->AwaitTokens(1);
  const Engine::KvTuned full = engine().Kv();
  for (const uint64_t share : {2, 1, 4, 1}) {
    ASSERT_TRUE(engine().TuneKv(full.bytes / share, std::nullopt).ok());
  }
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(sinks[i]->Await().ok());
  for (int i = 0; i < 4; ++i) {
    GenerateSpec spec = Spec(i);
    spec.request_id = absl::StrCat("again", i);
    EXPECT_EQ(sinks[i]->ids(), Answer(spec)) << i;
  }
}

}  // namespace
}  // namespace sluice::inferd
