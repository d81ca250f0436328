#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/utf8.h"
#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

std::unique_ptr<Tokenizer> Load(const std::string& name) {
  auto tokenizer = Tokenizer::Load(GoldenDir(name));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    EXPECT_TRUE(IsWellFormedUtf8(piece));
    joined += piece;
  }
  return joined + decoder.Flush();
}

class StreamDecoderTest : public testing::TestWithParam<const char*> {};

TEST_P(StreamDecoderTest, PiecesOfRandomIdsJoinToDecode) {
  const auto tokenizer = Load(GetParam());
  ASSERT_NE(nullptr, tokenizer);
  const bool has_byte_tokens = tokenizer->TokenToId("<0x00>").has_value();
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> ids;
    for (size_t i = random() % 40; i > 0; --i) {
      const auto id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer->vocab_size()));
      // Random byte tokens are ill-formed runs, the only case in which the stream may differ.
      if (!has_byte_tokens || !tokenizer->IdToToken(id)->starts_with("<0x")) {
        ids.push_back(id);
      }
    }
    for (const bool skip_special : {false, true}) {
      EXPECT_EQ(*tokenizer->Decode(ids, skip_special), Streamed(*tokenizer, ids, skip_special));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, StreamDecoderTest, testing::ValuesIn(kGoldenTokenizers),
                         [](const auto& info) { return std::string(info.param); });

TEST(StreamDecoderByteTest, CharacterIsGivenOutWithItsLastByte) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  StreamDecoder decoder(*tokenizer, false);
  EXPECT_EQ("", decoder.Push(*tokenizer->TokenToId("<0xE2>")));
  EXPECT_EQ("", decoder.Push(*tokenizer->TokenToId("<0x82>")));
  EXPECT_EQ("\xE2\x82\xAC", decoder.Push(*tokenizer->TokenToId("<0xAC>")));
  EXPECT_EQ("", decoder.Flush());
}

TEST(StreamDecoderByteTest, UnfinishedCharacterIsReplacedAtTheEnd) {
  const auto tokenizer = Load("bytebpe_gpt2");
  ASSERT_NE(nullptr, tokenizer);
  StreamDecoder decoder(*tokenizer, false);
  EXPECT_EQ("", decoder.Push(*tokenizer->TokenToId("\xC3\xB0")));  // byte 0xF0
  EXPECT_EQ(std::string(kReplacementUtf8), decoder.Flush());
  EXPECT_EQ("a", decoder.Push(*tokenizer->TokenToId("a")));
}

TEST(StreamDecoderByteTest, IllFormedBytesAreReplacedAtOnce) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  StreamDecoder decoder(*tokenizer, false);
  EXPECT_EQ("", decoder.Push(*tokenizer->TokenToId("<0xE2>")));
  EXPECT_EQ(std::string(kReplacementUtf8) + "A", decoder.Push(*tokenizer->TokenToId("<0x41>")));
}

TEST(StreamDecoderByteTest, IdsOutOfRangeAddNothing) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  StreamDecoder decoder(*tokenizer, false);
  EXPECT_EQ("", decoder.Push(-1));
  EXPECT_EQ("", decoder.Push(tokenizer->vocab_size()));
  StreamDecoder moved = std::move(decoder);
  EXPECT_EQ("e", moved.Push(*tokenizer->TokenToId("e")));
}

TEST(StreamDecoderByteTest, OneLeadingSpaceIsDroppedAndOnlyOne) {
  const auto tokenizer = Load("spm2048");
  ASSERT_NE(nullptr, tokenizer);
  const int32_t space = *tokenizer->TokenToId("\xE2\x96\x81");
  StreamDecoder decoder(*tokenizer, false);
  EXPECT_EQ("", decoder.Push(space));
  EXPECT_EQ(" ", decoder.Push(space));
  EXPECT_EQ("", decoder.Flush());
  EXPECT_EQ("", decoder.Push(space));
}

}  // namespace
}  // namespace sluice
