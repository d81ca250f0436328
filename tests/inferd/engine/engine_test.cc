// The engine from the client's view: answers, statistics, preemption.
#include "inferd/engine/engine.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "tests/inferd/engine/engine_fixture.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

TEST_F(EngineTest, ReportsUsageTimingsAndTheSeed) {
  Start();
  auto sink = std::make_shared<CollectingSink>();
  GenerateSpec spec = GreedySpec("a", {1, 5, 9}, 7);
  spec.sampling.seed = 77;
  ASSERT_TRUE(engine().Generate(spec, sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_TRUE(sink->started());
  const FinishInfo info = sink->info();
  EXPECT_EQ(info.reason, FinishReason::kLength);
  EXPECT_EQ(info.usage.prompt_tokens, 3u);
  EXPECT_EQ(info.usage.completion_tokens, 7u);
  EXPECT_EQ(sink->ids().size(), 7u);
  EXPECT_EQ(info.seed, 77u);
  // Two layers, two experts a row: the first step has three rows, six more have one.
  EXPECT_GE(info.timings.expert_requests, 6u * 2 * 2);
  EXPECT_LE(info.timings.expert_requests, 2u * (6 + 6 * 2));
  EXPECT_GT(info.timings.bytes_ssd, 0u);
  EXPECT_GT(info.timings.prompt_seconds, 0.0);
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_EQ(stats.generated_tokens, 7u);
  EXPECT_EQ(stats.prompt_tokens, 3u);
  EXPECT_EQ(stats.requests_finished, 1u);
  EXPECT_EQ(stats.steps, 7u);
  EXPECT_EQ(stats.decode_steps, 6u);
  EXPECT_EQ(stats.expert_requests, info.timings.expert_requests);
  EXPECT_GT(stats.weight_bytes_touched, 0u);
  EXPECT_EQ(stats.dense_leases_held, test_.client->pack().dense_extent_count());
}

TEST_F(EngineTest, ASecondRunFindsTheExpertsResident) {
  Start();
  Answer(GreedySpec("a", {1, 5, 9}, 7));
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("b", {1, 5, 9}, 7), sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_EQ(sink->info().timings.expert_hits, sink->info().timings.expert_requests);
  EXPECT_EQ(sink->info().timings.bytes_ssd, 0u);
}

TEST_F(EngineTest, EndTokensEndTheAnswerAndAreReported) {
  Start();
  const std::vector<int32_t> free_run = Answer(GreedySpec("a", {7, 8}, 40));
  // Any token of the free run can serve as the stop id.
  GenerateSpec spec = GreedySpec("b", {7, 8}, 40);
  spec.stopping.stop_token_ids = {free_run[3]};
  const auto first = std::find(free_run.begin(), free_run.end(), free_run[3]) - free_run.begin();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(spec, sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_EQ(sink->info().reason, FinishReason::kStop);
  EXPECT_EQ(sink->info().matched_stop_id, free_run[3]);
  EXPECT_EQ(sink->ids(), std::vector<int32_t>(free_run.begin(), free_run.begin() + first + 1));
}

TEST_F(EngineTest, MinTokensHoldsEndTokensOff) {
  Start();
  const std::vector<int32_t> free_run = Answer(GreedySpec("a", {7, 8}, 40));
  GenerateSpec spec = GreedySpec("b", {7, 8}, 40);
  spec.stopping.stop_token_ids = {free_run[0]};
  spec.stopping.min_tokens = 10;
  const std::vector<int32_t> ids = Answer(spec);
  ASSERT_GE(ids.size(), 10u);
  EXPECT_EQ(std::count(ids.begin(), ids.begin() + 10, free_run[0]), 0);
}

TEST_F(EngineTest, TheModelsEndTokensCountUnlessIgnored) {
  Start();
  // A penalty-free sampled run visits end tokens sooner or later; with ignore_eos it continues.
  GenerateSpec spec = GreedySpec("a", {7, 8}, 200);
  spec.sampling.temperature = 5.0f;
  spec.sampling.seed = 3;
  const std::vector<int32_t> all = Answer(spec);
  ASSERT_EQ(all.size(), 200u);
  const auto end = std::find_if(all.begin(), all.end(), [](int32_t id) { return id == 2 || id == 3; });
  ASSERT_NE(end, all.end()) << "choose another seed";
  spec.request_id = "b";
  spec.stopping.ignore_eos = false;
  EXPECT_EQ(Answer(spec), std::vector<int32_t>(all.begin(), end + 1));
}

TEST_F(EngineTest, TheSameSeedGivesTheSameTokensInAnyBatch) {
  options_.engine.parallel = 4;
  Start();
  GenerateSpec spec = GreedySpec("a", {7, 8}, 30);
  spec.sampling.temperature = 1.5f;
  spec.sampling.top_p = 0.95f;
  spec.sampling.repetition_penalty = 1.2f;
  spec.sampling.seed = 99;
  const std::vector<int32_t> alone = Answer(spec);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    spec.request_id = absl::StrCat("b", i);
    spec.sampling.seed = 99 + (i == 3 ? 1 : 0);
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine().Generate(spec, sinks.back()).ok());
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(sinks[i]->Await().ok());
    EXPECT_EQ(sinks[i]->ids() == alone, i < 3) << i;
  }
}

TEST_F(EngineTest, WithoutASeedOneIsDrawnAndReported) {
  Start();
  GenerateSpec spec = GreedySpec("a", {7, 8}, 30);
  spec.sampling.temperature = 1.5f;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(spec, sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  spec.request_id = "b";
  spec.sampling.seed = sink->info().seed;
  EXPECT_EQ(Answer(spec), sink->ids());
}

TEST_F(EngineTest, LogprobsAreThoseOfTheUnmodifiedRow) {
  Start();
  GenerateSpec spec = GreedySpec("a", {7, 8, 9}, 5);
  spec.logprobs = 3;
  spec.sampling.repetition_penalty = 3.0f;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(spec, sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  std::vector<int32_t> input = spec.prompt;
  const std::vector<int32_t> ids = sink->ids();
  input.insert(input.end(), ids.begin(), ids.end() - 1);
  const absl::StatusOr<std::vector<float>> logits = ScoreLogits(&engine(), "s", input);
  ASSERT_TRUE(logits.ok());
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* row = logits->data() + (2 + i) * 64;
    double sum = 0;
    for (int v = 0; v < 64; ++v) {
      sum += std::exp(double{row[v]});
    }
    const TokenOut out = sink->tokens()[i];
    EXPECT_NEAR(out.logprob, row[ids[i]] - std::log(sum), 1e-5);
    ASSERT_EQ(out.candidates.size(), 3u);
    EXPECT_EQ(out.candidates[0].token_id, std::max_element(row, row + 64) - row);
    EXPECT_GE(out.candidates[0].logprob, out.candidates[1].logprob);
    EXPECT_GE(out.candidates[1].logprob, out.candidates[2].logprob);
  }
}

TEST_F(EngineTest, ScoringReportsTargetsAndTheLikeliest) {
  Start();
  ScoreSpec spec;
  spec.request_id = "s";
  spec.input = {1, 2, 3, 4, 5, 6};
  spec.targets = {2, 3, 4, 5, 6, 7};
  spec.want_logits = true;
  auto sink = std::make_shared<CollectingScoreSink>();
  ASSERT_TRUE(engine().Score(spec, sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  const std::vector<float> logits = sink->logits();
  ASSERT_EQ(logits.size(), 6u * 64);
  for (int i = 0; i < 6; ++i) {
    const float* row = logits.data() + i * 64;
    double sum = 0;
    for (int v = 0; v < 64; ++v) {
      sum += std::exp(double{row[v]});
    }
    EXPECT_NEAR(sink->target_logprobs()[i], row[spec.targets[i]] - std::log(sum), 1e-5);
    EXPECT_EQ(sink->argmax()[i], std::max_element(row, row + 64) - row);
  }
  EXPECT_EQ(AwaitQuiet(engine()).prompt_tokens, 6u);
}

TEST_F(EngineTest, CongestedConsumerDelaysOnlyItself) {
  options_.engine.prefill_chunk = 8;
  Start();
  ScoreSpec spec;
  spec.request_id = "s";
  spec.input = std::vector<int32_t>(100, 4);
  auto sink = std::make_shared<CollectingScoreSink>();
  sink->SetCongested(true);
  ASSERT_TRUE(engine().Score(spec, sink).ok());
  sink->AwaitQuestion();
  EXPECT_EQ(Answer(GreedySpec("a", {7, 8}, 20)).size(), 20u);
  EXPECT_FALSE(sink->ended());
  EXPECT_TRUE(sink->argmax().empty());
  sink->SetCongested(false);
  ASSERT_TRUE(sink->Await().ok());
  EXPECT_EQ(sink->argmax().size(), 100u);
}

TEST_F(EngineTest, PreemptedSequencesGiveTheSameTokens) {
  options_.engine.parallel = 4;
  options_.engine.context = 128;
  Start();
  std::vector<std::vector<int32_t>> wanted;
  for (int i = 0; i < 4; ++i) {
    wanted.push_back(Answer(GreedySpec(absl::StrCat("w", i), {4 + i, 9, 11}, 100)));
  }
  test_.engine.reset();
  options_.engine.kv_budget = 6 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  ASSERT_EQ(engine().Stats().kv_pages_total, 6u);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine().Generate(GreedySpec(absl::StrCat("a", i), {4 + i, 9, 11}, 100), sinks.back()).ok());
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(sinks[i]->Await().ok());
    EXPECT_EQ(sinks[i]->ids(), wanted[i]);
  }
  EXPECT_EQ(AwaitQuiet(engine()).kv_pages_used, 0u);
}

TEST_F(EngineTest, PreemptedScoringRepeatsNoRow) {
  options_.engine.parallel = 2;
  options_.engine.context = 128;
  options_.engine.prefill_chunk = 4;
  Start();
  const absl::StatusOr<std::vector<float>> wanted = ScoreLogits(&engine(), "w", std::vector<int32_t>(90, 5));
  ASSERT_TRUE(wanted.ok());
  test_.engine.reset();
  options_.engine.kv_budget = 4 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  auto answer = std::make_shared<CollectingSink>();
  GenerateSpec important = GreedySpec("a", {4, 9, 11}, 100);
  important.priority = 1;
  ASSERT_TRUE(engine().Generate(important, answer).ok());
  const absl::StatusOr<std::vector<float>> got = ScoreLogits(&engine(), "s", std::vector<int32_t>(90, 5));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, *wanted);
  EXPECT_TRUE(answer->Await().ok());
}

}  // namespace
}  // namespace sluice::inferd
