// Structured output of the trained sample model through the whole engine.
#include <regex>
#include <set>

#include "common/base/status.h"
#include "common/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

class StructuredOutputEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    pack_ = dir_.File("pack");
    const absl::Status status = PackFolder("deploy/sample", pack_);
    ASSERT_TRUE(status.ok()) << status;
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load("deploy/sample");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = std::move(*tokenizer);
    options_.threads = 2;
    options_.engine.context = 256;
    options_.tokenizer = tokenizer_.get();
  }

  void Start() {
    absl::StatusOr<TestEngine> test = StartEngine(pack_, options_);
    ASSERT_TRUE(test.ok()) << test.status();
    test_ = std::move(*test);
  }

  GenerateSpec Spec(const std::string& id, GrammarSpec::Kind kind, const std::string& text,
                    uint64_t seed = 1) {
    GenerateSpec spec;
    spec.request_id = id;
    spec.prompt = *tokenizer_->Encode("The film is a story about");
    spec.sampling.temperature = 1.0f;
    spec.sampling.seed = seed;
    spec.stopping.max_tokens = 100;
    spec.constraint = GrammarSpec{kind, text, {}, {}, {}};
    return spec;
  }

  std::shared_ptr<CollectingSink> Begin(const GenerateSpec& spec) {
    auto sink = std::make_shared<CollectingSink>();
    const absl::Status status = test_.engine->Generate(spec, sink);
    EXPECT_TRUE(status.ok()) << status;
    return sink;
  }

  TempDir dir_;
  std::string pack_;
  std::unique_ptr<Tokenizer> tokenizer_;
  TestEngineOptions options_;
  TestEngine test_;
};

TEST_F(StructuredOutputEngineTest, AnswersConformInAnyBatch) {
  const std::string regex = "[A-Z][a-z]{1,9}( [a-z]{1,9}){2,6}\\.";
  std::vector<std::string> alone;
  Start();
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const auto sink = Begin(Spec("a", GrammarSpec::Kind::kRegex, regex, seed));
    ASSERT_TRUE(sink->Await().ok());
    EXPECT_EQ(sink->info().reason, FinishReason::kStop);
    EXPECT_TRUE(std::regex_match(sink->text(), std::regex(regex))) << sink->text();
    alone.push_back(sink->text());
  }
  EXPECT_GT(std::set<std::string>(alone.begin(), alone.end()).size(), 1u);
  // In a batch with others, and so few pages that sequences are preempted and computed anew.
  options_.engine.parallel = 6;
  options_.engine.kv_budget = 9 * KvBytesPerPage((*Pack::Open(pack_))->config(), KvType::kF16);
  Start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    sinks.push_back(Begin(Spec(absl::StrCat("g", seed), GrammarSpec::Kind::kRegex, regex, seed)));
    GenerateSpec free = Spec(absl::StrCat("f", seed), GrammarSpec::Kind::kRegex, regex, seed);
    free.constraint.reset();
    sinks.push_back(Begin(free));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->Await().ok());
    if (i % 2 == 0) {
      EXPECT_EQ(sinks[i]->text(), alone[i / 2]);
    }
  }
}

TEST_F(StructuredOutputEngineTest, GreedyTakesTheBestAllowedToken) {
  Start();
  GenerateSpec spec = Spec("a", GrammarSpec::Kind::kChoice, "");
  spec.constraint->choices = {"purple", "a young man"};
  spec.sampling.temperature = 0;
  spec.logprobs = 2;
  const auto sink = Begin(spec);
  ASSERT_TRUE(sink->Await().ok());
  const std::string best = sink->text();
  EXPECT_TRUE(best == "a young man" || best == "purple") << best;
  spec.sampling.temperature = 3.0f;
  spec.sampling.top_k = 1;
  const auto again = Begin(spec);
  ASSERT_TRUE(again->Await().ok());
  EXPECT_EQ(again->text(), best);
  for (const TokenOut& token : sink->tokens()) {
    EXPECT_LE(token.logprob, token.candidates[0].logprob);
  }
}

TEST_F(StructuredOutputEngineTest, ToolCallIsTextAroundADocument) {
  Start();
  std::set<std::string> begun;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    GenerateSpec spec = Spec("a", GrammarSpec::Kind::kCall, "", seed);
    const std::string schema =
        R"({"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"]})";
    spec.constraint->calls = {{"<call>{\"name\": \"f\", \"arguments\": ", schema, "}</call>"},
                              {"<call>{\"name\": \"other\", \"arguments\": ", schema, "}</call>"}};
    const auto sink = Begin(spec);
    ASSERT_TRUE(sink->Await().ok());
    const std::regex call(R"re(<call>\{"name": "(f|other)", "arguments": \{"n": [123]\}\}</call>)re");
    std::smatch match;
    const std::string text = sink->text();
    ASSERT_TRUE(std::regex_match(text, match, call)) << text;
    begun.insert(match[1]);
  }
}

TEST_F(StructuredOutputEngineTest, GrammarMayStartAfterAToken) {
  Start();
  GenerateSpec free = Spec("a", GrammarSpec::Kind::kChoice, "");
  free.constraint.reset();
  free.sampling.temperature = 0;
  free.stopping.max_tokens = 12;
  const auto without = Begin(free);
  ASSERT_TRUE(without->Await().ok());
  const std::vector<int32_t> ids = without->ids();
  GenerateSpec spec = free;
  spec.constraint = GrammarSpec{GrammarSpec::Kind::kChoice, "", {"!yes!", "!no!"}, {}, ids[5]};
  spec.stopping.max_tokens = 40;
  const auto sink = Begin(spec);
  ASSERT_TRUE(sink->Await().ok());
  const std::vector<int32_t> guided = sink->ids();
  const size_t at = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[5]) - ids.begin());
  ASSERT_GT(guided.size(), at + 1);
  EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + at + 1, guided.begin()));
  EXPECT_TRUE(sink->text().ends_with("!yes!") || sink->text().ends_with("!no!")) << sink->text();
}

TEST_F(StructuredOutputEngineTest, ImpossibleGrammarFailsOnlyItsRequest) {
  Start();
  const auto good = Begin(Spec("good", GrammarSpec::Kind::kRegex, "[a-z]{20,30}"));
  const auto late = Begin(Spec("late", GrammarSpec::Kind::kGrammar, "root ::= nowhere"));
  const absl::Status end = late->Await();
  EXPECT_TRUE(absl::IsInvalidArgument(end)) << end;
  EXPECT_EQ(ReasonOf(end), "INVALID_GUIDE");
  EXPECT_TRUE(good->Await().ok());
  const auto refused = [this](GenerateSpec spec) {
    return test_.engine->Generate(spec, std::make_shared<CollectingSink>());
  };
  EXPECT_EQ(FieldOf(refused(Spec("a", GrammarSpec::Kind::kRegex, "a\\b"))), "guided.regex");
  EXPECT_EQ(FieldOf(refused(Spec("a", GrammarSpec::Kind::kJsonSchema, R"({"not": {}})"))),
            "guided.json_schema");
  EXPECT_EQ(FieldOf(refused(Spec("a", GrammarSpec::Kind::kChoice, ""))), "guided.choice");
  EXPECT_EQ(FieldOf(refused(Spec("a", GrammarSpec::Kind::kCall, ""))), "guided.calls");
  EXPECT_EQ(AwaitQuiet(*test_.engine).sequences_waiting, 0u);
}

TEST_F(StructuredOutputEngineTest, CancelWorksDuringGrammarCompileAndUse) {
  Start();
  for (int i = 0; i < 20; ++i) {
    // A new grammar each time, so that it must be compiled.
    const GenerateSpec spec = Spec("c", GrammarSpec::Kind::kRegex, absl::StrCat("([a-z ]{", i + 1, "}x?)*"));
    const auto sink = Begin(spec);
    if (i % 2 == 1) {
      sink->AwaitTokens(static_cast<size_t>(i) % 7);
    }
    const absl::Status cancelled = test_.engine->Cancel("c");
    const absl::Status end = sink->Await();
    EXPECT_TRUE(end.ok() || absl::IsCancelled(end)) << end << " " << cancelled;
  }
  const EngineStats stats = AwaitQuiet(*test_.engine);
  EXPECT_EQ(stats.sequences_running + stats.sequences_waiting + stats.kv_pages_used, 0u);
}

TEST_F(StructuredOutputEngineTest, GrammarNeedsATokenizer) {
  options_.tokenizer = nullptr;
  Start();
  const absl::Status status =
      test_.engine->Generate(Spec("a", GrammarSpec::Kind::kRegex, "a"), std::make_shared<CollectingSink>());
  EXPECT_EQ(FieldOf(status), "guided");
}

}  // namespace
}  // namespace sluice::inferd
