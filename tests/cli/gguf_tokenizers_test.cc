// Tokenizers of GGUF files: each known pre-tokenizer is one that the tokenizer can run and splits as its
// family does, and a file whose tokenizer cannot be read is refused before anything of a pack is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/pack_cache.h"
#include "common/base/file_io.h"
#include "common/model/model_source.h"
#include "common/text/tokenizer.h"
#include "pack/writer/pack_writer.h"
#include "tests/common/model/gguf/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

// Names of llama.cpp's list.
constexpr const char* kNames[] = {"gpt-2",        "olmo",
                                  "phi-2",        "granite-docling",
                                  "mpt",          "jais",
                                  "trillion",     "gigachat",
                                  "modern-bert",  "mellum",
                                  "exaone4",      "a.x-4.0",
                                  "jina-es",      "jina-de",
                                  "jina-v2-es",   "jina-v2-de",
                                  "starcoder",    "refact",
                                  "command-r",    "smollm",
                                  "codeshell",    "exaone",
                                  "minerva-7b",   "mellum2",
                                  "qwen2",        "deepseek-r1-qwen",
                                  "hunyuan",      "stablelm2",
                                  "solar-open",   "megrez",
                                  "kormo",        "f2llmv2",
                                  "grok-2",       "qwen35",
                                  "ufakzeka",     "laguna",
                                  "seed-coder",   "llama-bpe",
                                  "lfm2",         "llama3",
                                  "llama-v3",     "falcon3",
                                  "falcon-h1",    "pixtral",
                                  "midm-2.0",     "jina-v5-nano",
                                  "dbrx",         "smaug-bpe",
                                  "chatglm-bpe",  "glm4",
                                  "glm5",         "jais-2",
                                  "minicpm5",     "k2-horizon",
                                  "gpt-4o",       "llama4",
                                  "minimax-m2",   "kanana2",
                                  "talkie",       "tiny_aya",
                                  "cohere2moe",   "kimi-k2",
                                  "youtu",        "tekken",
                                  "deepseek-llm", "deepseek-coder",
                                  "deepseek-v3",  "hunyuan-dense",
                                  "hy_v4",        "joyai-llm",
                                  "spark2_5",     "afmoe",
                                  "bailingmoe",   "bailingmoe2",
                                  "llada-moe",    "exaone-moe",
                                  "falcon",       "bloom",
                                  "gpt3-finnish", "poro-chat",
                                  "viking",       "chameleon"};

// Tokens of the texts below, which begin with the characters that byte-level BPE writes for single bytes.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
};
Vocabulary Digits() {
  Vocabulary v;
  for (char c = '0'; c <= '9'; ++c) v.tokens.push_back(std::string(1, c));
  for (const char* token : {"12", "23", "34", "123", "234"}) v.tokens.push_back(token);
  v.merges = {"1 2", "2 3", "3 4", "12 3", "23 4"};
  return v;
}

// A Mixtral without tensors but its embedding: enough for its tokenizer.
std::string FileOf(const std::string& pre, const Vocabulary& vocabulary) {
  GgufBuilder builder;
  builder.Word("general.architecture", "llama").U32("llama.block_count", 1).U32("llama.context_length", 16);
  builder.U32("llama.embedding_length", 8).U32("llama.attention.head_count", 2).U32("llama.expert_count", 2);
  builder.U32("llama.expert_used_count", 1).U32("llama.expert_feed_forward_length", 4);
  builder.Word("tokenizer.ggml.model", "gpt2").Word("tokenizer.ggml.pre", pre);
  builder.Words("tokenizer.ggml.tokens", vocabulary.tokens).U32("tokenizer.ggml.bos_token_id", 0);
  if (!vocabulary.merges.empty()) builder.Words("tokenizer.ggml.merges", vocabulary.merges);
  builder.Tensor("token_embd.weight", {8, 64}, 0, std::string(8 * 64 * 4, '\0'));
  return builder.File();
}

class GgufTokenizersTest : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> Load(const std::string& pre, const Vocabulary& vocabulary) {
    EXPECT_TRUE(WriteFileDurably(dir_.File("m.gguf"), FileOf(pre, vocabulary)).ok());
    const auto source = OpenModelSource(dir_.File("m.gguf"));
    EXPECT_TRUE(source.ok()) << pre << ": " << source.status();
    if (!source.ok()) return nullptr;
    auto tokenizer = Tokenizer::LoadFromFiles(source->tokenizer_files);
    EXPECT_TRUE(tokenizer.ok()) << pre << ": " << tokenizer.status();
    return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
  }
  // The tokens of a text, each in brackets.
  static std::string Tokens(const Tokenizer& tokenizer, const std::string& text) {
    std::string all;
    const auto ids = tokenizer.Encode(text, {.add_special_tokens = false});
    EXPECT_TRUE(ids.ok()) << ids.status();
    for (const int32_t id : *ids) absl::StrAppend(&all, "[", std::string(*tokenizer.IdToToken(id)), "]");
    return all;
  }
  TempDir dir_;
};

TEST_F(GgufTokenizersTest, EveryKnownNameCanBeRun) {
  for (const char* name : kNames) {
    const std::unique_ptr<Tokenizer> tokenizer = Load(name, Digits());
    ASSERT_NE(tokenizer, nullptr) << name;
    EXPECT_NE(Tokens(*tokenizer, "1 23, 4\n"), "") << name;
  }
}

TEST_F(GgufTokenizersTest, DigitsAreGroupedAsTheFamilyDoes) {
  EXPECT_EQ(Tokens(*Load("gpt-2", Digits()), "1234"), "[12][34]");
  EXPECT_EQ(Tokens(*Load("solar-open", Digits()), "1234"), "[1][2][3][4]");
  EXPECT_EQ(Tokens(*Load("pixtral", Digits()), "1234"), "[123][4]");
  EXPECT_EQ(Tokens(*Load("afmoe", Digits()), "1234"), "[1][234]");
  EXPECT_EQ(Tokens(*Load("afmoe", Digits()), "123234"), "[123][234]");
  EXPECT_EQ(Tokens(*Load("cohere2moe", Digits()), "1234"), "[1][234]");
}

// The bytes of U+4E2D are three characters of byte-level BPE; "a" before it must not join them.
TEST_F(GgufTokenizersTest, KimiKeepsHanApartAndMergesByRank) {
  const std::string bytes[] = {"\xc3\xa4", "\xc2\xb8", "\xc5\x83"};  // of e4, b8 and ad
  const std::string han = bytes[0] + bytes[1] + bytes[2];
  const Vocabulary v{{"a", "b", bytes[0], bytes[1], bytes[2], "ab", bytes[0] + bytes[1], han, "b" + han}, {}};
  const std::unique_ptr<Tokenizer> tokenizer = Load("kimi-k2", v);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(Tokens(*tokenizer, "ab\xe4\xb8\xad"), absl::StrCat("[ab][", han, "]"));
  EXPECT_EQ(Tokens(*tokenizer, "bab"), "[b][ab]");
}

// Without this check such a file packs, and no server starts with it.
TEST_F(GgufTokenizersTest, ABadTokenizerIsRefusedBeforeAPackIsWritten) {
  Vocabulary v = Digits();
  v.merges.push_back("1 absent");
  ASSERT_TRUE(WriteFileDurably(dir_.File("m.gguf"), FileOf("gpt-2", v)).ok());
  const auto source = OpenModelSource(dir_.File("m.gguf"));
  ASSERT_TRUE(source.ok()) << source.status();
  const absl::Status status = CheckModelTexts("m.gguf", source->tokenizer_files, "");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("m.gguf"));
  EXPECT_TRUE(CheckModelTexts("m.gguf", {}, "{% if %}").ok()) << "chats alone cannot be rendered";
}

}  // namespace
}  // namespace sluice::cli
