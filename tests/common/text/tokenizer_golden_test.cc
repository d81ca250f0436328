// Every line of every golden file, through tokenizer.json and through the older files that hold the same
// model.
#include <memory>
#include <string>

#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

std::unique_ptr<Tokenizer> LoadOrFail(const std::string& dir) {
  auto tokenizer = Tokenizer::Load(dir);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> LoadWithoutJson(const std::string& dir) {
  auto files = ReadTokenizerFiles(dir);
  EXPECT_TRUE(files.ok()) << files.status();
  if (!files.ok() || files->erase("tokenizer.json") != 1) {
    return nullptr;
  }
  auto tokenizer = Tokenizer::LoadFromFiles(*files);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

void ExpectCasesMatch(const Tokenizer& tokenizer, const std::string& cases_path) {
  const std::vector<GoldenCase> cases = ReadGoldenCases(cases_path);
  ASSERT_FALSE(cases.empty()) << cases_path;
  for (const GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.text.substr(0, 80));
    const auto ids = tokenizer.Encode(golden.text, {golden.add_special_tokens, golden.parse_special});
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(golden.ids, *ids);
    const auto decoded = tokenizer.Decode(golden.ids, /*skip_special=*/false);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(golden.decoded, *decoded);
    const auto skipped = tokenizer.Decode(golden.ids, /*skip_special=*/true);
    ASSERT_TRUE(skipped.ok()) << skipped.status();
    EXPECT_EQ(golden.decoded_skip, *skipped);
  }
}

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, EveryCaseEncodesAndDecodesAsTheReference) {
  const auto tokenizer = LoadOrFail(GoldenDir(GetParam()));
  ASSERT_NE(nullptr, tokenizer);
  ExpectCasesMatch(*tokenizer, GoldenDir(GetParam()) + "/cases.jsonl");
}

TEST_P(GoldenTest, RandomTextsEncodeAndDecodeAsTheReference) {
  const auto tokenizer = LoadOrFail(GoldenDir(GetParam()));
  ASSERT_NE(nullptr, tokenizer);
  ExpectCasesMatch(*tokenizer, GoldenDir(GetParam()) + "/random_cases.jsonl");
}

TEST_P(GoldenTest, StreamEmitsPieceWithItsLastToken) {
  const auto tokenizer = LoadOrFail(GoldenDir(GetParam()));
  ASSERT_NE(nullptr, tokenizer);
  const std::vector<GoldenStream> streams = ReadGoldenStreams(GoldenDir(GetParam()) + "/stream.jsonl");
  ASSERT_FALSE(streams.empty());
  StreamDecoder decoder(*tokenizer, /*skip_special=*/false);
  for (const GoldenStream& golden : streams) {
    std::string joined;
    for (size_t i = 0; i < golden.ids.size(); ++i) {
      const std::string piece = decoder.Push(golden.ids[i]);
      EXPECT_EQ(golden.pieces[i], piece) << "token " << i;
      joined += piece;
    }
    joined += decoder.Flush();
    EXPECT_EQ(*tokenizer->Decode(golden.ids, false), joined);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenTest, testing::ValuesIn(kGoldenTokenizers),
                         [](const auto& info) { return std::string(info.param); });

class OlderFilesTest : public testing::TestWithParam<const char*> {};

TEST_P(OlderFilesTest, GiveTheSameResultsAsTokenizerJson) {
  const auto tokenizer = LoadWithoutJson(GoldenDir(GetParam()));
  ASSERT_NE(nullptr, tokenizer);
  ExpectCasesMatch(*tokenizer, GoldenDir(GetParam()) + "/cases.jsonl");
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, OlderFilesTest,
                         testing::Values("spm2048", "bytebpe_gpt2", "bytebpe_qwen2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace sluice
