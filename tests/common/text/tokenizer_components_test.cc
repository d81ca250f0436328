// Random combinations of components against the reference (data/components.jsonl, made by make_goldens.py).
#include <fstream>
#include <memory>
#include <string>

#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// Returns the base tokenizer with the line's members in place of its own.
std::string TokenizerJsonOf(const Json& line) {
  Json whole = Json::parse(ReadWholeFile(GoldenDir(line.at("base").get<std::string>()) + "/tokenizer.json"));
  whole.update(line.at("members"));
  whole.at("model").update(line.at("model"));
  return whole.dump();
}

void ExpectCaseMatches(const Tokenizer& tokenizer, const Json& golden) {
  const auto text = golden.at("text").get<std::string>();
  SCOPED_TRACE(text);
  const auto expected = golden.at("ids").get<std::vector<int32_t>>();
  const auto ids = tokenizer.Encode(
      text, {golden.at("add_special_tokens").get<bool>(), golden.at("parse_special").get<bool>()});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(expected, *ids);
  EXPECT_EQ(golden.at("decoded").get<std::string>(), *tokenizer.Decode(expected, false));
  if (!golden.at("decoded_skip").is_null()) {
    EXPECT_EQ(golden.at("decoded_skip").get<std::string>(), *tokenizer.Decode(expected, true));
  }
}

TEST(TokenizerComponentsTest, EveryCombinationMatchesTheReference) {
  std::ifstream file(std::string(kTextDataDir) + "/components.jsonl");
  int lines = 0;
  for (std::string text; std::getline(file, text); ++lines) {
    const Json line = Json::parse(text);
    SCOPED_TRACE(line.at("members").dump().substr(0, 600) + line.at("model").dump());
    const auto tokenizer = Tokenizer::LoadFromFiles({{"tokenizer.json", TokenizerJsonOf(line)}});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const Json& golden : line.at("cases")) {
      ExpectCaseMatches(**tokenizer, golden);
    }
  }
  EXPECT_EQ(80, lines);
}

}  // namespace
}  // namespace sluice
