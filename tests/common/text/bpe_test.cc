#include "common/text/bpe.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/text/tokenizer_spec.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

// A vocabulary of single letters and of the results of the merges, in this order.
class BpeTest : public testing::Test {
 protected:
  void Build(const std::string& letters, const std::vector<std::string>& merges) {
    for (const char letter : letters) {
      Add(std::string(1, letter));
    }
    uint32_t rank = 0;
    for (const std::string& line : merges) {
      std::string joined = line;
      joined.erase(joined.find(' '), 1);
      if (!spec_.vocabulary.Find(joined).has_value()) {
        Add(joined);
      }
      ASSERT_TRUE(AddMergeLine(line, rank++, &spec_).ok()) << line;
    }
  }

  void Add(const std::string& token) {
    ASSERT_TRUE(spec_.vocabulary.Add(token, spec_.vocabulary.end()).ok());
  }

  std::vector<int32_t> Ids(const std::string& word, bool allow_special = true) {
    if (model_ == nullptr) {
      model_ = BpeModel::Create(spec_.vocabulary, spec_.bpe, special_);
    }
    BpeScratch scratch(allow_special);
    std::vector<int32_t> ids;
    model_->Encode(word, &scratch, &ids);
    std::vector<int32_t> again;
    model_->Encode(word, &scratch, &again);
    EXPECT_EQ(ids, again) << "the cached word differs";
    return ids;
  }

  // Returns the tokens joined by spaces.
  std::string Tokens(const std::string& word, bool allow_special = true) {
    std::string joined;
    for (const int32_t id : Ids(word, allow_special)) {
      joined += (joined.empty() ? "" : " ") + std::string(spec_.vocabulary.TokenOf(id).value_or("?"));
    }
    return joined;
  }

  TokenizerSpec spec_;
  absl::flat_hash_set<int32_t> special_;
  std::unique_ptr<const BpeModel> model_;
};

TEST_F(BpeTest, EarlierMergeWinsOverLongerToken) {
  Build("abcd", {"b c", "a b", "ab c", "bc d"});
  EXPECT_EQ("a bc", Tokens("abc"));
  EXPECT_EQ("a bcd", Tokens("abcd"));
  EXPECT_EQ("ab", Tokens("ab"));
}

TEST_F(BpeTest, EqualRanksMergeFromTheLeft) {
  Build("a", {"a a"});
  EXPECT_EQ("aa aa a", Tokens("aaaaa"));
}

TEST_F(BpeTest, LastRankOfARepeatedMergeCounts) {
  Build("abc", {"a b", "b c", "a b"});
  EXPECT_EQ("a bc", Tokens("abc"));
}

TEST_F(BpeTest, MissingCharacterIsLeftOutWithoutUnknownToken) {
  Build("ab", {"a b"});
  EXPECT_EQ("ab", Tokens("a\xC3\xA9"
                         "b"));
}

TEST_F(BpeTest, UnknownTokensFuseOnlyWhereAsked) {
  Build("abu", {});
  spec_.bpe.unknown = spec_.vocabulary.Find("u");
  EXPECT_EQ("a u u b", Tokens("a\xC3\xA9\xC3\xA9"
                              "b"));
  model_ = nullptr;
  spec_.bpe.fuse_unknown = true;
  EXPECT_EQ("a u b", Tokens("a\xC3\xA9\xC3\xA9"
                            "b"));
}

TEST_F(BpeTest, ByteFallbackNeedsTokensForAllBytes) {
  Build("abu", {});
  Add("<0xC3>");
  Add("<0xA9>");
  spec_.bpe.unknown = spec_.vocabulary.Find("u");
  spec_.bpe.byte_fallback = true;
  EXPECT_EQ("a <0xC3> <0xA9> b", Tokens("a\xC3\xA9"
                                        "b"));
  EXPECT_EQ("a u b", Tokens("a\xC3\xA8"
                            "b"));
}

TEST_F(BpeTest, IgnoreMergesTakesWholeWordsOfTheModelOnly) {
  Build("abc", {});
  Add("abc");
  AddedToken added;
  added.id = spec_.vocabulary.end();
  added.content = "cba";
  ASSERT_TRUE(AddAddedToken(added, &spec_).ok());
  spec_.bpe.ignore_merges = true;
  EXPECT_EQ("abc", Tokens("abc"));
  EXPECT_EQ("c b a", Tokens("cba"));
}

TEST_F(BpeTest, PlainTextNeverBecomesASpecialToken) {
  Build("<s>", {"< s", "<s >"});
  special_.insert(*spec_.vocabulary.Find("<s>"));
  EXPECT_EQ("<s>", Tokens("<s>"));
  EXPECT_EQ("<s >", Tokens("<s>", /*allow_special=*/false));
}

// Definition of BPE: while any neighbours can merge, merge the pair of lowest rank, the leftmost of equals.
std::vector<int32_t> MergeByDefinition(const std::string& word, const TokenizerSpec& spec) {
  std::vector<int32_t> symbols;
  for (const char letter : word) {
    symbols.push_back(*spec.vocabulary.Find(std::string(1, letter)));
  }
  while (true) {
    const MergeRule* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (const MergeRule& rule : spec.bpe.merges) {
        const bool fits = rule.left == symbols[i] && rule.right == symbols[i + 1];
        if (fits && (best == nullptr || rule.rank < best->rank)) {
          best = &rule;
          place = i;
        }
      }
    }
    if (best == nullptr) {
      return symbols;
    }
    symbols[place] = best->result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

TEST_F(BpeTest, RandomModelsAndWordsAgreeWithTheDefinition) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    spec_ = TokenizerSpec();
    model_ = nullptr;
    Build("abcde", {});
    std::vector<std::string> tokens = {"a", "b", "c", "d", "e"};
    for (uint32_t rank = 0; rank < 25; ++rank) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (left.size() + right.size() <= 6 && !spec_.vocabulary.Find(left + right).has_value()) {
        Add(left + right);
        tokens.push_back(left + right);
        ASSERT_TRUE(AddMerge(left, right, rank, &spec_).ok());
      }
    }
    for (const size_t length : {1, 2, 7, 60, 255, 256, 257, 600}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) {
        word.push_back(static_cast<char>('a' + random() % 5));
      }
      EXPECT_EQ(MergeByDefinition(word, spec_), Ids(word)) << word;
    }
  }
}

TEST_F(BpeTest, WordOfAMillionLettersIsFast) {
  Build("ab", {"a a", "aa aa", "aaaa aaaa", "b a"});
  const std::vector<int32_t> ids = Ids(std::string(1 << 20, 'a'));
  EXPECT_EQ(std::vector<int32_t>((1 << 20) / 8, *spec_.vocabulary.Find("aaaaaaaa")), ids);
}

}  // namespace
}  // namespace sluice
