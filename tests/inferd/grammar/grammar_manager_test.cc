// Threads and cache behind the grammars of running answers.
#include "inferd/grammar/grammar_manager.h"

#include <random>
#include <set>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/inferd/grammar/grammar_testing.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

// Letters, digits and an end token: compiles almost instantly.
GrammarVocabulary SmallVocabulary() {
  GrammarVocabulary vocabulary;
  for (char c = 'a'; c <= 'z'; ++c) {
    vocabulary.tokens.push_back(std::string(1, c));
  }
  for (char c = '0'; c <= '9'; ++c) {
    vocabulary.tokens.push_back(std::string(1, c));
  }
  vocabulary.tokens.push_back("");
  vocabulary.size = static_cast<uint32_t>(vocabulary.tokens.size());
  vocabulary.end_ids = {static_cast<int32_t>(vocabulary.size) - 1};
  return vocabulary;
}

constexpr int32_t kEnd = 36;

std::unique_ptr<GrammarConstraint> Begin(GrammarManager* grammars, const GrammarSpec& spec) {
  absl::StatusOr<std::unique_ptr<GrammarConstraint>> constraint = grammars->Start(spec, {kEnd});
  EXPECT_TRUE(constraint.ok()) << constraint.status();
  return constraint.ok() ? *std::move(constraint) : nullptr;
}

void AwaitPrepared(const GrammarConstraint& constraint) {
  while (constraint.state() == GrammarConstraint::State::kPreparing) {
    std::this_thread::yield();
  }
}

// Draws allowed tokens until the end token; returns the text.
std::string Walk(GrammarConstraint* constraint, uint32_t seed, size_t most = 50) {
  std::mt19937 random(seed);
  const GrammarVocabulary vocabulary = SmallVocabulary();
  AwaitPrepared(*constraint);
  std::string text;
  while (text.size() < most) {
    const absl::StatusOr<GrammarConstraint::Next> next = constraint->Wait();
    EXPECT_TRUE(next.ok()) << next.status();
    if (!next.ok() || !next->any) {
      return text + "!";
    }
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id <= kEnd; ++id) {
      if ((next->allowed[id / 32] >> (id % 32) & 1) != 0) {
        allowed.push_back(id);
      }
    }
    const int32_t token = allowed[random() % allowed.size()];
    if (token == kEnd) {
      EXPECT_TRUE(next->complete);
      return text;
    }
    text += vocabulary.tokens[token];
    constraint->Accept(token);
  }
  return text;
}

TEST(GrammarManagerTest, ConcurrentAnswersObeyTheirConstraints) {
  GrammarManager grammars(SmallVocabulary());
  std::vector<std::unique_ptr<GrammarConstraint>> running;
  for (int i = 0; i < 40; ++i) {
    running.push_back(Begin(&grammars, Regex(i % 2 == 0 ? "[a-c]{3}" : "x[0-9]{1,4}")));
  }
  std::set<std::string> texts;
  for (int i = 0; i < 40; ++i) {
    const std::string text = Walk(running[i].get(), i);
    EXPECT_EQ(text[0] == 'x', i % 2 == 1) << text;
    EXPECT_TRUE(i % 2 == 0 ? text.size() == 3 : (text.size() >= 2 && text.size() <= 5)) << text;
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 10u);
  EXPECT_EQ(grammars.Stats().waiting, 0u);
}

TEST(GrammarManagerTest, GrammarIsCompiledOnceAndEvictedByMemory) {
  GrammarLimits limits;
  {
    GrammarManager grammars(SmallVocabulary());
    AwaitPrepared(*Begin(&grammars, Regex("a{3}")));
    limits.cache_bytes = grammars.Stats().cache_bytes * 5 / 2;  // two of its size
  }
  GrammarManager grammars(SmallVocabulary(), limits);
  for (const char* regex : {"a{3}", "b{3}", "a{3}", "c{3}", "a{3}"}) {
    const std::unique_ptr<GrammarConstraint> constraint = Begin(&grammars, Regex(regex));
    EXPECT_EQ(Walk(constraint.get(), 1), std::string(3, regex[0]));
    EXPECT_LE(grammars.Stats().cache_bytes, limits.cache_bytes);
  }
  EXPECT_EQ(grammars.Stats().compiled, 3u);
  EXPECT_EQ(grammars.Stats().cache_hits, 2u);
  AwaitPrepared(*Begin(&grammars, Regex("b{3}")));  // it was the least recently used
  EXPECT_EQ(grammars.Stats().compiled, 4u);
}

TEST(GrammarManagerTest, UncompilableConstraintFailsWithReason) {
  GrammarManager grammars(SmallVocabulary());
  const std::unique_ptr<GrammarConstraint> bad = Begin(&grammars, Gbnf("root ::= nowhere"));
  const std::unique_ptr<GrammarConstraint> same = Begin(&grammars, Gbnf("root ::= nowhere"));
  const std::unique_ptr<GrammarConstraint> nothing =
      Begin(&grammars, Regex("[A-Z]+"));  // no token has such a letter
  for (const GrammarConstraint* constraint : {bad.get(), same.get(), nothing.get()}) {
    AwaitPrepared(*constraint);
    EXPECT_EQ(constraint->state(), GrammarConstraint::State::kFailed);
  }
  EXPECT_EQ(ReasonOf(bad->Wait().status()), "INVALID_GUIDE");
  EXPECT_THAT(std::string(same->Wait().status().message()), HasSubstr("nowhere"));
  EXPECT_THAT(std::string(nothing->Wait().status().message()), HasSubstr("no token"));
  EXPECT_GE(grammars.Stats().refused, 1u);
  EXPECT_EQ(FieldOf(grammars.Start(Schema(R"({"not": {}})"), {kEnd}).status()), "guided.json_schema");
}

TEST(GrammarManagerTest, CompleteAnswerWithoutEndTokensAllowsNothing) {
  GrammarVocabulary vocabulary = SmallVocabulary();
  vocabulary.end_ids.clear();
  GrammarManager grammars(vocabulary);
  absl::StatusOr<std::unique_ptr<GrammarConstraint>> constraint = grammars.Start(Regex("ab"), {});
  ASSERT_TRUE(constraint.ok()) << constraint.status();
  AwaitPrepared(**constraint);
  for (const int32_t token : {0, 1}) {
    const auto next = (*constraint)->Wait();
    ASSERT_TRUE(next.ok() && next->any && !next->complete);
    (*constraint)->Accept(token);
  }
  const auto last = (*constraint)->Wait();
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_FALSE(last->any);
  EXPECT_TRUE(last->complete);
}

TEST(GrammarManagerTest, ATokenThatWasNotAllowedFailsTheGrammar) {
  GrammarManager grammars(SmallVocabulary());
  const std::unique_ptr<GrammarConstraint> constraint = Begin(&grammars, Regex("ab"));
  AwaitPrepared(*constraint);
  ASSERT_TRUE(constraint->Wait().ok());
  constraint->Accept(5);
  EXPECT_TRUE(absl::IsInternal(constraint->Wait().status()));
}

TEST(GrammarManagerTest, OnlySoManyMayWaitAndWhoLeavesIsNotCompiledFor) {
  GrammarLimits limits;
  limits.max_waiting = 2;
  GrammarManager grammars(SmallVocabulary(), limits);
  // The first one compiles slowly, so that the others wait.
  const std::unique_ptr<GrammarConstraint> first = Begin(&grammars, Regex("([a-z]{1,200}[0-9]){1,20}"));
  std::vector<std::unique_ptr<GrammarConstraint>> waiting;
  absl::Status refused;
  for (int i = 0; i < 100 && refused.ok(); ++i) {
    absl::StatusOr<std::unique_ptr<GrammarConstraint>> constraint =
        grammars.Start(Regex(absl::StrCat("a{", i + 1, "}")), {kEnd});
    refused = constraint.status();
    if (constraint.ok()) {
      waiting.push_back(*std::move(constraint));
    }
  }
  if (!refused.ok()) {  // unless this machine compiled a hundred in between
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_TRUE(RetryDelayOf(refused).has_value());
  }
  waiting.clear();
  AwaitPrepared(*first);
  while (grammars.Stats().waiting > 0) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(first->Wait().ok());
}

TEST(GrammarManagerTest, SlowMaskFailsOnlyItsAnswer) {
  GrammarLimits limits;
  limits.mask_cpu_time = absl::Nanoseconds(1);
  GrammarManager grammars(SmallVocabulary(), limits);
  const std::unique_ptr<GrammarConstraint> constraint = Begin(&grammars, Regex("a{3}"));
  AwaitPrepared(*constraint);
  const absl::Status status = constraint->Wait().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "GUIDE_TOO_SLOW");
}

TEST(GrammarManagerTest, ConstraintOutlivesItsManager) {
  auto grammars = std::make_unique<GrammarManager>(SmallVocabulary());
  const std::unique_ptr<GrammarConstraint> ready = Begin(grammars.get(), Regex("a{3}"));
  AwaitPrepared(*ready);
  std::vector<std::unique_ptr<GrammarConstraint>> others;
  for (int i = 0; i < 20; ++i) {
    others.push_back(Begin(grammars.get(), Regex(absl::StrCat("b{", i + 1, "}"))));
  }
  grammars.reset();
  EXPECT_TRUE(ready->Wait().ok());
  ready->Accept(0);
  EXPECT_TRUE(absl::IsUnavailable(ready->Wait().status()));
  for (const std::unique_ptr<GrammarConstraint>& constraint : others) {
    EXPECT_NE(constraint->state(), GrammarConstraint::State::kPreparing);
  }
}

}  // namespace
}  // namespace sluice::inferd
