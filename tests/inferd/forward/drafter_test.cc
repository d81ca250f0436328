// Prompt lookup: which earlier place a draft follows, and how sure it is.
#include "inferd/forward/drafter.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

std::vector<int32_t> Tokens(const Draft& draft) {
  return {draft.tokens.begin(), draft.tokens.begin() + draft.count};
}

Draft ProposeOnce(const std::vector<int32_t>& text) {
  NgramDrafter drafter;
  drafter.Begin(static_cast<uint32_t>(text.size()));
  return drafter.Propose(text);
}

TEST(NgramDrafterTest, NothingFollowsAShortOrNewText) {
  EXPECT_EQ(ProposeOnce({}).count, 0u);
  EXPECT_EQ(ProposeOnce({5}).count, 0u);
  EXPECT_EQ(ProposeOnce({5, 6}).count, 0u);
  EXPECT_EQ(ProposeOnce({1, 2, 3, 4, 5, 6, 7, 8}).count, 0u);
}

TEST(NgramDrafterTest, DraftIsWhatFollowedTheSamePair) {
  const Draft draft = ProposeOnce({1, 2, 11, 12, 13, 14, 15, 16, 17, 18, 19, 1, 2});
  EXPECT_EQ(Tokens(draft), (std::vector<int32_t>{11, 12, 13, 14, 15, 16, 17, 18}));
  EXPECT_EQ(draft.confidence, 0u);
}

TEST(NgramDrafterTest, LongestMatchWinsOverTheLatest) {
  const Draft draft = ProposeOnce({9, 8, 1, 2, 31, 32, 33, 34, 35, 36, 37, 38, 7, 1, 2, 50, 9, 8, 1, 2});
  EXPECT_EQ(draft.tokens[0], 31);
  EXPECT_EQ(draft.confidence, 1u);
}

TEST(NgramDrafterTest, LatestOfEqualMatchesWins) {
  EXPECT_EQ(ProposeOnce({1, 2, 31, 7, 1, 2, 32, 6, 1, 2}).tokens[0], 32);
}

TEST(NgramDrafterTest, LoopGoesOnBehindTheTextsEnd) {
  EXPECT_EQ(Tokens(ProposeOnce({4, 5, 6, 4, 5, 6, 4, 5})), (std::vector<int32_t>{6, 4, 5, 6, 4, 5, 6, 4}));
  EXPECT_EQ(Tokens(ProposeOnce({7, 7, 7})), (std::vector<int32_t>(8, 7)));
}

TEST(NgramDrafterTest, LongerMatchesAreSurer) {
  std::vector<int32_t> text;
  for (int32_t i = 0; i < 20; ++i) text.push_back(100 + i);
  for (int32_t i = 0; i < 12; ++i) text.push_back(100 + i);
  const Draft draft = ProposeOnce(text);
  EXPECT_EQ(draft.confidence, 3u);
  EXPECT_EQ(draft.tokens[0], 112);
}

// The simplest search: every place, the longest match up to the bound, the latest of these.
std::vector<int32_t> SearchedDraft(const std::vector<int32_t>& text) {
  size_t best = 0;
  size_t longest = NgramDrafter::kShortest - 1;
  for (size_t end = text.size() - 1; end >= NgramDrafter::kShortest; --end) {
    size_t length = 0;
    while (length < std::min<size_t>(end, NgramDrafter::kLongest) &&
           text[end - 1 - length] == text[text.size() - 1 - length]) {
      ++length;
    }
    if (length > longest) {
      longest = length;
      best = end;
    }
  }
  std::vector<int32_t> draft;
  for (size_t i = 0; best > 0 && i < Draft::kMaxTokens; ++i) {
    draft.push_back(best + i < text.size() ? text[best + i] : draft[best + i - text.size()]);
  }
  return draft;
}

TEST(NgramDrafterTest, GrowingTextEqualsASearchOfAllPlaces) {
  std::mt19937 random(3);
  NgramDrafter drafter;
  for (const uint32_t alphabet : {12u, 40u}) {
    drafter.Begin(260);  // the second text forgets the first
    std::vector<int32_t> text;
    while (text.size() < 250) {
      for (uint32_t i = 0; i < 1 + random() % 3; ++i) text.push_back(random() % alphabet);
      if (text.size() > 2) {
        ASSERT_EQ(Tokens(drafter.Propose(text)), SearchedDraft(text)) << text.size();
      }
    }
  }
}

StatedDrafts StatedOf(double acceptance) {
  StatedDrafts stated;
  for (int32_t i = 0; i < 4000; ++i) stated.answer.push_back(i % 7);
  stated.acceptance = acceptance;
  stated.drafts = 4;
  stated.seed = 3;
  return stated;
}

TEST(DraftStatedTest, ShareOfRightDraftsIsTheStatedOne) {
  for (const double acceptance : {0.0, 0.6, 0.9, 1.0}) {
    const StatedDrafts stated = StatedOf(acceptance);
    uint32_t right = 0;
    for (uint32_t place = 0; place < stated.answer.size(); place += 4) {
      const Draft draft = DraftStated(stated, place);
      ASSERT_EQ(draft.count, 4u);
      for (uint32_t i = 0; i < draft.count; ++i) {
        right += draft.tokens[i] == stated.answer[place + i] ? 1 : 0;
        EXPECT_GE(draft.tokens[i], 0);
      }
    }
    EXPECT_NEAR(right / 4000.0, acceptance, 0.03);
  }
}

TEST(DraftStatedTest, DraftsOfAPlaceAreTheSameInEveryStep) {
  const StatedDrafts stated = StatedOf(0.5);
  EXPECT_EQ(DraftStated(stated, 10).tokens[3], DraftStated(stated, 12).tokens[1]);
  EXPECT_EQ(DraftStated(stated, 3998).count, 2u) << "none behind the answer";
  EXPECT_EQ(DraftStated(stated, 4000).count, 0u);
}

}  // namespace
}  // namespace sluice::inferd
