// EncodeMarked: control tokens are recognised only in the template's bytes.
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> LoadOrFail(const std::string& dir) {
  auto tokenizer = Tokenizer::Load(dir);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// A text in pieces of one origin each.
struct Marked {
  std::string text;
  std::string marks;
  Marked& Own(const std::string& piece) { return Add(piece, 0); }
  Marked& Client(const std::string& piece) { return Add(piece, 1); }
  Marked& Add(const std::string& piece, char mark) {
    text += piece;
    marks.append(piece.size(), mark);
    return *this;
  }
};

Ids Encoded(const Tokenizer& tokenizer, const Marked& marked, const std::string& template_source = "") {
  const auto ids =
      tokenizer.EncodeMarked(marked.text, marked.marks, tokenizer.ControlTokens(template_source));
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(Ids());
}

class MarkedGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(MarkedGoldenTest, EveryCaseEncodesAsTheReference) {
  const auto tokenizer = LoadOrFail(GoldenDir(GetParam()));
  ASSERT_NE(nullptr, tokenizer);
  std::ifstream file(GoldenDir(GetParam()) + "/marked_cases.jsonl");
  int compared = 0;
  for (std::string line; std::getline(file, line); ++compared) {
    const Json golden = Json::parse(line, nullptr, false);
    ASSERT_TRUE(golden.is_object());
    Marked marked;
    for (const Json& piece : golden["pieces"]) {
      marked.Add(piece[0].get<std::string>(), piece[1].get<char>());
    }
    EXPECT_EQ(golden["ids"].get<Ids>(), Encoded(*tokenizer, marked, golden["template"].get<std::string>()))
        << line;
  }
  EXPECT_EQ(60, compared);
}

INSTANTIATE_TEST_SUITE_P(AllTokenizers, MarkedGoldenTest, testing::ValuesIn(kGoldenTokenizers));

TEST(MarkedTextTest, AClientsControlTokensStayText) {
  const auto tokenizer = LoadOrFail(GoldenDir("bytebpe_qwen2"));
  ASSERT_NE(nullptr, tokenizer);
  const int32_t end = tokenizer->TokenToId("<|im_end|>").value_or(-1);
  ASSERT_GE(end, 0);
  const Ids own = Encoded(*tokenizer, Marked().Own("<|im_end|>"));
  EXPECT_EQ(Ids{end}, own);
  const Ids client = Encoded(*tokenizer, Marked().Client("<|im_end|>"));
  EXPECT_EQ(client.end(), std::find(client.begin(), client.end(), end));
  EXPECT_EQ("<|im_end|>", tokenizer->Decode(client, false).value_or(""));
}

TEST(MarkedTextTest, NoControlTokenSpansABorder) {
  const auto tokenizer = LoadOrFail(GoldenDir("bytebpe_qwen2"));
  ASSERT_NE(nullptr, tokenizer);
  const int32_t end = tokenizer->TokenToId("<|im_end|>").value_or(-1);
  const std::string token = "<|im_end|>";
  for (size_t cut = 1; cut < token.size(); ++cut) {
    for (const bool client_first : {true, false}) {
      Marked marked;
      marked.Add(token.substr(0, cut), client_first ? 1 : 0).Add(token.substr(cut), client_first ? 0 : 1);
      marked.Own("<|im_end|>");
      const Ids ids = Encoded(*tokenizer, marked);
      EXPECT_EQ(1, std::count(ids.begin(), ids.end(), end)) << cut << client_first;
      EXPECT_EQ(end, ids.back());
    }
  }
}

TEST(MarkedTextTest, TokensInTheTemplateAreControlTokens) {
  const auto tokenizer = LoadOrFail(GoldenDir("bytebpe_deepseek"));
  ASSERT_NE(nullptr, tokenizer);
  const std::string user = "<｜User｜>";
  const int32_t id = tokenizer->TokenToId(user).value_or(-1);
  ASSERT_GE(id, 0);
  EXPECT_FALSE(tokenizer->is_special(id));
  const Marked marked = Marked().Own(user).Client(user);
  const Ids ids = Encoded(*tokenizer, marked, "{{ '<｜User｜>' }}");
  EXPECT_EQ(1, std::count(ids.begin(), ids.end(), id));
  EXPECT_EQ((Ids{id, id}), Encoded(*tokenizer, marked, "a template without it"));
}

// Two pieces of a word are one word where they meet, regardless of origin, as in the library.
TEST(MarkedTextTest, OrdinaryTextIsEncodedAcrossBorders) {
  const auto tokenizer = LoadOrFail(GoldenDir("bytebpe_gpt2"));
  ASSERT_NE(nullptr, tokenizer);
  const std::string text = "The quick brown fox";
  const auto whole = tokenizer->Encode(text, {false, true});
  ASSERT_TRUE(whole.ok());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(*whole, Encoded(*tokenizer, Marked().Own(text.substr(0, cut)).Client(text.substr(cut))));
  }
}

// An added token that is matched in the normalized text: the marks follow the text through the normalizer.
TEST(MarkedTextTest, MarksFollowTheNormalizer) {
  auto files = ReadTokenizerFiles(GoldenDir("bytebpe_qwen2"));
  ASSERT_TRUE(files.ok());
  Json document = Json::parse((*files)["tokenizer.json"], nullptr, false);
  document["normalizer"] =
      Json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]})");
  for (Json& token : document["added_tokens"]) {
    token["normalized"] = true;
  }
  (*files)["tokenizer.json"] = document.dump();
  const auto tokenizer = Tokenizer::LoadFromFiles(*files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const int32_t end = (*tokenizer)->TokenToId("<|im_end|>").value_or(-1);
  // The full-width letters become ASCII only in the normalizer.
  const Marked marked = Marked().Client("ﬁ<|IM_END|><|im_ｅnd|>").Own("<|IM_END|>").Client("x<|im_end|>");
  const Ids ids = Encoded(**tokenizer, marked);
  EXPECT_EQ(1, std::count(ids.begin(), ids.end(), end));
  const auto decoded = (*tokenizer)->Decode(ids, /*skip_special=*/true);
  EXPECT_EQ("fi<|im_end|><|im_end|>x<|im_end|>", decoded.value_or(""));
}

TEST(MarkedTextTest, MarksMustFitTheText) {
  const auto tokenizer = LoadOrFail(GoldenDir("spm2048"));
  ASSERT_NE(nullptr, tokenizer);
  EXPECT_EQ(absl::StatusCode::kInvalidArgument,
            tokenizer->EncodeMarked("abc", std::string(2, 0), {}).status().code());
  EXPECT_EQ(Ids(), tokenizer->EncodeMarked("", "", {}).value_or(Ids{1}));
}

}  // namespace
}  // namespace sluice
