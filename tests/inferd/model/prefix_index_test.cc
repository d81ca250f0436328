#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/model/kv_cache.h"

namespace sluice::inferd {
namespace {

using Tokens = std::vector<int32_t>;

Tokens From(int32_t first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

const Digest128 kRoot = DigestOf("root");

TEST(PrefixIndexTest, WholePageIsFoundByTokensAndPrefix) {
  PrefixIndex index(4);
  const Tokens tokens = From(7, kPageTokens);
  index.Begin(2, kRoot);
  EXPECT_EQ(index.FindWhole(kRoot, tokens), kNoPage);
  EXPECT_TRUE(index.Extend(2, tokens));
  EXPECT_EQ(index.FindWhole(kRoot, tokens), 2u);
  EXPECT_EQ(index.FindWhole(DigestOf("another"), tokens), kNoPage);
  EXPECT_EQ(index.FindWhole(kRoot, From(8, kPageTokens)), kNoPage);
  EXPECT_NE(PrefixIndex::After(kRoot, tokens), PrefixIndex::After(kRoot, From(8, kPageTokens)));
  index.Forget(2);
  EXPECT_EQ(index.FindWhole(kRoot, tokens), kNoPage);
  EXPECT_EQ(index.known(2), 0u);
}

TEST(PrefixIndexTest, PartialPageIsFoundByItsKnownTokens) {
  PrefixIndex index(4);
  index.Begin(1, kRoot);
  ASSERT_TRUE(index.Extend(1, From(0, 5)));
  EXPECT_EQ(index.FindPart(kRoot, From(0, 9)).tokens, 5u);
  ASSERT_TRUE(index.Extend(1, From(5, 2)));
  EXPECT_EQ(index.FindPart(kRoot, From(0, 9)).tokens, 7u);
  EXPECT_EQ(index.FindPart(kRoot, From(0, 3)).tokens, 3u);
  EXPECT_EQ(index.FindPart(kRoot, From(1, 3)).page, kNoPage);
  EXPECT_EQ(index.FindPart(kRoot, {}).tokens, 0u);
}

TEST(PrefixIndexTest, ThePageWithTheLongestCommonBeginningIsFound) {
  PrefixIndex index(4);
  for (const auto& [page, tokens] :
       {std::pair(0u, Tokens{1, 2, 3}), std::pair(1u, Tokens{1, 2, 4, 5}), std::pair(2u, Tokens{1, 9})}) {
    index.Begin(page, kRoot);
    ASSERT_TRUE(index.Extend(page, tokens));
  }
  EXPECT_EQ(index.FindPart(kRoot, Tokens{1, 2, 4, 7}).page, 1u);
  EXPECT_EQ(index.FindPart(kRoot, Tokens{1, 2, 4, 7}).tokens, 3u);
  EXPECT_EQ(index.FindPart(kRoot, Tokens{1, 2, 3, 4}).page, 0u);
}

TEST(PrefixIndexTest, TheSameContentIsHeldOnce) {
  PrefixIndex index(4);
  for (const uint32_t page : {0u, 3u}) {
    index.Begin(page, kRoot);
    EXPECT_TRUE(index.Extend(page, From(0, kPageTokens - 1)));
  }
  EXPECT_TRUE(index.Extend(0, From(kPageTokens - 1, 1)));
  EXPECT_FALSE(index.Extend(3, From(kPageTokens - 1, 1)));
  EXPECT_EQ(index.FindWhole(kRoot, From(0, kPageTokens)), 0u);
  EXPECT_EQ(index.known(3), 0u);
  index.Forget(3);  // no effect
  EXPECT_EQ(index.FindWhole(kRoot, From(0, kPageTokens)), 0u);
}

// Against a map from content to page, over random use.
TEST(PrefixIndexTest, MatchesAReferenceMap) {
  constexpr uint32_t kPages = 24;
  PrefixIndex index(kPages);
  std::map<std::pair<int, int>, uint32_t> wanted;  // (prefix, first token): page
  std::vector<std::pair<int, int>> content(kPages, {-1, -1});
  std::mt19937 random(9);
  const auto digest = [](int front) { return DigestOf(std::string(1, static_cast<char>('a' + front))); };
  for (int i = 0; i < 20000; ++i) {
    const uint32_t page = random() % kPages;
    const std::pair<int, int> what(random() % 5, random() % 9);
    if (content[page].first >= 0) {
      wanted.erase(content[page]);
      content[page] = {-1, -1};
    }
    index.Forget(page);
    if (random() % 4 != 0) {
      index.Begin(page, digest(what.first));
      const bool held = index.Extend(page, From(what.second, kPageTokens));
      ASSERT_EQ(held, wanted.count(what) == 0);
      if (held) {
        content[page] = what;
        wanted[what] = page;
      }
    }
    const std::pair<int, int> asked(random() % 5, random() % 9);
    const auto found = wanted.find(asked);
    ASSERT_EQ(index.FindWhole(digest(asked.first), From(asked.second, kPageTokens)),
              found == wanted.end() ? kNoPage : found->second);
    const PrefixIndex::Part part = index.FindPart(digest(asked.first), From(asked.second, 20));
    ASSERT_EQ(part.tokens, found == wanted.end() ? 0u : 20u);
  }
}

}  // namespace
}  // namespace sluice::inferd
