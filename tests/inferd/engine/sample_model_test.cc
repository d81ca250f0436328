// The trained sample model through the whole engine: its greedy tokens, its text, its stop strings.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/status.h"
#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

struct Prompt {
  std::string text;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> greedy_ids;
};

std::vector<Prompt> ReadPrompts() {
  std::ifstream file("tests/data/sample_greedy.json");
  const nlohmann::json rows = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::vector<Prompt> prompts;
  for (const nlohmann::json& row : rows) {
    prompts.push_back({row["prompt"].get<std::string>(), row["prompt_ids"].get<std::vector<int32_t>>(),
                       row["greedy_ids"].get<std::vector<int32_t>>()});
  }
  return prompts;
}

class SampleModelTest : public testing::Test {
 protected:
  void SetUp() override {
    pack_ = dir_.File("pack");
    const absl::Status status = PackFolder("deploy/sample", pack_);
    ASSERT_TRUE(status.ok()) << status;
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load("deploy/sample");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::move(*tokenizer);
    prompts_ = ReadPrompts();
    ASSERT_EQ(prompts_.size(), 20u);
    options_.threads = 2;
    options_.engine.kv = KvType::kF32;
    options_.engine.context = 512;
    options_.tokenizer = tokenizer_.get();
  }

  void Start() {
    absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
    ASSERT_TRUE(test.ok()) << test.status();
    test_ = std::move(*test);
  }

  // Returns the text that `ids` add to the prompt.
  std::string Continuation(const Prompt& prompt, const std::vector<int32_t>& ids) const {
    std::vector<int32_t> all = prompt.prompt_ids;
    const size_t before = tokenizer_->Decode(all, true)->size();
    all.insert(all.end(), ids.begin(), ids.end());
    return tokenizer_->Decode(all, true)->substr(before);
  }

  std::shared_ptr<CollectingSink> Run(const GenerateSpec& spec) {
    auto sink = std::make_shared<CollectingSink>();
    const absl::Status status = test_.engine->Generate(spec, sink);
    EXPECT_TRUE(status.ok()) << status;
    const absl::Status end = status.ok() ? sink->Await() : status;
    EXPECT_TRUE(end.ok()) << end;
    return sink;
  }

  TempDir dir_;
  std::string pack_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Prompt> prompts_;
  TestEngineOptions options_;
  TestEngine test_;
};

TEST_F(SampleModelTest, GreedyTokensEqualTheReferenceInSmallMemory) {
  options_.weights.dram_budget = 6ull << 20;
  Start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(
        test_.engine->Generate(GreedySpec(absl::StrCat("p", i), prompts_[i].prompt_ids, 48), sinks.back())
            .ok());
  }
  for (size_t i = 0; i < prompts_.size(); ++i) {
    ASSERT_TRUE(sinks[i]->Await().ok());
    EXPECT_EQ(sinks[i]->ids(), prompts_[i].greedy_ids) << prompts_[i].text;
    EXPECT_EQ(sinks[i]->text(), Continuation(prompts_[i], prompts_[i].greedy_ids));
  }
}

TEST_F(SampleModelTest, NarrowCachesStayCloseToTheFullOne) {
  std::vector<int32_t> input = prompts_[0].prompt_ids;
  input.insert(input.end(), prompts_[0].greedy_ids.begin(), prompts_[0].greedy_ids.end());
  std::vector<std::vector<float>> logits;
  for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kQ8}) {
    options_.engine.kv = kv;
    Start();
    const absl::StatusOr<std::vector<float>> rows = ScoreLogits(test_.engine.get(), "s", input);
    ASSERT_TRUE(rows.ok()) << rows.status();
    logits.push_back(*rows);
  }
  const auto mean_difference = [&](int kv) {
    double sum = 0;
    for (size_t i = 0; i < logits[0].size(); ++i) {
      sum += std::abs(double{logits[kv][i]} - logits[0][i]);
    }
    return sum / static_cast<double>(logits[0].size());
  };
  // Logits of this model spread over about 10; f16 rounds K and V by 2^-12, q8 by 2^-8 of a head's largest.
  EXPECT_GT(mean_difference(1), 0.0);
  EXPECT_LT(mean_difference(1), 0.005);
  EXPECT_GT(mean_difference(2), mean_difference(1));
  EXPECT_LT(mean_difference(2), 0.08);
}

TEST_F(SampleModelTest, StopStringEndsTheTextAndIsNotSent) {
  Start();
  const std::string whole = Continuation(prompts_[0], prompts_[0].greedy_ids);
  for (const size_t at : {size_t{9}, whole.size() / 3, whole.size() / 2}) {
    const std::string stop = whole.substr(at, 7);
    const size_t first = whole.find(stop);
    for (const bool include : {false, true}) {
      GenerateSpec spec = GreedySpec("a", prompts_[0].prompt_ids, 48);
      spec.stopping.stop = {"never in the text", stop};
      spec.stopping.include_stop_in_output = include;
      const auto sink = Run(spec);
      EXPECT_EQ(sink->info().reason, FinishReason::kStopSequence);
      EXPECT_EQ(sink->info().matched_stop_string, stop);
      EXPECT_EQ(sink->text(), whole.substr(0, first + (include ? stop.size() : 0)));
      EXPECT_LT(sink->ids().size(), 48u);
    }
  }
}

TEST_F(SampleModelTest, PartialStopStringIsSentAtTheEnd) {
  Start();
  const std::string whole = Continuation(prompts_[0], prompts_[0].greedy_ids);
  GenerateSpec spec = GreedySpec("a", prompts_[0].prompt_ids, 48);
  spec.stopping.stop = {whole.substr(whole.size() - 5) + "\x01"};
  const auto sink = Run(spec);
  EXPECT_EQ(sink->info().reason, FinishReason::kLength);
  EXPECT_EQ(sink->text(), whole);
}

TEST_F(SampleModelTest, TextOfAStopIdIsSentOnlyOnRequest) {
  Start();
  const Prompt& prompt = prompts_[0];
  size_t at = 1;  // the first token not seen before
  while (std::count(prompt.greedy_ids.begin(), prompt.greedy_ids.begin() + at, prompt.greedy_ids[at]) > 0) {
    ++at;
  }
  const std::vector<int32_t> ids(prompt.greedy_ids.begin(), prompt.greedy_ids.begin() + at + 1);
  for (const bool include : {false, true}) {
    GenerateSpec spec = GreedySpec("a", prompt.prompt_ids, 48);
    spec.stopping.stop_token_ids = {prompt.greedy_ids[at]};
    spec.stopping.include_stop_in_output = include;
    const auto sink = Run(spec);
    EXPECT_EQ(sink->ids(), ids);
    const std::vector<int32_t> spelt(ids.begin(), ids.end() - (include ? 0 : 1));
    EXPECT_EQ(sink->text(), Continuation(prompt, spelt));
  }
}

}  // namespace
}  // namespace sluice::inferd
