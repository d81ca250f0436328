#include "common/text/tokenizer.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "gtest/gtest.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  auto tokenizer = Tokenizer::Load(GoldenDir(name));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string RandomText(std::mt19937* random, size_t characters) {
  std::string text;
  for (size_t i = 0; i < characters; ++i) {
    const uint32_t kind = (*random)() % 8;
    char32_t c = 0x20 + (*random)() % 0x5F;
    if (kind == 0) {
      c = (*random)() % 0x20;
    } else if (kind == 1) {
      c = 0x80 + (*random)() % 0xD780;
    } else if (kind == 2) {
      c = 0xE000 + (*random)() % 0x102000;
    } else if (kind == 3) {
      c = ' ';
    }
    AppendUtf8(c, &text);
  }
  return text;
}

class RoundTripTest : public testing::TestWithParam<const char*> {};

TEST_P(RoundTripTest, DecodeOfEncodeIsTheText) {
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(nullptr, tokenizer);
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::string text = RandomText(&random, random() % 60);
    for (const bool parse_special : {true, false}) {
      const auto ids = tokenizer->Encode(text, {/*add_special_tokens=*/false, parse_special});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(text, *tokenizer->Decode(*ids, false));
    }
  }
}

// Excludes the one that normalizes (NFC).
INSTANTIATE_TEST_SUITE_P(Tokenizers, RoundTripTest,
                         testing::Values("spm2048", "bytebpe_gpt2", "bytebpe_deepseek", "bytebpe_o200k"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizerTest, PlainTextHoldsNoSpecialToken) {
  for (const char* name : kGoldenTokenizers) {
    const auto tokenizer = Load(name);
    ASSERT_NE(nullptr, tokenizer);
    std::string text = "x";
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->is_special(id)) {
        text += std::string(*tokenizer->IdToToken(id)) + " " + std::string(*tokenizer->IdToToken(id));
      }
    }
    const auto ids = tokenizer->Encode(text, {/*add_special_tokens=*/false, /*parse_special=*/false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    for (const int32_t id : *ids) {
      EXPECT_FALSE(tokenizer->is_special(id)) << name << " " << id;
    }
    EXPECT_EQ(text, *tokenizer->Decode(*ids, true)) << name;
  }
}

TEST(TokenizerTest, PerplexityProtocolKeepsUnkAsText) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  const auto ids = tokenizer->Encode(" \n = <unk> =", {false, false});
  ASSERT_TRUE(ids.ok());
  for (const int32_t id : *ids) {
    EXPECT_NE(*tokenizer->TokenToId("<unk>"), id);
  }
  EXPECT_EQ(" \n = <unk> =", *tokenizer->Decode(*ids, false));
}

TEST(TokenizerTest, IllFormedBytesEncodeAsReplacementCharacters) {
  const auto tokenizer = Load("bytebpe_qwen2");
  ASSERT_NE(nullptr, tokenizer);
  EXPECT_EQ(*tokenizer->Encode("a\xEF\xBF\xBD\xEF\xBF\xBD"
                               "b"),
            *tokenizer->Encode("a\xFF\xE2\x82"
                               "b"));
}

TEST(TokenizerTest, NulIsACharacterLikeOthers) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  const std::string text("a\0b", 3);
  EXPECT_EQ(text, *tokenizer->Decode(*tokenizer->Encode(text, {false, true}), false));
}

TEST(TokenizerTest, IdOutOfRangeIsNamedWithTheVocabularySize) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  EXPECT_EQ(2048, tokenizer->vocab_size());
  for (const int32_t id : {-1, 2048, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> ids = {5, id};
    const absl::Status status = tokenizer->Decode(ids, false).status();
    EXPECT_EQ(absl::StatusCode::kInvalidArgument, status.code());
    EXPECT_NE(std::string::npos, std::string(status.message()).find(std::to_string(id))) << status;
    EXPECT_NE(std::string::npos, std::string(status.message()).find("2048")) << status;
    EXPECT_EQ(std::nullopt, tokenizer->IdToToken(id));
    EXPECT_FALSE(tokenizer->is_special(id));
  }
}

TEST(TokenizerTest, NamesAndIdsGoBothWays) {
  const auto tokenizer = Load("bytebpe_gpt2");
  ASSERT_NE(nullptr, tokenizer);
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    EXPECT_EQ(id, tokenizer->TokenToId(*tokenizer->IdToToken(id)));
  }
  EXPECT_EQ(std::nullopt, tokenizer->TokenToId("no such token"));
}

TEST(TokenizerTest, BeginAndEndTokensComeFromTheConfig) {
  EXPECT_EQ(1, Load("spm2048")->bos_id());
  EXPECT_EQ(2, Load("spm2048")->eos_id());
  EXPECT_EQ(std::nullopt, Load("bytebpe_qwen2")->bos_id());
  EXPECT_EQ(2999, Load("bytebpe_qwen2")->eos_id());
  EXPECT_EQ(2994, Load("bytebpe_deepseek")->bos_id());
}

TEST(TokenizerTest, LongWordsAreNoProblem) {
  for (const char* name : kGoldenTokenizers) {
    const auto tokenizer = Load(name);
    ASSERT_NE(nullptr, tokenizer);
    std::mt19937 random(5);
    for (const size_t length : {5000, 1 << 20}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) {
        word.push_back(static_cast<char>('a' + random() % 26));
      }
      const auto ids = tokenizer->Encode(word, {false, true});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(word, *tokenizer->Decode(*ids, false)) << name;
    }
  }
}

// These would run for minutes if time were quadratic in the text.
TEST(TokenizerTest, MonotonousTextsAreNoProblem) {
  for (const char* name : kGoldenTokenizers) {
    const auto tokenizer = Load(name);
    ASSERT_NE(nullptr, tokenizer);
    for (const char* unit : {" ", "\n", " \n", "!", "7", "A", "<", "\xCC\x81", "\xE4\xB8\xAD"}) {
      std::string text;
      while (text.size() < (1 << 18)) {
        text += unit;
      }
      text += "x";
      const auto ids = tokenizer->Encode(text, {false, true});
      ASSERT_TRUE(ids.ok()) << name << " " << ids.status();
      EXPECT_EQ(text, *tokenizer->Decode(*ids, false)) << name;
    }
  }
}

}  // namespace
}  // namespace sluice
