// Threads and cache behind the grammars of running answers.
#include "inferd/guide/guides.h"

#include <random>
#include <set>

#include "common/error_detail.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/inferd/guide/guide_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;

// Letters, digits and an end token: compiles almost instantly.
GuideVocabulary SmallVocabulary() {
  GuideVocabulary vocabulary;
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

std::unique_ptr<Guide> Begin(Guides* guides, const GuideSpec& spec) {
  absl::StatusOr<std::unique_ptr<Guide>> guide = guides->Start(spec, {kEnd});
  EXPECT_TRUE(guide.ok()) << guide.status();
  return guide.ok() ? *std::move(guide) : nullptr;
}

void AwaitPrepared(const Guide& guide) {
  while (guide.state() == Guide::State::kPreparing) {
    std::this_thread::yield();
  }
}

// Draws allowed tokens until the end token; returns the text.
std::string Walk(Guide* guide, uint32_t seed, size_t most = 50) {
  std::mt19937 random(seed);
  const GuideVocabulary vocabulary = SmallVocabulary();
  AwaitPrepared(*guide);
  std::string text;
  while (text.size() < most) {
    const absl::StatusOr<Guide::Next> next = guide->Wait();
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
    guide->Accept(token);
  }
  return text;
}

TEST(GuidesTest, ManyAnswersAtOnceKeepToTheirGuides) {
  Guides guides(SmallVocabulary());
  std::vector<std::unique_ptr<Guide>> running;
  for (int i = 0; i < 40; ++i) {
    running.push_back(Begin(&guides, Regex(i % 2 == 0 ? "[a-c]{3}" : "x[0-9]{1,4}")));
  }
  std::set<std::string> texts;
  for (int i = 0; i < 40; ++i) {
    const std::string text = Walk(running[i].get(), i);
    EXPECT_EQ(text[0] == 'x', i % 2 == 1) << text;
    EXPECT_TRUE(i % 2 == 0 ? text.size() == 3 : (text.size() >= 2 && text.size() <= 5)) << text;
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 10u);
  EXPECT_EQ(guides.Stats().waiting, 0u);
}

TEST(GuidesTest, GrammarIsCompiledOnceAndEvictedByMemory) {
  GuideLimits limits;
  {
    Guides guides(SmallVocabulary());
    AwaitPrepared(*Begin(&guides, Regex("a{3}")));
    limits.cache_bytes = guides.Stats().cache_bytes * 5 / 2;  // two of its size
  }
  Guides guides(SmallVocabulary(), limits);
  for (const char* regex : {"a{3}", "b{3}", "a{3}", "c{3}", "a{3}"}) {
    const std::unique_ptr<Guide> guide = Begin(&guides, Regex(regex));
    EXPECT_EQ(Walk(guide.get(), 1), std::string(3, regex[0]));
    EXPECT_LE(guides.Stats().cache_bytes, limits.cache_bytes);
  }
  EXPECT_EQ(guides.Stats().compiled, 3u);
  EXPECT_EQ(guides.Stats().cache_hits, 2u);
  AwaitPrepared(*Begin(&guides, Regex("b{3}")));  // it was the least recently used
  EXPECT_EQ(guides.Stats().compiled, 4u);
}

TEST(GuidesTest, WhatCannotBeCompiledFailsWithItsReason) {
  Guides guides(SmallVocabulary());
  const std::unique_ptr<Guide> bad = Begin(&guides, Gbnf("root ::= nowhere"));
  const std::unique_ptr<Guide> same = Begin(&guides, Gbnf("root ::= nowhere"));
  const std::unique_ptr<Guide> nothing = Begin(&guides, Regex("[A-Z]+"));  // no token has such a letter
  for (const Guide* guide : {bad.get(), same.get(), nothing.get()}) {
    AwaitPrepared(*guide);
    EXPECT_EQ(guide->state(), Guide::State::kFailed);
  }
  EXPECT_EQ(ReasonOf(bad->Wait().status()), "INVALID_GUIDE");
  EXPECT_THAT(std::string(same->Wait().status().message()), HasSubstr("nowhere"));
  EXPECT_THAT(std::string(nothing->Wait().status().message()), HasSubstr("no token"));
  EXPECT_GE(guides.Stats().refused, 1u);
  EXPECT_EQ(FieldOf(guides.Start(Schema(R"({"not": {}})"), {kEnd}).status()), "guided.json_schema");
}

TEST(GuidesTest, CompleteAnswerWithoutEndTokensAllowsNothing) {
  GuideVocabulary vocabulary = SmallVocabulary();
  vocabulary.end_ids.clear();
  Guides guides(vocabulary);
  absl::StatusOr<std::unique_ptr<Guide>> guide = guides.Start(Regex("ab"), {});
  ASSERT_TRUE(guide.ok()) << guide.status();
  AwaitPrepared(**guide);
  for (const int32_t token : {0, 1}) {
    const auto next = (*guide)->Wait();
    ASSERT_TRUE(next.ok() && next->any && !next->complete);
    (*guide)->Accept(token);
  }
  const auto last = (*guide)->Wait();
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_FALSE(last->any);
  EXPECT_TRUE(last->complete);
}

TEST(GuidesTest, ATokenThatWasNotAllowedFailsTheGuide) {
  Guides guides(SmallVocabulary());
  const std::unique_ptr<Guide> guide = Begin(&guides, Regex("ab"));
  AwaitPrepared(*guide);
  ASSERT_TRUE(guide->Wait().ok());
  guide->Accept(5);
  EXPECT_TRUE(absl::IsInternal(guide->Wait().status()));
}

TEST(GuidesTest, OnlySoManyMayWaitAndWhoLeavesIsNotCompiledFor) {
  GuideLimits limits;
  limits.max_waiting = 2;
  Guides guides(SmallVocabulary(), limits);
  // The first one compiles slowly, so that the others wait.
  const std::unique_ptr<Guide> first = Begin(&guides, Regex("([a-z]{1,200}[0-9]){1,20}"));
  std::vector<std::unique_ptr<Guide>> waiting;
  absl::Status refused;
  for (int i = 0; i < 100 && refused.ok(); ++i) {
    absl::StatusOr<std::unique_ptr<Guide>> guide =
        guides.Start(Regex(absl::StrCat("a{", i + 1, "}")), {kEnd});
    refused = guide.status();
    if (guide.ok()) {
      waiting.push_back(*std::move(guide));
    }
  }
  if (!refused.ok()) {  // unless this machine compiled a hundred in between
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_TRUE(RetryDelayOf(refused).has_value());
  }
  waiting.clear();
  AwaitPrepared(*first);
  while (guides.Stats().waiting > 0) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(first->Wait().ok());
}

TEST(GuidesTest, AMaskThatTakesTooLongFailsItsAnswerAlone) {
  GuideLimits limits;
  limits.mask_cpu_time = absl::Nanoseconds(1);
  Guides guides(SmallVocabulary(), limits);
  const std::unique_ptr<Guide> guide = Begin(&guides, Regex("a{3}"));
  AwaitPrepared(*guide);
  const absl::Status status = guide->Wait().status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "GUIDE_TOO_SLOW");
}

TEST(GuidesTest, AGuideOutlivesItsGuides) {
  auto guides = std::make_unique<Guides>(SmallVocabulary());
  const std::unique_ptr<Guide> ready = Begin(guides.get(), Regex("a{3}"));
  AwaitPrepared(*ready);
  std::vector<std::unique_ptr<Guide>> others;
  for (int i = 0; i < 20; ++i) {
    others.push_back(Begin(guides.get(), Regex(absl::StrCat("b{", i + 1, "}"))));
  }
  guides.reset();
  EXPECT_TRUE(ready->Wait().ok());
  ready->Accept(0);
  EXPECT_TRUE(absl::IsUnavailable(ready->Wait().status()));
  for (const std::unique_ptr<Guide>& guide : others) {
    EXPECT_NE(guide->state(), Guide::State::kPreparing);
  }
}

}  // namespace
}  // namespace sluice
