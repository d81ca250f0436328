// Speculation never changes an answer: tokens, logprobs, text and ends equal those of plain decoding, in
// random draws of requests, devices, batches, budgets, drafts, cancels and deaths of weightd.
#include "inferd/engine/speculation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inferd/cache/slab_plan.h"
#include "inferd/model/kv_cache.h"
#include "inferd/model/recurrent_states.h"
#include "tests/inferd/engine/engine_fixture.h"
#include "tests/support/tensor_file.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

template <typename T>
T OneOf(std::mt19937* random, std::initializer_list<T> values) {
  return *(values.begin() + (*random)() % values.size());
}

uint64_t SumOf(const std::array<uint64_t, 8>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

struct Case {
  const char* name;
  const char* folder;  // of a model; empty: made here
  uint32_t window = 0;
  uint32_t draws = 2;
  bool text = false;  // the folder has a tokenizer
  bool mtp = false;   // an MTP layer is added, which echoes
  bool luck = true;   // some draft must be right
};

class SpeculationTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kRequests = 7;

  void SetUp() override {
    pack_ = dir_.File("pack");
    std::string folder = GetParam().folder;
    if (GetParam().mtp) {
      const absl::Status added = AddEchoingMtpLayer(folder, dir_.File("mtp"));
      ASSERT_TRUE(added.ok()) << added;
      folder = dir_.File("mtp");
    }
    TinyModelSpec tiny = SmallModel();
    tiny.sliding_window = GetParam().window;
    const absl::Status packed =
        folder.empty() ? PackTiny(tiny, dir_.File("model"), pack_) : PackFolder(folder, pack_);
    ASSERT_TRUE(packed.ok()) << packed;
    if (GetParam().text) {
      absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(folder);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      tokenizer_ = std::move(*tokenizer);
    }
    const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
    vocab_ = pack->config().vocab;
    has_mtp_ = pack->config().mtp_layers > 0;
    ASSERT_TRUE(has_mtp_ || !GetParam().mtp);
    std::mt19937 random(11);
    for (int i = 0; i < kRequests; ++i) {
      specs_.push_back(RandomSpec(i, &random));
    }
    TestEngineOptions plain = Options();
    plain.engine.parallel = 1;
    absl::StatusOr<TestEngine> test = StartEngine(pack_, plain);
    ASSERT_TRUE(test.ok()) << test.status();
    for (const GenerateSpec& spec : specs_) {
      wanted_.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(test->engine->Generate(spec, wanted_.back()).ok());
      ASSERT_TRUE(wanted_.back()->Await().ok()) << wanted_.back()->Await();
    }
    EXPECT_EQ(SumOf(AwaitQuiet(*test->engine).drafts_verified), 0u);
  }

  TestEngineOptions Options() const {
    TestEngineOptions options;
    options.engine.context = 256;
    options.engine.max_logprobs = 5;
    options.engine.stall_limit = absl::Seconds(60);  // a loaded machine must not fail the test
    options.engine.weightd_grace = absl::Seconds(60);
    options.tokenizer = tokenizer_.get();
    return options;
  }

  // A prompt that repeats itself with changes, so that drafts are right for a while.
  std::vector<int32_t> RepeatingPrompt(std::mt19937* random) const {
    std::vector<int32_t> prompt;
    if (tokenizer_ != nullptr) {
      prompt =
          *tokenizer_->Encode("The film is a story about a man. The film is a story about a woman. The film");
      prompt.resize(prompt.size() - (*random)() % 3);
      return prompt;
    }
    for (uint32_t i = 0; i < 6 + (*random)() % 12; ++i) prompt.push_back(4 + (*random)() % (vocab_ - 4));
    for (size_t from = 0; prompt.size() < 40; ++from) {
      prompt.push_back((*random)() % 9 == 0 ? 4 + (*random)() % (vocab_ - 4) : prompt[from]);
    }
    return prompt;
  }

  GenerateSpec RandomSpec(int i, std::mt19937* random) const {
    GenerateSpec spec = GreedySpec(absl::StrCat("r", i), RepeatingPrompt(random), 25 + (*random)() % 35);
    spec.logprobs = OneOf(random, {0u, 5u});
    spec.sampling.seed = (*random)();
    spec.sampling.temperature = i < 3 ? 0.0f : OneOf(random, {0.2f, 0.5f, 1.0f});
    spec.sampling.top_p = OneOf(random, {1.0f, 0.9f});
    spec.sampling.top_k = OneOf(random, {0u, 5u});
    spec.sampling.frequency_penalty = i == 5 ? 0.3f : 0.0f;
    for (int32_t id = 4; i % 3 == 1 && id < 10; ++id) {
      spec.sampling.logit_bias.emplace_back(id,
                                            30.0f);  // few words: an untrained model repeats pairs of them
    }
    spec.stopping.min_tokens = OneOf(random, {0u, 12u});
    spec.stopping.ignore_eos = (*random)() % 2 == 0;
    spec.stopping.stop_token_ids = {static_cast<int32_t>(4 + (*random)() % (vocab_ - 4))};
    if (tokenizer_ != nullptr && i % 2 == 0) {
      spec.stopping.stop = {"never in the text", i == 0 ? "story" : "."};
    }
    if (tokenizer_ != nullptr && i == 6) {
      spec.stopping.stop_token_ids = {};
      spec.constraint =
          GrammarSpec{GrammarSpec::Kind::kRegex, "( [a-z]{1,9}){2,6}( the story){9}\\.", {}, {}, {}};
    }
    return spec;
  }

  // Draws alternate between the devices, so that a few of them meet both.
  TestEngineOptions RandomOptions(uint32_t draw, std::mt19937* random) const {
    TestEngineOptions options = Options();
    const std::unique_ptr<Pack> pack = *Pack::Open(pack_);
    options.threads = OneOf(random, {0u, 1u, 2u});
    options.engine.parallel = OneOf(random, {1u, 3u, 7u});
    options.engine.prefill_chunk = OneOf(random, {1u, 5u, 64u});
    options.engine.prefix_cache = (*random)() % 3 != 0;
    options.engine.speculate = SpeculateMode::kAuto;
    if (has_mtp_) {
      options.engine.speculate = OneOf(
          random, {SpeculateMode::kAuto, SpeculateMode::kMtp, SpeculateMode::kMtp, SpeculateMode::kNgram});
    }
    options.engine.drafts = OneOf(random, {1u, 2u, 4u, 8u, has_mtp_ ? 0u : 8u});
    if ((*random)() % 2 == 0) {  // pages for one context and little more: sequences are preempted
      options.engine.kv_budget = (KvPages::PagesFor(options.engine.context) + (*random)() % 5) *
                                     KvBytesPerPage(pack->config(), options.engine.kv) +
                                 options.engine.parallel * StateBytesPerSequence(pack->config());
    }
    const uint64_t smallest = SmallestBudget(pack_, std::max(1u, options.threads));
    const uint64_t all = pack->dense_bytes() + pack->total_expert_bytes();
    options.weights.dram_budget = std::max(smallest, OneOf(random, {all, all / 2, smallest}));
    options.weights.max_delay_polls = OneOf(random, {0u, 3u});
    options.weights.no_room_chance = OneOf(random, {0.0, 0.1});
    if (draw % 2 == 1) {
      options.engine.device = DeviceKind::kSim;
      const uint64_t least = SmallestDeviceBudget(*pack);
      options.engine.slab.budget = OneOf(random, {least, pack->total_expert_bytes(), uint64_t{0}});
      options.engine.virtual_clock = (*random)() % 2 == 0;
    }
    options.delay_seed = !options.engine.virtual_clock && (*random)() % 4 == 0 ? 1 + (*random)() % 99 : 0;
    return options;
  }

  void RunDraw(uint32_t draw) {
    // Cases draw other numbers, so that all of them cover more.
    std::mt19937 random(300 + draw + 1000 * static_cast<uint32_t>(std::string_view(GetParam().name).size()));
    absl::StatusOr<TestEngine> test = StartEngine(pack_, RandomOptions(draw, &random));
    ASSERT_TRUE(test.ok()) << test.status();
    if (random() % 4 == 0) {
      test->client->DisconnectAfterPolls(random() % 300);
    }
    std::vector<std::shared_ptr<CollectingSink>> answers;
    for (const GenerateSpec& spec : specs_) {
      answers.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(test->engine->Generate(spec, answers.back()).ok());
    }
    const size_t cancelled = random() % (2 * answers.size());  // half of the draws cancel nothing
    if (cancelled < answers.size()) {
      answers[cancelled]->AwaitTokens(1 + random() % 20);
      test->engine->Cancel(specs_[cancelled].request_id).IgnoreError();  // it may have ended
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      const absl::Status status = answers[i]->Await();
      ASSERT_TRUE(status.ok() || (i == cancelled && absl::IsCancelled(status))) << status;
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*answers[i], *wanted_[i], status.ok())) << "request " << i;
    }
    const EngineStats stats = AwaitQuiet(*test->engine);
    verified_ += SumOf(stats.drafts_verified);
    accepted_ += SumOf(stats.drafts_accepted);
    EXPECT_EQ(stats.kv_pages_used, 0u);
    EXPECT_EQ(stats.expert_leases_held, 0u);
    EXPECT_EQ(test->client->violation(), "");
  }

  // `whole`: the answer came to its end; otherwise it is a part of the wanted one.
  static void ExpectSame(const CollectingSink& got, const CollectingSink& wanted, bool whole) {
    const std::vector<TokenOut> tokens = got.tokens();
    const std::vector<TokenOut> all = wanted.tokens();
    ASSERT_LE(tokens.size(), all.size());
    for (size_t t = 0; t < tokens.size(); ++t) {
      ASSERT_EQ(tokens[t].token_id, all[t].token_id) << "token " << t;
      ASSERT_EQ(tokens[t].logprob, all[t].logprob) << "token " << t;
      ASSERT_EQ(tokens[t].candidates.size(), all[t].candidates.size()) << "token " << t;
      for (size_t c = 0; c < all[t].candidates.size(); ++c) {
        ASSERT_EQ(tokens[t].candidates[c].token_id, all[t].candidates[c].token_id) << "token " << t;
        ASSERT_EQ(tokens[t].candidates[c].logprob, all[t].candidates[c].logprob) << "token " << t;
      }
    }
    if (whole) {
      ASSERT_EQ(tokens.size(), all.size());
      ASSERT_EQ(got.pieces(), wanted.pieces());
      ASSERT_EQ(got.info().reason, wanted.info().reason);
      ASSERT_EQ(got.info().matched_stop_id, wanted.info().matched_stop_id);
      ASSERT_EQ(got.info().matched_stop_string, wanted.info().matched_stop_string);
      ASSERT_EQ(got.info().usage.completion_tokens, wanted.info().usage.completion_tokens);
      ASSERT_LE(got.info().usage.accepted_tokens, got.info().usage.drafted_tokens);
      ASSERT_LT(got.info().usage.accepted_tokens, got.info().usage.completion_tokens);
    }
  }

  TempDir dir_;
  std::string pack_;
  std::unique_ptr<Tokenizer> tokenizer_;
  uint32_t vocab_ = 0;
  bool has_mtp_ = false;
  std::vector<GenerateSpec> specs_;
  std::vector<std::shared_ptr<CollectingSink>> wanted_;
  uint64_t verified_ = 0;  // of all draws
  uint64_t accepted_ = 0;
};

TEST_P(SpeculationTest, AnswersEqualPlainDecoding) {
  const char* stress = std::getenv("SLUICE_STRESS");
  const uint32_t factor = stress != nullptr && std::string(stress) == "full" ? 20 : 1;
  for (uint32_t draw = 0; draw < factor * GetParam().draws; ++draw) {
    RunDraw(draw);
    ASSERT_FALSE(HasFailure()) << "draw " << draw;
  }
  EXPECT_GE(accepted_, GetParam().luck ? 1u : 0u);
  EXPECT_GT(verified_, accepted_) << "no draft was wrong";
}

INSTANTIATE_TEST_SUITE_P(
    Models, SpeculationTest,
    testing::Values(Case{"Mixtral", "", 0, 8}, Case{"SlidingWindow", "", 40, 4},
                    Case{"DeepSeekV3", "tests/data/tiny/deepseek_v3"},
                    Case{"Glm4Moe", "tests/data/tiny/glm4_moe"}, Case{"GptOss", "tests/data/tiny/gpt_oss"},
                    Case{"Gemma4", "tests/data/tiny/gemma4"}, Case{"Qwen3Moe", "tests/data/tiny/qwen3_moe"},
                    Case{"Qwen35Moe", "tests/data/tiny/qwen3_5_moe"},
                    Case{"NemotronH", "tests/data/tiny/nemotron_h"}, Case{"Lfm2", "tests/data/tiny/lfm2_moe"},
                    Case{"Jamba", "tests/data/tiny/jamba"}, Case{"Sample", "deploy/sample", 0, 2, true},
                    Case{"MtpDeepSeekV3", "tests/data/tiny/deepseek_v3", 0, 4, false, true},
                    Case{"MtpQwen3Next", "tests/data/tiny/qwen3_next", 0, 4, false, true},
                    Case{"MtpStep3p5", "tests/data/mtp/step3p5", 0, 4, false, false, false}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// The rule of the start.
class SpeculationRuleTest : public testing::Test {
 protected:
  absl::StatusOr<SpeculationRule> Rule() const {
    return SpeculationRuleOf(options_, *PoliciesOf(options_.preset, options_.policies, options_.device),
                             config_);
  }
  ModelConfig config_;
  EngineOptions options_{.speculate = SpeculateMode::kAuto};
};

TEST_F(SpeculationRuleTest, ExactSpeculatesByDefault) {
  EXPECT_TRUE(Rule()->on);
  options_.speculate = SpeculateMode::kOff;
  EXPECT_FALSE(Rule()->on);
  EXPECT_EQ(Rule()->why, "");
}

TEST_F(SpeculationRuleTest, TracesHavePlainRowsAlone) {
  options_.trace = "/t";
  EXPECT_FALSE(Rule()->on);
  options_.speculate = SpeculateMode::kNgram;
  EXPECT_TRUE(absl::IsFailedPrecondition(Rule().status()));
}

TEST_F(SpeculationRuleTest, PresetsWithoutThePromiseSayIt) {
  options_.device = DeviceKind::kSim;
  options_.policies.policy = {"routing=cache_aware"};
  EXPECT_FALSE(Rule()->on);
  EXPECT_THAT(Rule()->why, HasSubstr("depend on the batch"));
  options_.speculate = SpeculateMode::kNgram;
  EXPECT_TRUE(Rule()->on);
  EXPECT_THAT(Rule()->why, HasSubstr("may change tokens"));
}

TEST_F(SpeculationRuleTest, MtpLayersDraftWhereThereAreAny) {
  config_.layers.resize(3);
  EXPECT_FALSE(Rule()->mtp);
  options_.speculate = SpeculateMode::kMtp;
  EXPECT_TRUE(absl::IsFailedPrecondition(Rule().status()));
  EXPECT_THAT(std::string(Rule().status().message()), HasSubstr("no MTP layers"));
  config_.mtp_layers = 1;
  EXPECT_TRUE(Rule()->mtp);
  options_.speculate = SpeculateMode::kAuto;
  EXPECT_TRUE(Rule()->mtp);
  EXPECT_EQ(Rule()->why, "");
  options_.speculate = SpeculateMode::kNgram;
  EXPECT_FALSE(Rule()->mtp);
}

TEST_F(SpeculationRuleTest, UnusableMtpLayersAreNamed) {
  config_.layers.resize(3);
  config_.mtp_layers = 1;
  for (LayerConfig& layer : config_.layers) layer.attention.sliding_window = 16;
  EXPECT_TRUE(Rule()->on);
  EXPECT_FALSE(Rule()->mtp);
  EXPECT_THAT(Rule()->why, HasSubstr("16 positions"));
  options_.device = DeviceKind::kCuda;
  EXPECT_FALSE(Rule()->mtp);
  EXPECT_THAT(Rule()->why, HasSubstr("device cuda"));
  options_.speculate = SpeculateMode::kMtp;
  EXPECT_TRUE(absl::IsFailedPrecondition(Rule().status()));
}

// The governor decides in a running engine.
class GovernedSpeculationTest : public EngineTest {};

TEST_F(GovernedSpeculationTest, UsageAndStatisticsCountDrafts) {
  options_.engine.speculate = SpeculateMode::kNgram;
  options_.engine.drafts = 4;
  Start();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine().Generate(GreedySpec("g", {4, 5, 6, 4, 5, 6, 4, 5}, 120), sink).ok());
  ASSERT_TRUE(sink->Await().ok());
  const EngineStats stats = AwaitQuiet(engine());
  const Usage usage = sink->info().usage;
  EXPECT_EQ(usage.drafted_tokens, SumOf(stats.drafts_verified));
  EXPECT_EQ(usage.accepted_tokens, SumOf(stats.drafts_accepted));
  EXPECT_EQ(stats.generated_tokens, 120u);
  EXPECT_EQ(stats.decode_steps + usage.accepted_tokens + 1, 120u) << "the first token is the prompt's";
  EXPECT_GE(stats.drafts_accepted[0], stats.drafts_accepted[3]);
}

TEST_F(GovernedSpeculationTest, DraftsFollowMeasuredTimes) {
  options_.engine.speculate = SpeculateMode::kAuto;
  Start();
  EXPECT_EQ(Answer(GreedySpec("g", {4, 5, 6, 4, 5, 6, 4, 5}, 200)).size(), 200u);
  EXPECT_EQ(AwaitQuiet(engine()).generated_tokens, 200u);
}

TEST_F(GovernedSpeculationTest, MtpDraftsFollowMeasuredTimes) {
  const absl::Status added = AddEchoingMtpLayer("tests/data/tiny/deepseek_v3", dir_.File("mtp"));
  ASSERT_TRUE(added.ok()) << added;
  const absl::Status packed = PackFolder(dir_.File("mtp"), dir_.File("mtp_pack"));
  ASSERT_TRUE(packed.ok()) << packed;
  TestEngineOptions options;
  options.engine.context = 512;
  const auto answer = [&](SpeculateMode mode, EngineStats* stats) {
    options.engine.speculate = mode;
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("mtp_pack"), options);
    EXPECT_TRUE(test.ok()) << test.status();
    const absl::StatusOr<std::vector<int32_t>> ids =
        GenerateIds(test->engine.get(), GreedySpec("g", {4, 5, 6, 7}, 300));
    EXPECT_TRUE(ids.ok()) << ids.status();
    *stats = AwaitQuiet(*test->engine);
    return *ids;
  };
  EngineStats plain;
  EngineStats governed;
  EXPECT_EQ(answer(SpeculateMode::kOff, &plain), answer(SpeculateMode::kMtp, &governed));
  EXPECT_EQ(SumOf(plain.drafts_verified), 0u);
  EXPECT_GT(SumOf(governed.drafts_verified), 0u);
}

TEST_F(GovernedSpeculationTest, StatedDraftsNeedTheirMode) {
  options_.engine.speculate = SpeculateMode::kNgram;
  Start();
  GenerateSpec spec = GreedySpec("g", {4, 5, 6}, 8);
  spec.stated_drafts = StatedDrafts{{7}, 1, 1, 0, false};
  const absl::Status status = engine().Generate(spec, std::make_shared<CollectingSink>());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST_F(GovernedSpeculationTest, StatedDraftsAreRightAsStated) {
  options_.engine.speculate = SpeculateMode::kStated;
  Start();
  GenerateSpec spec = GreedySpec("g", {4, 5, 6}, 200);
  const std::vector<int32_t> plain = Answer(spec);
  EXPECT_EQ(SumOf(AwaitQuiet(engine()).drafts_verified), 0u);
  spec.stated_drafts = StatedDrafts{plain, /*acceptance=*/0.75, /*drafts=*/3, /*seed=*/1, /*all=*/true};
  EXPECT_EQ(Answer(spec), plain);
  const EngineStats stats = AwaitQuiet(engine());
  EXPECT_GT(stats.drafts_verified[2], 0u);
  EXPECT_EQ(stats.drafts_verified[3], 0u);
  for (size_t i = 0; i < 3; ++i) {
    // The share of drafts that are right and follow right ones.
    EXPECT_NEAR(static_cast<double>(stats.drafts_accepted[i]) / static_cast<double>(stats.drafts_verified[i]),
                std::pow(0.75, i + 1), 0.15);
  }
}

TEST_F(GovernedSpeculationTest, ScoresAreNotDrafted) {
  options_.engine.speculate = SpeculateMode::kNgram;
  options_.engine.drafts = 8;
  Start();
  const std::vector<int32_t> input(40, 7);
  ASSERT_TRUE(ScoreLogits(&engine(), "s", input).ok());
  EXPECT_EQ(SumOf(AwaitQuiet(engine()).drafts_verified), 0u);
}

}  // namespace
}  // namespace sluice::inferd
