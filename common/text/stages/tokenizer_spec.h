// TokenizerSpec: the content of a tokenizer's files in one form for tokenizer.json, tokenizer.model and
// vocab.json + merges.txt. Plain data from which the components are built.
//
// Names and meanings are those of Hugging Face `tokenizers`; nested Sequences are flattened into the vectors.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/text/stages/vocabulary.h"
#include "common/text/unicode/unicode.h"

namespace sluice {

// Pattern of Split and Replace.
struct PatternSpec {
  std::string text;
  bool is_regex = false;  // Oniguruma's dialect
};

// ---- Normalizers -----------------------------------------------------------------------------------------
struct PrependNormalizer {
  std::string prefix;
};
struct ReplaceNormalizer {
  PatternSpec pattern;
  std::string content;
};
struct StripNormalizer {
  bool left = true;
  bool right = true;
};
struct LowercaseNormalizer {};
struct ByteLevelNormalizer {};
using NormalizerSpec = std::variant<UnicodeForm, PrependNormalizer, ReplaceNormalizer, StripNormalizer,
                                    LowercaseNormalizer, ByteLevelNormalizer>;

// ---- Pre-tokenizers --------------------------------------------------------------------------------------
// Treatment of a match (delimiter) when a piece is split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

enum class PrependScheme { kAlways, kFirst, kNever };

struct ByteLevelPreTokenizer {
  bool add_prefix_space = false;
  bool use_regex = true;  // GPT-2's
};
struct SplitPreTokenizer {
  PatternSpec pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};
struct DigitsPreTokenizer {
  bool individual = false;
};
struct PunctuationPreTokenizer {
  SplitBehavior behavior = SplitBehavior::kIsolated;
};
struct WhitespacePreTokenizer {
  bool words = true;  // \w+|[^\w\s]+ ; false: WhitespaceSplit
};
struct MetaspacePreTokenizer {
  std::string replacement = "\xE2\x96\x81";  // one character
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};
using PreTokenizerSpec = std::variant<ByteLevelPreTokenizer, SplitPreTokenizer, DigitsPreTokenizer,
                                      PunctuationPreTokenizer, WhitespacePreTokenizer, MetaspacePreTokenizer>;

// ---- Decoders --------------------------------------------------------------------------------------------
struct ByteLevelDecoder {};
struct ReplaceDecoder {
  PatternSpec pattern;
  std::string content;
};
struct ByteFallbackDecoder {};
struct FuseDecoder {};
struct StripDecoder {
  std::string content = " ";  // one character
  size_t start = 0;           // maximum number at the left
  size_t stop = 0;            // maximum number at the right
};
struct MetaspaceDecoder {
  std::string replacement = "\xE2\x96\x81";
  PrependScheme prepend = PrependScheme::kAlways;
};
using DecoderSpec = std::variant<ByteLevelDecoder, ReplaceDecoder, ByteFallbackDecoder, FuseDecoder,
                                 StripDecoder, MetaspaceDecoder>;

// ---- Model and tokens ------------------------------------------------------------------------------------
// Adjacent `left` and `right` become `result`; lower ranks first, equal ranks from the left.
struct MergeRule {
  int32_t left;
  int32_t right;
  int32_t result;
  uint32_t rank;
};

struct BpeSpec {
  // Ids of the vocabulary that only added tokens have: the model neither finds nor makes them.
  absl::flat_hash_set<int32_t> added_only;
  std::vector<MergeRule> merges;  // the last one of a pair counts
  std::optional<int32_t> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;  // matched in normalized text, by its own normalized form
  bool special = false;
};

struct TokenizerSpec {
  Vocabulary vocabulary;  // including added tokens
  BpeSpec bpe;
  std::vector<AddedToken> added_tokens;  // contents and ids are unique
  std::vector<NormalizerSpec> normalizers;
  std::vector<PreTokenizerSpec> pre_tokenizers;
  std::optional<std::vector<DecoderSpec>> decoders;  // nullopt: tokens joined by spaces
  std::vector<int32_t> prefix;                       // added before a text with add_special_tokens
  std::vector<int32_t> suffix;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
};

}  // namespace sluice
