// Untrusted tokenizer files: damaged ones must end in an error or in a working tokenizer, never in a crash.
// Also run under the address and undefined-behaviour sanitizers.
#include <random>
#include <string>

#include "common/base/utf8.h"
#include "common/text/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/common/text/golden.h"

namespace sluice {
namespace {

// Changes bytes, cuts, repeats and moves pieces. Mostly small changes: large ones hardly get past the parser.
std::string Mutated(std::string bytes, std::mt19937* random) {
  for (uint32_t count = 1 + (*random)() % 4; count > 0 && !bytes.empty(); --count) {
    const size_t at = (*random)() % bytes.size();
    const size_t length = std::min<size_t>(bytes.size() - at, 1 + (*random)() % 16);
    switch ((*random)() % 7) {
      case 0:
        bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << ((*random)() % 8)));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert((*random)() % bytes.size(), bytes.substr(at, length));
        break;
      case 4:
        bytes.insert(at, 1, "0123456789-{}[]\",:\\etn \x7F\x80\xFF"[(*random)() % 25]);
        break;
      case 5:
        bytes[at] = "0123456789"[(*random)() % 10];
        break;
      default:
        if ((*random)() % 8 == 0) {
          bytes.resize(at);
        }
    }
  }
  return bytes;
}

// Uses the tokenizer if it loads; returns true if it did.
bool LoadsAndWorks(const TokenizerFiles& files) {
  const auto tokenizer = Tokenizer::LoadFromFiles(files);
  if (!tokenizer.ok()) {
    EXPECT_FALSE(tokenizer.status().message().empty());
    return false;
  }
  const std::string text =
      "Hello  w\xC3\xB6rld <s></s>\n\t123 \xE4\xB8\xAD\xE6\x96\x87 don't \xF0\x9F\x98\x80<0x0A>";
  const auto ids = (*tokenizer)->Encode(text);
  if (!ids.ok()) {
    return true;
  }
  const auto decoded = (*tokenizer)->Decode(*ids, true);
  EXPECT_TRUE(decoded.ok() && IsWellFormedUtf8(*decoded));
  StreamDecoder stream(**tokenizer, false);
  for (int32_t id = -1; id < std::min((*tokenizer)->vocab_size(), 300); ++id) {
    EXPECT_TRUE(IsWellFormedUtf8(stream.Push(id)));
  }
  EXPECT_TRUE(IsWellFormedUtf8(stream.Flush()));
  return true;
}

struct Target {
  const char* tokenizer;
  const char* file;
  int rounds;
};

class MutationTest : public testing::TestWithParam<Target> {};

TEST_P(MutationTest, DamagedFileIsRefusedOrWorks) {
  TokenizerFiles files = *ReadTokenizerFiles(GoldenDir(GetParam().tokenizer));
  if (std::string(GetParam().file) != "tokenizer.json" &&
      std::string(GetParam().file) != "tokenizer_config.json") {
    files.erase("tokenizer.json");
  }
  const std::string original = files.at(GetParam().file);
  std::mt19937 random(17);
  int refused = 0;
  for (int round = 0; round < GetParam().rounds; ++round) {
    files[GetParam().file] = Mutated(original, &random);
    refused += LoadsAndWorks(files) ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, GetParam().rounds);
}

INSTANTIATE_TEST_SUITE_P(Files, MutationTest,
                         testing::Values(Target{"spm2048", "tokenizer.model", 1500},
                                         Target{"spm2048", "tokenizer.json", 300},
                                         Target{"bytebpe_gpt2", "vocab.json", 200},
                                         Target{"bytebpe_gpt2", "merges.txt", 200},
                                         Target{"bytebpe_qwen2", "tokenizer_config.json", 300}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.tokenizer) + "_" + info.param.file;
                           name[name.find('.')] = '_';
                           return name;
                         });

// The vocabulary is most of a real file: in a file of components alone the damage hits them.
TEST(MutationTest, DamagedComponentsAreRefusedOrWork) {
  const std::string original =
      R"({"version":"1.0","added_tokens":[{"id":6,"content":"<s>","single_word":true,"lstrip":true,"rstrip":true,)"
      R"("normalized":true,"special":true}],"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},)"
      R"({"type":"Replace","pattern":{"Regex":"\\s+(?!\\S)|[\\p{L}&&[^a-c]]{1,3}+"},"content":"b"},{"type":"Strip",)"
      R"("strip_left":true,"strip_right":true}]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
      R"("pattern":{"Regex":"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+"},"behavior":"MergedWithNext",)"
      R"("invert":false},{"type":"Digits","individual_digits":true},{"type":"Metaspace","replacement":"_",)"
      R"("prepend_scheme":"first","split":true},{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},)"
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[6]}}},"decoder":{"type":"Sequence","decoders":[{"type":"Replace",)"
      R"("pattern":{"String":"_"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ",)"
      R"("start":1,"stop":1}]},"model":{"type":"BPE","dropout":null,"unk_token":"a","fuse_unk":true,)"
      R"("byte_fallback":true,"ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"<0x41>":3,"_":4,"l":5},)"
      R"("merges":["a b"]}})";
  ASSERT_TRUE(LoadsAndWorks({{"tokenizer.json", original}}));
  std::mt19937 random(23);
  int refused = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    refused += LoadsAndWorks({{"tokenizer.json", Mutated(original, &random)}}) ? 0 : 1;
  }
  EXPECT_GT(refused, kRounds / 4);
  EXPECT_LT(refused, kRounds);
}

}  // namespace
}  // namespace sluice
