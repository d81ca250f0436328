// GGUF tokenizers: known pre-tokenizers, and the conversion of keys to tokenizer files.

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/json_reader.h"
#include "common/base/status.h"
#include "common/model/gguf_config.h"
#include "common/model/model_limits.h"

namespace sluice {

// Table of the pre-tokenizers of byte-level BPE: GGUF name -> the hub's patterns. A file holds only the name.
//
// Private to common/model. Thread safety: constants and a pure function.

struct GgufPreTokenizer {
  static constexpr int kMaxPatterns = 6;
  const char* patterns[kMaxPatterns] = {};  // each splits the pieces of the previous ones; null ends them
  bool nfc = false;                         // texts are normalized first
  bool ignore_merges = false;               // a piece that is a token stays one, regardless of the merges
  bool add_bos = false;                     // default; the file can override it
  bool ranks = false;                       // without merges, ids are the order in which tokens are merged
};

// Returns null for an unknown name.
const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name);

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
// Kimi's tiktoken pattern: a letter of the middle two parts is none of Han.
#define SLUICE_UPPER R"((?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))"
#define SLUICE_LOWER R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))"
constexpr char kKimi[] = R"(\p{Han}+|[^\r\n\p{L}\p{N}]?)" SLUICE_UPPER "*" SLUICE_LOWER
                         "+" SLUICE_CONTRACTIONS R"(?|[^\r\n\p{L}\p{N}]?)" SLUICE_UPPER "+" SLUICE_LOWER
                         "*" SLUICE_CONTRACTIONS R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
#undef SLUICE_UPPER
#undef SLUICE_LOWER

// Digits in threes from the last one on.
constexpr char kThreesFromTheEnd[] = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
constexpr char kAfmoeScripts[] =
    R"([\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{309f}\x{30a0}-\x{30ff})"
    R"(\x{ff65}-\x{ff9f}\x{2f00}-\x{2fdf}\x{e40}-\x{e7f}\x{e80}-\x{eff}\x{1780}-\x{17ff})"
    R"(\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+)";
constexpr char kThreesBeforeAWord[] = R"(\d{1,3}(?=(?:\d{3})*\b))";
constexpr char kBailing[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|)"
    R"(\s+(?!\S)|\s+)";
constexpr char kSeedCoder[] =
    SLUICE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|)" SLUICE_SPACES;
constexpr char kUfakZeka[] = R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
constexpr char kLinesApart[] = R"([^\n]+|[\n]+)";
constexpr char kExaoneMoe[] = SLUICE_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|)"
    R"(\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr char kMiniCpm[] =
    SLUICE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
constexpr char kK2Horizon[] = SLUICE_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}|\p{M}|\x{200c}|\x{200d})+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" SLUICE_SPACES;
constexpr char kJais2[] = SLUICE_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|)"
    R"(\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|)"
    R"(\s{1,2}(?!\S)|\s{1})";
constexpr char kBloom[] = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)";
constexpr char kFalconSigns[] = R"([\p{P}$+<=>^~|`]+)";
constexpr char kThreeAscii[] = R"([0-9][0-9][0-9])";
constexpr char kSpark[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)";
constexpr char kYoutuScripts[] =
    R"([\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014})"
    R"(\x{ff1a}\x{ff1b}\x{ff0c}\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|)"
    R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)";
constexpr char kYoutu[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" SLUICE_CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" SLUICE_CONTRACTIONS
    R"(?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" SLUICE_SPACES;
constexpr char kSentinels[] = R"(<sentinel:[0-9]+>)";
constexpr char kImageTokens[] = R"((IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z)";
constexpr char kTabsAndSpaces[] = R"([\t\n]|    |  )";
constexpr char kOneSign[] = R"([\p{P}!-/:-@\[-`{-~])";
#undef SLUICE_CONTRACTIONS
#undef SLUICE_SPACES

struct NamedPreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  GgufPreTokenizer pre;
};
constexpr GgufPreTokenizer kPlain = {.patterns = {kGpt2}};
constexpr GgufPreTokenizer kSingleDigits = {.patterns = {kDigit, kGpt2}};
constexpr GgufPreTokenizer kQwen = {.patterns = {kQwen2}, .nfc = true};
constexpr GgufPreTokenizer kQwenAlike = {.patterns = {kQwen2}};
constexpr GgufPreTokenizer kLlamaBpe = {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true};
constexpr GgufPreTokenizer kGlm = {.patterns = {kLlama3}, .ignore_merges = true};
constexpr GgufPreTokenizer kLlamaAlike = {.patterns = {kLlama3}};
// A piece that is a token stays one token, as in tiktoken, the source of this vocabulary.
constexpr GgufPreTokenizer kO200k = {.patterns = {kGpt4o}, .ignore_merges = true};
constexpr GgufPreTokenizer kAya = {.patterns = {kThreesBeforeAWord, kGpt4o}};
constexpr GgufPreTokenizer kDeepseekV3 = {.patterns = {kThreeDigits, kIdeographs, kDeepseek3}};

// The names of llama.cpp's list, but those of encoders alone, `superbpe`, whose splits are empty matches, and
// `default`, which guesses.
constexpr NamedPreTokenizer kPreTokenizers[] = {
    {"gpt-2", kPlain},
    {"olmo", kPlain},
    {"phi-2", kPlain},
    {"granite-docling", kPlain},
    {"mpt", kPlain},
    {"jais", kPlain},
    {"trillion", kPlain},
    {"gigachat", kPlain},
    {"modern-bert", kPlain},
    {"mellum", kPlain},
    {"exaone4", kPlain},
    {"a.x-4.0", kPlain},
    {"jina-es", kPlain},
    {"jina-de", kPlain},
    {"jina-v2-es", kPlain},
    {"jina-v2-de", kPlain},
    {"starcoder", kSingleDigits},
    {"refact", kSingleDigits},
    {"command-r", kSingleDigits},
    {"smollm", kSingleDigits},
    {"codeshell", kSingleDigits},
    {"exaone", kSingleDigits},
    {"minerva-7b", kSingleDigits},
    {"mellum2", kSingleDigits},
    {"qwen2", kQwen},
    {"deepseek-r1-qwen", kQwenAlike},
    {"hunyuan", kQwenAlike},
    {"stablelm2", kQwenAlike},
    {"solar-open", kQwenAlike},
    {"megrez", kQwenAlike},
    {"kormo", kQwenAlike},
    {"f2llmv2", kQwenAlike},
    {"grok-2", kQwenAlike},
    {"qwen35", {.patterns = {kQwen35}, .nfc = true}},
    {"ufakzeka", {.patterns = {kUfakZeka}}},
    {"laguna", {.patterns = {kLinesApart, kQwen2}}},
    {"seed-coder", {.patterns = {kSeedCoder}}},
    {"llama-bpe", kLlamaBpe},
    {"lfm2", kLlamaBpe},
    {"llama3", kLlamaBpe},
    {"llama-v3", kLlamaBpe},
    {"falcon3", kLlamaBpe},
    {"falcon-h1", kLlamaBpe},
    {"pixtral", kLlamaBpe},
    {"midm-2.0", kLlamaBpe},
    {"jina-v5-nano", kLlamaBpe},
    {"dbrx", kLlamaAlike},
    {"smaug-bpe", kLlamaAlike},
    {"chatglm-bpe", kLlamaAlike},
    {"glm4", kGlm},
    {"glm5", kGlm},
    {"jais-2", {.patterns = {kJais2}}},
    {"minicpm5", {.patterns = {kThreeDigits, kMiniCpm}, .ignore_merges = true}},
    {"k2-horizon", {.patterns = {kK2Horizon}}},
    {"gpt-4o", kO200k},
    {"llama4", kO200k},
    {"minimax-m2", kO200k},
    {"kanana2", kO200k},
    {"talkie", kO200k},
    {"tiny_aya", kAya},
    {"cohere2moe", kAya},
    {"kimi-k2", {.patterns = {kKimi}, .ignore_merges = true, .ranks = true}},
    {"youtu", {.patterns = {kYoutuScripts, kYoutu}, .ignore_merges = true}},
    {"tekken", {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
    {"deepseek-llm",
     {.patterns = {kBreak, kCasedLetters, kWidePunctuation, kLastSpaces, kEastAsian, kDigit}}},
    {"deepseek-coder", {.patterns = {kBreak, kLetters, kPunctuation, kEastAsian, kDigit}}},
    {"deepseek-v3", kDeepseekV3},
    {"hunyuan-dense", kDeepseekV3},
    {"hy_v4", kDeepseekV3},
    {"joyai-llm", kDeepseekV3},
    {"spark2_5", {.patterns = {kThreeDigits, kIdeographs, kSpark, kDigit}}},
    {"afmoe", {.patterns = {kThreesFromTheEnd, kAfmoeScripts, kDeepseek3}}},
    {"bailingmoe", {.patterns = {kBailing}}},
    {"bailingmoe2", {.patterns = {kBailing}}},
    {"llada-moe", {.patterns = {kBailing}}},
    {"exaone-moe", {.patterns = {kExaoneMoe}}},
    {"falcon", {.patterns = {kFalconSigns, kGpt2, kThreeAscii}}},
    {"bloom", {.patterns = {kBloom}}},
    {"gpt3-finnish", {.patterns = {kBloom}}},
    {"poro-chat", {.patterns = {kBloom}}},
    {"viking", {.patterns = {kBloom, kDigit}}},
    {"chameleon",
     {.patterns = {kSentinels, kImageTokens, kTabsAndSpaces, kDigit, kOneSign, kGpt2}, .add_bos = true}},
};

}  // namespace

const GgufPreTokenizer* FindGgufPreTokenizer(std::string_view name) {
  for (const NamedPreTokenizer& row : kPreTokenizers) {
    if (row.name == name) return &row.pre;
  }
  return nullptr;
}

namespace {

using nlohmann::json;
using Files = std::map<std::string, std::string>;

// Values of tokenizer.ggml.token_type.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// The lists of a vocabulary, all of one length.
struct Vocabulary {
  const std::vector<std::string>* tokens = nullptr;
  std::vector<int64_t> types;
};

std::string GgmlKey(std::string_view name) { return absl::StrCat("tokenizer.ggml.", std::string(name)); }

absl::StatusOr<Vocabulary> ReadVocabulary(const GgufKeys& keys) {
  Vocabulary vocabulary;
  ASSIGN_OR_RETURN(vocabulary.tokens, keys.Texts(GgmlKey("tokens")));
  if (vocabulary.tokens == nullptr || vocabulary.tokens->empty()) {
    return keys.Error(GgmlKey("tokens"), "is missing or empty");
  }
  const size_t count = vocabulary.tokens->size();
  if (count > kMaxVocab) return keys.Error(GgmlKey("tokens"), absl::StrCat("has ", count, " tokens"));
  ASSIGN_OR_RETURN(const std::vector<int64_t>* types, keys.Ints(GgmlKey("token_type")));
  vocabulary.types = types == nullptr ? std::vector<int64_t>(count, kNormal) : *types;
  if (vocabulary.types.size() != count) {
    return keys.Error(GgmlKey("token_type"),
                      absl::StrCat("has ", vocabulary.types.size(), " entries for ", count, " tokens"));
  }
  for (const int64_t type : vocabulary.types) {
    if (type < kNormal || type > kByte)
      return keys.Error(GgmlKey("token_type"), absl::StrCat("holds ", type));
  }
  return vocabulary;
}

absl::StatusOr<bool> Flag(const GgufKeys& keys, std::string_view name, bool fallback) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, keys.Int(GgmlKey(name), 0, 1));
  return value.value_or(fallback ? 1 : 0) != 0;
}

// Returns the token that a key names by its id; empty if the key is absent or names none.
absl::StatusOr<std::string> TokenOf(const GgufKeys& keys, std::string_view name,
                                    const Vocabulary& vocabulary) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> id, keys.Int(GgmlKey(name), -1, UINT32_MAX));
  if (!id.has_value() || *id < 0 || static_cast<uint64_t>(*id) >= vocabulary.tokens->size())
    return std::string();
  return (*vocabulary.tokens)[static_cast<size_t>(*id)];
}

absl::StatusOr<std::string> ConfigFile(const GgufKeys& keys, const Vocabulary& vocabulary, bool add_bos) {
  json config = json::object();
  for (const auto& [name, hub] :
       {std::pair("bos_token_id", "bos_token"), std::pair("eos_token_id", "eos_token"),
        std::pair("unknown_token_id", "unk_token"), std::pair("padding_token_id", "pad_token")}) {
    ASSIGN_OR_RETURN(const std::string token, TokenOf(keys, name, vocabulary));
    if (!token.empty()) config[hub] = token;
  }
  ASSIGN_OR_RETURN(const bool bos, Flag(keys, "add_bos_token", add_bos));
  ASSIGN_OR_RETURN(const bool eos, Flag(keys, "add_eos_token", false));
  config["add_bos_token"] = bos;
  config["add_eos_token"] = eos;
  return config.dump();
}

// --- BPE by merges: tokenizer.json ---

json PipelineOf(const GgufPreTokenizer& pre) {
  json steps = json::array();
  for (const char* pattern : pre.patterns) {
    if (pattern == nullptr) break;
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// Returns the merges by which tiktoken makes its tokens: two neighbours merge if their text is a token, the
// one of the lowest id first.
std::vector<std::string> MergesOfRanks(const Vocabulary& vocabulary) {
  absl::flat_hash_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    if (vocabulary.types[id] == kNormal) ids.emplace((*vocabulary.tokens)[id], id);
  }
  std::vector<std::string> merges;
  for (size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    const std::string_view token = (*vocabulary.tokens)[id];
    if (vocabulary.types[id] != kNormal) continue;
    for (size_t at = 1; at < token.size(); ++at) {
      const bool within_character = (static_cast<uint8_t>(token[at]) & 0xc0) == 0x80;
      if (within_character || !ids.contains(token.substr(0, at)) || !ids.contains(token.substr(at))) continue;
      merges.push_back(absl::StrCat(std::string(token.substr(0, at)), " ", std::string(token.substr(at))));
    }
  }
  return merges;
}

// Writes the parts common to both kinds: added tokens, vocabulary and merges; `model` holds the options of
// the BPE model. `ranks`: merges may be missing.
absl::StatusOr<json> TokenizerJson(const GgufKeys& keys, const Vocabulary& vocabulary, bool ranks,
                                   json model) {
  ASSIGN_OR_RETURN(const std::vector<std::string>* merges, keys.Texts(GgmlKey("merges")));
  if (merges == nullptr && !ranks) return keys.Error(GgmlKey("merges"), "is missing");
  json vocab = json::object();
  json added = json::array();
  absl::flat_hash_set<std::string> seen;
  for (size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    const std::string& token = (*vocabulary.tokens)[id];
    const int64_t type = vocabulary.types[id];
    if (type == kUnused) continue;
    if (token.empty() || !seen.insert(token).second) {
      return keys.Error(GgmlKey("tokens"), absl::StrCat("holds an empty token, or one twice, at ", id));
    }
    if (type == kControl || type == kUserDefined) {
      added.push_back({{"id", id},
                       {"content", token},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", type == kControl}});
    } else {
      vocab[token] = id;
    }
  }
  json root = {{"version", "1.0"}, {"added_tokens", std::move(added)}};
  model["type"] = "BPE";
  model["vocab"] = std::move(vocab);
  model["merges"] = merges != nullptr ? *merges : MergesOfRanks(vocabulary);
  root["model"] = std::move(model);
  return root;
}

// Gemma-4's BPE: unsplit text, spaces as U+2581, byte tokens for uncovered characters.
absl::StatusOr<Files> SpacedBytePairFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(keys));
  ASSIGN_OR_RETURN(const std::string unknown, TokenOf(keys, "unknown_token_id", vocabulary));
  json model = {{"byte_fallback", true}, {"fuse_unk", true}};
  if (!unknown.empty()) model["unk_token"] = unknown;
  ASSIGN_OR_RETURN(json root, TokenizerJson(keys, vocabulary, /*ranks=*/false, std::move(model)));
  constexpr char kSpace[] = "\xe2\x96\x81";
  root["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  root["pre_tokenizer"] = nullptr;
  root["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}}}}};
  Files files;
  files["tokenizer.json"] = root.dump();
  ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigFile(keys, vocabulary, true));
  return files;
}

absl::StatusOr<Files> BytePairFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const std::optional<std::string> name, keys.Text(GgmlKey("pre")));
  const GgufPreTokenizer* pre = FindGgufPreTokenizer(name.value_or("default"));
  if (pre == nullptr) {
    return keys.Unsupported(GgmlKey("pre"), absl::StrCat(JsonExcerpt(json(name.value_or("(absent)"))),
                                                         ": a pre-tokenizer that is not known"));
  }
  ASSIGN_OR_RETURN(const Vocabulary vocabulary, ReadVocabulary(keys));
  Files files;
  ASSIGN_OR_RETURN(json root,
                   TokenizerJson(keys, vocabulary, pre->ranks, {{"ignore_merges", pre->ignore_merges}}));
  root["normalizer"] = pre->nfc ? json{{"type", "NFC"}} : json();
  root["pre_tokenizer"] = PipelineOf(*pre);
  root["decoder"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  files["tokenizer.json"] = root.dump();
  ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigFile(keys, vocabulary, pre->add_bos));
  return files;
}

// --- SentencePiece: tokenizer.model, a ModelProto in protobuf's wire form ---

void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendNumber(uint32_t field, uint64_t value, std::string* out) {
  AppendVarint(field << 3, out);
  AppendVarint(value, out);
}

void AppendBytes(uint32_t field, std::string_view bytes, std::string* out) {
  AppendVarint(field << 3 | 2, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

std::string Piece(const std::string& text, float score, int64_t type) {
  std::string piece;
  AppendBytes(1, text, &piece);
  AppendVarint(2 << 3 | 5, &piece);
  piece.append(reinterpret_cast<const char*>(&score), sizeof(score));
  AppendNumber(3, static_cast<uint64_t>(type), &piece);
  return piece;
}

absl::StatusOr<Files> SentencePieceFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary, ReadVocabulary(keys));
  ASSIGN_OR_RETURN(const std::vector<double>* scores, keys.Reals(GgmlKey("scores")));
  if (scores == nullptr || scores->size() != vocabulary.tokens->size()) {
    return keys.Error(GgmlKey("scores"),
                      absl::StrCat("is missing or has not ", vocabulary.tokens->size(), " entries"));
  }
  ASSIGN_OR_RETURN(const bool trims, Flag(keys, "remove_extra_whitespaces", false));
  if (trims) return keys.Unsupported(GgmlKey("remove_extra_whitespaces"), "true");
  ASSIGN_OR_RETURN(const bool dummy_prefix, Flag(keys, "add_space_prefix", true));
  // Filler tokens at the end: an embedding may have more rows than its tokenizer has tokens.
  size_t count = vocabulary.tokens->size();
  while (count > 0 && vocabulary.types[count - 1] == kUnused) --count;
  std::string model;
  for (size_t id = 0; id < count; ++id) {
    AppendBytes(1, Piece((*vocabulary.tokens)[id], static_cast<float>((*scores)[id]), vocabulary.types[id]),
                &model);
  }
  std::string trainer;
  AppendNumber(3, 2, &trainer);  // model_type: BPE
  AppendNumber(35, std::count(vocabulary.types.begin(), vocabulary.types.end(), kByte) > 0 ? 1 : 0, &trainer);
  for (const auto& [field, name] : {std::pair(41u, "bos_token_id"), std::pair(42u, "eos_token_id")}) {
    ASSIGN_OR_RETURN(const std::optional<int64_t> id, keys.Int(GgmlKey(name), -1, UINT32_MAX));
    // -1 (none) is ten bytes as a varint.
    AppendNumber(field,
                 static_cast<uint64_t>(id.value_or(-1) < static_cast<int64_t>(count) ? id.value_or(-1) : -1),
                 &trainer);
  }
  AppendBytes(2, trainer, &model);
  std::string normalizer;
  AppendNumber(3, dummy_prefix ? 1 : 0, &normalizer);
  AppendNumber(4, 0, &normalizer);  // remove_extra_whitespaces
  AppendNumber(5, 1, &normalizer);  // escape_whitespaces
  AppendBytes(3, normalizer, &model);
  Files files;
  files["tokenizer.model"] = std::move(model);
  ASSIGN_OR_RETURN(files["tokenizer_config.json"], ConfigFile(keys, vocabulary, true));
  return files;
}

}  // namespace

absl::StatusOr<Files> GgufTokenizerFiles(const GgufKeys& keys) {
  ASSIGN_OR_RETURN(const std::optional<std::string> whole, keys.Text("tokenizer.huggingface.json"));
  ASSIGN_OR_RETURN(const std::optional<std::string> model, keys.Text(GgmlKey("model")));
  if (whole.has_value()) return Files{{"tokenizer.json", *whole}};
  if (!model.has_value()) return Files{};
  if (*model == "gpt2") return BytePairFiles(keys);
  if (*model == "llama") return SentencePieceFiles(keys);
  if (*model == "gemma4") return SpacedBytePairFiles(keys);
  return keys.Unsupported(GgmlKey("model"), JsonExcerpt(json(*model)) + " (known: gpt2, llama, gemma4)");
}

}  // namespace sluice
