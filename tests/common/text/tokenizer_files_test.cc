// Tokenizer files: supported content, and refused content.
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

// A small SentencePiece-like tokenizer.json; `change` is merged over it (RFC 7396).
TokenizerFiles SmallFiles(const Json& change = Json::object(), const Json& config = nullptr) {
  Json json = Json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true},
                     {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, " ": 5},
              "merges": ["a b"]},
    "decoder": {"type": "Fuse"}})");
  json.merge_patch(change);
  TokenizerFiles files = {{"tokenizer.json", json.dump()}};
  if (!config.is_null()) {
    files["tokenizer_config.json"] = config.dump();
  }
  return files;
}

std::vector<int32_t> Encoded(const TokenizerFiles& files, const std::string& text = "ab") {
  const auto tokenizer = Tokenizer::LoadFromFiles(files);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *(*tokenizer)->Encode(text) : std::vector<int32_t>{-1};
}

// Expects loading to fail with an error that names `what`.
void ExpectRefused(const TokenizerFiles& files, absl::StatusCode code, const std::string& what) {
  const absl::Status status = Tokenizer::LoadFromFiles(files).status();
  EXPECT_EQ(code, status.code()) << status;
  EXPECT_NE(std::string::npos, std::string(status.message()).find(what))
      << status << "\nshould name " << what;
}

const Json kTemplate = Json::parse(R"({"post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}})");

TEST(TokenizerConfigTest, TemplateAddsItsTokens) {
  EXPECT_EQ((std::vector<int32_t>{0, 4}), Encoded(SmallFiles(kTemplate)));
}

TEST(TokenizerConfigTest, AddBosDoesNotDoubleTheTemplates) {
  EXPECT_EQ((std::vector<int32_t>{0, 4}),
            Encoded(SmallFiles(kTemplate, {{"add_bos_token", true}, {"bos_token", "<s>"}})));
}

TEST(TokenizerConfigTest, AddBosAndEosWorkWithoutATemplate) {
  const Json config = {{"add_bos_token", true},
                       {"add_eos_token", true},
                       {"bos_token", {{"content", "<s>"}, {"lstrip", false}}},
                       {"eos_token", "</s>"}};
  EXPECT_EQ((std::vector<int32_t>{0, 4, 1}), Encoded(SmallFiles(Json::object(), config)));
}

TEST(TokenizerConfigTest, FalseTakesTheTemplatesTokenAway) {
  EXPECT_EQ((std::vector<int32_t>{4}),
            Encoded(SmallFiles(kTemplate, {{"add_bos_token", false}, {"bos_token", "<s>"}})));
}

TEST(TokenizerConfigTest, NullAndAbsentLeaveTheTemplateAlone) {
  EXPECT_EQ((std::vector<int32_t>{0, 4}),
            Encoded(SmallFiles(kTemplate, {{"add_bos_token", nullptr}, {"bos_token", nullptr}})));
}

TEST(TokenizerConfigTest, AddBosWithoutAKnownBosIsRefused) {
  ExpectRefused(SmallFiles(Json::object(), {{"add_bos_token", true}}), absl::StatusCode::kInvalidArgument,
                "bos_token");
  ExpectRefused(SmallFiles(Json::object(), {{"add_bos_token", true}, {"bos_token", "<b>"}}),
                absl::StatusCode::kInvalidArgument, "<b>");
}

TEST(TokenizerConfigTest, SpecialTokensMapFillsMissingNames) {
  TokenizerFiles files = SmallFiles();
  files["special_tokens_map.json"] = R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})";
  const auto tokenizer = Tokenizer::LoadFromFiles(files);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(0, (*tokenizer)->bos_id());
  EXPECT_EQ(1, (*tokenizer)->eos_id());
}

TEST(TokenizerFilesTest, MergesAsPairsMayHoldSpaces) {
  const Json change =
      Json::parse(R"({"model": {"vocab": {"a b": 6, " b": 7}, "merges": [[" ", "b"], ["a", " b"]]}})");
  EXPECT_EQ((std::vector<int32_t>{6}), Encoded(SmallFiles(change), "a b"));
}

TEST(TokenizerFilesTest, UnsupportedComponentsAreRefusedByName) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  ExpectRefused(SmallFiles({{"model", {{"type", "Unigram"}}}}), unimplemented, "Unigram");
  ExpectRefused(SmallFiles({{"model", {{"dropout", 0.1}}}}), unimplemented, "dropout");
  ExpectRefused(SmallFiles({{"model", {{"end_of_word_suffix", "</w>"}}}}), unimplemented,
                "end_of_word_suffix");
  ExpectRefused(SmallFiles({{"normalizer", {{"type", "Precompiled"}}}}), unimplemented, "Precompiled");
  ExpectRefused(SmallFiles({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}), unimplemented,
                "UnicodeScripts");
  ExpectRefused(SmallFiles({{"decoder", {{"type", "WordPiece"}}}}), unimplemented, "WordPiece");
  ExpectRefused(SmallFiles({{"post_processor", {{"type", "Other"}}}}), unimplemented, "Other");
  ExpectRefused(
      SmallFiles(Json::parse(R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[[:alpha:]]"},
                                            "behavior": "Isolated", "invert": false}})")),
      unimplemented, "POSIX bracket");
  ExpectRefused(SmallFiles({{"version", "2.0"}}), unimplemented, "2.0");
}

TEST(TokenizerFilesTest, InconsistentVocabulariesAreRefused) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused(SmallFiles({{"model", {{"vocab", {{"c", 2}}}}}}), invalid, "id 2");
  ExpectRefused(SmallFiles({{"model", {{"vocab", {{"c", -1}}}}}}), invalid, "\"c\"");
  ExpectRefused(SmallFiles({{"model", {{"vocab", {{"c", 4000000000}}}}}}), invalid, "4000000000");
  ExpectRefused(SmallFiles({{"model", {{"vocab", {{"c", 1.5}}}}}}), invalid, "\"c\"");
  ExpectRefused(SmallFiles({{"model", {{"merges", {"a c"}}}}}), invalid, "merge 0");
  ExpectRefused(SmallFiles({{"model", {{"merges", {"ab"}}}}}), invalid, "merge 0");
  ExpectRefused(SmallFiles({{"model", {{"merges", {{"a", "b", "a"}}}}}}), invalid, "merge 0");
  ExpectRefused(SmallFiles({{"model", {{"unk_token", "?"}}}}), invalid, "unk_token");
  ExpectRefused(SmallFiles({{"added_tokens", {{{"id", 9}, {"content", "a"}}}}}), invalid, "\"a\"");
  ExpectRefused(SmallFiles({{"added_tokens", {{{"id", 2}, {"content", "zz"}}}}}), invalid, "id 2");
  ExpectRefused(SmallFiles({{"added_tokens", {{{"id", 9}, {"content", ""}}}}}), invalid, "empty");
  ExpectRefused(SmallFiles({{"model", nullptr}}), invalid, "model");
}

TEST(TokenizerFilesTest, TemplateWithForeignIdsIsRefused) {
  Json change = kTemplate;
  change["post_processor"]["special_tokens"]["<s>"]["ids"] = {77};
  ExpectRefused(SmallFiles(change), absl::StatusCode::kInvalidArgument, "<s>");
}

TEST(TokenizerFilesTest, BrokenJsonNamesTheFile) {
  ExpectRefused({{"tokenizer.json", "{\"version\": "}}, absl::StatusCode::kInvalidArgument, "tokenizer.json");
  ExpectRefused({{"tokenizer.json", "[1]"}}, absl::StatusCode::kInvalidArgument, "tokenizer.json");
  ExpectRefused({{"tokenizer.json", std::string(100000, '[')}}, absl::StatusCode::kInvalidArgument, "nested");
  TokenizerFiles files = SmallFiles();
  files["tokenizer_config.json"] = "{";
  ExpectRefused(files, absl::StatusCode::kInvalidArgument, "tokenizer_config.json");
}

TEST(TokenizerFilesTest, NoVocabularyIsNotFound) {
  ExpectRefused({{"tokenizer_config.json", "{}"}}, absl::StatusCode::kNotFound, "tokenizer.model");
  EXPECT_EQ(absl::StatusCode::kNotFound, Tokenizer::Load("tests/common/text/no_such_dir").status().code());
}

TEST(TokenizerFilesTest, BrokenPreferredFileIsNotReplacedByAnother) {
  auto files = ReadTokenizerFiles(GoldenDir("spm2048"));
  ASSERT_TRUE(files.ok());
  (*files)["tokenizer.json"] = "{}";
  ExpectRefused(*files, absl::StatusCode::kInvalidArgument, "tokenizer.json");
}

TEST(TokenizerFilesTest, FolderAndEmbeddedFilesGiveTheSame) {
  const auto files = ReadTokenizerFiles(GoldenDir("bytebpe_gpt2"));
  ASSERT_TRUE(files.ok());
  EXPECT_TRUE(files->contains("merges.txt") && files->contains("tokenizer_config.json"));
  EXPECT_FALSE(files->contains("cases.jsonl"));
  const auto from_dir = Tokenizer::Load(GoldenDir("bytebpe_gpt2"));
  EXPECT_EQ(*(*from_dir)->Encode("Hello there"), Encoded(*files, "Hello there"));
}

TEST(VocabAndMergesTest, UnknownTokenizerClassIsRefusedByName) {
  TokenizerFiles files = *ReadTokenizerFiles(GoldenDir("bytebpe_gpt2"));
  files.erase("tokenizer.json");
  files["tokenizer_config.json"] = R"({"tokenizer_class": "CLIPTokenizer"})";
  ExpectRefused(files, absl::StatusCode::kUnimplemented, "CLIPTokenizer");
}

TEST(VocabAndMergesTest, FastClassNamesAndVersionLineAreTaken) {
  TokenizerFiles files = {
      {"vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<e>": 3})"},
      {"merges.txt", "#version: 0.2\r\na b\r\n\n"},
      {"tokenizer_config.json", R"({"tokenizer_class": "GPT2TokenizerFast", "eos_token": "<e>"})"}};
  EXPECT_EQ((std::vector<int32_t>{2, 3}), Encoded(files, "ab<e>"));
}

// Builds tokenizer.model in wire form: pieces (text, score, type), then raw trainer and normalizer fields.
std::string ModelBytes(const std::vector<std::tuple<std::string, float, int>>& pieces,
                       const std::string& trainer, const std::string& normalizer) {
  std::string out;
  const auto add = [&out](char tag, const std::string& message) {
    out.push_back(tag);
    out.push_back(static_cast<char>(message.size()));
    out += message;
  };
  for (const auto& [text, score, type] : pieces) {
    std::string piece = "\x0A" + std::string(1, static_cast<char>(text.size())) + text + "\x15";
    piece.append(reinterpret_cast<const char*>(&score), sizeof(score));
    piece += std::string("\x18") + static_cast<char>(type);
    add('\x0A', piece);
  }
  add('\x12', trainer);
  add('\x1A', normalizer);
  return out;
}

const std::string kBpeTrainer = "\x18\x02";                // model_type = BPE
const std::string kIdentity = std::string("\x20\x00", 2);  // remove_extra_whitespaces = false
const std::string kMeta = "\xE2\x96\x81";

TEST(SentencePieceTest, BestScoreMergesFirstWhateverTheOrder) {
  const std::string bytes = ModelBytes({{"<unk>", 0, 2},
                                        {"<s>", 0, 3},
                                        {"</s>", 0, 3},
                                        {"ab", -2, 1},
                                        {"bc", -1, 1},
                                        {"a", -3, 1},
                                        {"b", -3, 1},
                                        {"c", -3, 1},
                                        {kMeta, -3, 1}},
                                       kBpeTrainer, kIdentity);
  EXPECT_EQ((std::vector<int32_t>{1, 8, 5, 4, 0}), Encoded({{"tokenizer.model", bytes}}, "abcd"));
}

TEST(SentencePieceTest, OtherModelsAndOptionsAreRefusedByName) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  ExpectRefused({{"tokenizer.model", ModelBytes({{"a", 0, 1}}, "\x18\x01", kIdentity)}}, unimplemented,
                "type 1");
  ExpectRefused({{"tokenizer.model", ModelBytes({{"a", 0, 1}}, kBpeTrainer, "")}}, unimplemented,
                "remove_extra_whitespaces");
  ExpectRefused({{"tokenizer.model", ModelBytes({{"a", 0, 1}}, kBpeTrainer, kIdentity + "\x12\x01x")}},
                unimplemented, "character map");
  ExpectRefused({{"tokenizer.model", ModelBytes({{"a", 0, 5}}, kBpeTrainer, kIdentity)}}, unimplemented,
                "unused");
}

TEST(SentencePieceTest, MalformedModelsAreInvalid) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({{"tokenizer.model", ""}}, invalid, "no pieces");
  ExpectRefused({{"tokenizer.model", "\x0A\x7F"}}, invalid, "127 bytes");
  ExpectRefused({{"tokenizer.model", "\x0B"}}, invalid, "wire type 3");
  ExpectRefused({{"tokenizer.model", ModelBytes({{"a", 0, 1}, {"a", 0, 1}}, kBpeTrainer, kIdentity)}},
                invalid, "both id");
  ExpectRefused({{"tokenizer.model", ModelBytes({{"\xFF", 0, 1}}, kBpeTrainer, kIdentity)}}, invalid,
                "UTF-8");
}

TEST(SentencePieceTest, NewerBehaviourPutsASpaceBeforeTheTextOnly) {
  TokenizerFiles files = *ReadTokenizerFiles(GoldenDir("spm2048"));
  files.erase("tokenizer.json");
  Json config = Json::parse(files["tokenizer_config.json"]);
  const int32_t the = *(*Tokenizer::LoadFromFiles(files))->TokenToId(kMeta + "the");
  EXPECT_EQ((std::vector<int32_t>{1, the, 2, the}), Encoded(files, "the</s>the"));
  config["legacy"] = false;
  files["tokenizer_config.json"] = config.dump();
  const std::vector<int32_t> ids = Encoded(files, "the</s>the");
  EXPECT_EQ((std::vector<int32_t>{1, the, 2}), std::vector<int32_t>(ids.begin(), ids.begin() + 3));
  EXPECT_NE(the, ids[3]);
}

}  // namespace
}  // namespace sluice
