#include "common/model/gguf/gguf_pre_tokenizers.h"

namespace sluice {
namespace {

// Parts that most patterns share: contractions, and the treatment of white space.
#define SLUICE_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define SLUICE_SPACES R"(\s*[\r\n]+|\s+(?!\S)|\s+)"

constexpr char kGpt2[] = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kDigit[] = R"(\p{N})";
constexpr char kQwen2[] =
    SLUICE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
constexpr char kQwen35[] = SLUICE_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
constexpr char kLlama3[] =
    SLUICE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" SLUICE_CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" SLUICE_CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SLUICE_SPACES;
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                           R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SLUICE_SPACES;
constexpr char kBreak[] = R"([\r\n])";
// Cased letters, as the hub lists them.
constexpr char kCasedLetters[] =
    R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a})"
    R"(\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556})"
    R"(\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf})"
    R"(\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d})"
    R"(\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-)"
    R"(\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc})"
    R"(\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc})"
    R"(\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128})"
    R"(\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e})"
    R"(\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3})"
    R"(\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e})"
    R"(\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a})"
    R"(\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-)"
    R"(\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr char kWidePunctuation[] =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
constexpr char kLastSpaces[] = R"(\s+$)";
constexpr char kEastAsian[] = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";
constexpr char kLetters[] = R"(\s?\p{L}+)";
constexpr char kPunctuation[] = R"(\s?\p{P}+)";
constexpr char kThreeDigits[] = R"(\p{N}{1,3})";
constexpr char kIdeographs[] = R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
constexpr char kDeepseek3[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|)" SLUICE_SPACES;
#undef SLUICE_CONTRACTIONS
#undef SLUICE_SPACES

struct NamedPreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  GgufPreTokenizer pre;
};
constexpr GgufPreTokenizer kPlain = {.patterns = {kGpt2}};
constexpr GgufPreTokenizer kSingleDigits = {.patterns = {kDigit, kGpt2}};
constexpr GgufPreTokenizer kQwen = {.patterns = {kQwen2}, .nfc = true};
constexpr GgufPreTokenizer kLlamaBpe = {.patterns = {kLlama3}, .ignore_merges = true};
constexpr GgufPreTokenizer kLlamaAlike = {.patterns = {kLlama3}};
// A piece that is a token stays one token, as in tiktoken, the source of this vocabulary.
constexpr GgufPreTokenizer kO200k = {.patterns = {kGpt4o}, .ignore_merges = true};
constexpr GgufPreTokenizer kDeepseekV3 = {.patterns = {kThreeDigits, kIdeographs, kDeepseek3}};

constexpr NamedPreTokenizer kPreTokenizers[] = {
    {"gpt-2", kPlain},
    {"olmo", kPlain},
    {"phi-2", kPlain},
    {"granite-docling", kPlain},
    {"starcoder", kSingleDigits},
    {"refact", kSingleDigits},
    {"command-r", kSingleDigits},
    {"smollm", kSingleDigits},
    {"qwen2", kQwen},
    {"deepseek-r1-qwen", {.patterns = {kQwen2}}},
    {"hunyuan", {.patterns = {kQwen2}}},
    {"qwen35", {.patterns = {kQwen35}, .nfc = true}},
    {"llama-bpe", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"lfm2", {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
    {"llama3", kLlamaBpe},
    {"llama-v3", kLlamaBpe},
    {"dbrx", kLlamaAlike},
    {"smaug-bpe", kLlamaAlike},
    {"glm4", kLlamaBpe},
    {"chatglm-bpe", kLlamaAlike},
    {"gpt-4o", kO200k},
    {"llama4", kO200k},
    {"minimax-m2", kO200k},
    {"tekken", {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
    {"deepseek-llm",
     {.patterns = {kBreak, kCasedLetters, kWidePunctuation, kLastSpaces, kEastAsian, kDigit}}},
    {"deepseek-coder", {.patterns = {kBreak, kLetters, kPunctuation, kEastAsian, kDigit}}},
    {"deepseek-v3", kDeepseekV3},
    {"joyai-llm", kDeepseekV3},
};

}  // namespace

const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name) {
  for (const NamedPreTokenizer& row : kPreTokenizers) {
    if (row.name == name) return &row.pre;
  }
  return nullptr;
}

}  // namespace sluice
