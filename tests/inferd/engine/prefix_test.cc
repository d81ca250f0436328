// Sequences with common prefixes: cached tokens, sharing rules, and that no token changes.
#include "common/base/status.h"
#include "gmock/gmock.h"
#include "tests/inferd/engine/prefix_fixture.h"

namespace sluice::inferd {
namespace {

TEST_F(PrefixTest, TheSecondTurnComputesItsNewTokensOnly) {
  Start();
  const std::vector<int32_t> prompt = Text(1, 100);
  const Said first = Say(prompt, 20);
  EXPECT_EQ(first.cached, 0u);
  // The last token of the answer was sampled but never computed.
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const EngineStats before = AwaitQuiet(engine());
  EXPECT_EQ(before.kv_pages_used, 0u);
  EXPECT_EQ(before.kv_pages_cached, 4u);
  const Said second = Say(next, 8);
  EXPECT_EQ(second.cached, 119u);
  const EngineStats after = AwaitQuiet(engine());
  EXPECT_EQ(after.steps - before.steps, 8u);
  EXPECT_EQ(after.cached_prompt_tokens, 119u);
  EXPECT_EQ(after.prompt_tokens, 100u + 125u);
  ExpectSame(second, SayAnew(next, 8));
}

TEST_F(PrefixTest, SecondTurnContinuesFromAKeptState) {
  StartFamily("qwen3_5_moe");
  const std::vector<int32_t> prompt = Text(1, 70);
  const Said first = Say(prompt, 20);
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const Said second = Say(next);
  EXPECT_EQ(second.cached, 89u);
  ExpectSame(second, SayAnew(next));
  // Another answer: both continue from the end of the prompt.
  const std::vector<int32_t> other = prompt + Text(3, 9);
  const Said third = Say(other);
  EXPECT_EQ(third.cached, 70u);
  ExpectSame(third, SayAnew(other));
}

TEST_F(PrefixTest, StateIsKeptAtTheDivergence) {
  StartFamily("qwen3_5_moe");
  const std::vector<int32_t> common = Text(1, 85);
  EXPECT_EQ(Say(common + Text(2, 10)).cached, 0u);
  EXPECT_EQ(Say(common + Text(3, 10)).cached, 0u);
  const Said third = Say(common + Text(4, 10));
  EXPECT_EQ(third.cached, 85u);
  ExpectSame(third, SayAnew(common + Text(4, 10)));
}

// Texts of more blocks of keys than a sparse layer chooses: a reused page without its index keys would change
// the choice.
TEST_F(PrefixTest, SparseLayersContinueFromCachedKeys) {
  StartFamily("minimax_m3");
  const std::vector<int32_t> prompt = Text(1, 70);
  const Said first = Say(prompt, 20);
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const Said second = Say(next, 8);
  EXPECT_EQ(second.cached, 89u);
  ExpectSame(second, SayAnew(next, 8));
  // Another text from the middle of a page, which is copied.
  const std::vector<int32_t> other = std::vector<int32_t>(prompt.begin(), prompt.begin() + 50) + Text(3, 30);
  const Said third = Say(other, 8);
  EXPECT_GE(third.cached, 50u);
  ExpectSame(third, SayAnew(other, 8));
}

TEST_F(PrefixTest, SequencesMayDivergeWithinAPage) {
  Start();
  const std::vector<int32_t> common = Text(1, 50);
  Say(common + Text(2, 30), 10);
  for (const size_t parts : {50u, 33u, 32u, 31u, 1u}) {
    const std::vector<int32_t> text =
        std::vector<int32_t>(common.begin(), common.begin() + parts) + Text(40 + parts, 40);
    const Said said = Say(text, 10);
    EXPECT_GE(said.cached, parts);  // random tokens may agree by chance
    EXPECT_LE(said.cached, parts + 2);
    ExpectSame(said, SayAnew(text, 10));
  }
}

TEST_F(PrefixTest, SamePromptComputesOnlyItsLastToken) {
  Start();
  for (const size_t length : {1u, 2u, 32u, 33u, 64u, 65u, 90u}) {
    const std::vector<int32_t> text = Text(100 + length, length);
    const Said first = Say(text);
    const Said again = Say(text);
    EXPECT_EQ(again.cached, length - 1);
    ExpectSame(again, first);
  }
}

TEST_F(PrefixTest, SaltsSeparateSequences) {
  Start();
  GenerateSpec spec = Spec(Text(1, 80), 4);
  spec.cache_salt = "mine";
  const Said mine = Say(spec);
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
  spec.request_id = "others";
  spec.cache_salt = "yours";
  EXPECT_EQ(Say(spec).cached, 0u);
  spec.request_id = "again";
  spec.cache_salt = "mine";
  const Said again = Say(spec);
  EXPECT_EQ(again.cached, 79u);
  ExpectSame(again, mine);
}

TEST_F(PrefixTest, BypassNeitherReadsNorStores) {
  Start();
  SayAnew(Text(1, 80));
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_cached, 0u);
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
  EXPECT_EQ(SayAnew(Text(1, 80)).cached, 0u);
}

TEST_F(PrefixTest, ScoringDoesNotUseTheCache) {
  Start();
  Say(Text(1, 80));
  const uint64_t kept = AwaitQuiet(engine()).kv_pages_cached;
  ASSERT_TRUE(ScoreLogits(&engine(), "s", Text(1, 80)).ok());
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.cached_prompt_tokens, 0u);
  EXPECT_EQ(stats.kv_pages_cached, kept);
}

TEST_F(PrefixTest, RunningSequenceSharesItsPrefix) {
  Start();
  const std::vector<int32_t> common = Text(1, 70);
  auto running = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(Spec(common, 150), running).ok());
  running->AwaitTokens(3);
  const std::vector<int32_t> text = common + Text(2, 9);
  const Said beside = Say(text);
  EXPECT_GE(beside.cached, 70u);
  ASSERT_TRUE(running->Await().ok());
  const Said alone = SayAnew(common, 150);
  EXPECT_EQ(running->ids(), alone.ids);
  ExpectSame(beside, SayAnew(text));
}

TEST_F(PrefixTest, EvictedPrefixIsRecomputed) {
  options_.engine.kv_budget = 10 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  const Said first = Say(Text(1, 90), 10);
  for (uint32_t other = 2; other < 12; ++other) {
    Say(Text(other, 90), 10);
    const EngineStats stats = AwaitQuiet(engine());
    EXPECT_EQ(stats.kv_pages_used, 0u);
    EXPECT_LE(stats.kv_pages_cached, 10u);
  }
  const Said again = Say(Text(1, 90), 10);
  EXPECT_EQ(again.cached, 0u);
  ExpectSame(again, first);
  EXPECT_EQ(Say(Text(1, 90), 10).cached, 89u);
}

TEST_F(PrefixTest, SharedBeginningOutlivesTheEnds) {
  options_.engine.kv_budget = 10 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  const std::vector<int32_t> common = Text(1, 64);
  for (uint32_t other = 2; other < 20; ++other) {
    const uint32_t cached = Say(common + Text(other, 60)).cached;
    EXPECT_TRUE(other == 2 || cached >= 64) << other;
  }
}

TEST_F(PrefixTest, WithoutTheCacheNothingIsKept) {
  options_.engine.prefix_cache = false;
  Start();
  EXPECT_THAT(engine().description(), testing::HasSubstr("no prefix is reused: --prefix-cache off"));
  Say(Text(1, 80));
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_cached, 0u);
}

TEST_F(PrefixTest, ARecordedTraceHasEveryRow) {
  options_.engine.trace = dir_.File("trace");
  Start();
  EXPECT_THAT(engine().description(), testing::HasSubstr("a trace is recorded"));
  Say(Text(1, 80));
  EXPECT_EQ(Say(Text(1, 80)).cached, 0u);
}

// Policies that treat generated tokens differently, or by residency: an answer is recomputed as a part of the
// next prompt, as without the cache; prompts are computed exactly.
class LossyPrefixTest : public PrefixTest, public testing::WithParamInterface<std::vector<std::string>> {};

TEST_P(LossyPrefixTest, OnlyPromptsServePrompts) {
  const std::vector<std::string>& words = GetParam();
  options_.threads = 1;
  options_.engine.device = DeviceKind::kSim;
  options_.engine.slab.budget = (*Pack::Open(pack_))->total_expert_bytes() / 2;
  options_.engine.preset = words.front();
  options_.engine.policies.policy.assign(words.begin() + 1, words.end());
  Start();
  EXPECT_THAT(engine().description(), testing::HasSubstr("prefixes are reused of prompts alone"));
  const std::vector<int32_t> prompt = Text(1, 70);
  const Said first = Say(prompt, 40);
  const std::vector<int32_t> next = prompt + first.ids + Text(2, 5);
  const Said second = Say(next, 1);  // its logits come from the prompt's last row
  EXPECT_EQ(second.cached, 70u);
  ExpectSame(second, SayAnew(next, 1));
  const Said third = Say(next + Text(3, 5), 1);
  EXPECT_EQ(third.cached, next.size());
  ExpectSame(third, SayAnew(next + Text(3, 5), 1));
}

INSTANTIATE_TEST_SUITE_P(Policies, LossyPrefixTest,
                         testing::Values(std::vector<std::string>{"importance"},
                                         std::vector<std::string>{"exact", "expert_miss=proceed"},
                                         std::vector<std::string>{"corm"},
                                         std::vector<std::string>{"adapmoe", "first_layer=off",
                                                                  "score_threshold=0.1"}),
                         [](const testing::TestParamInfo<std::vector<std::string>>& info) {
                           const std::string& last = info.param.back();
                           return info.param.size() == 2 ? last.substr(last.find('=') + 1)
                                                         : info.param.front();
                         });

}  // namespace
}  // namespace sluice::inferd
