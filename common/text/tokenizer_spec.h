// TokenizerSpec: content of tokenizer files in one form, its vocabulary, and the steps that fill it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/text/unicode.h"

namespace sluice {

// Vocabulary: tokens and their ids, both ways.
//
// Thread safety: thread-compatible; a const Vocabulary may be read from any thread.

class Vocabulary {
 public:
  // Ids lie in [0, kMaxIds): eight times the largest published vocabulary, and a bound on the memory that a
  // single absurd id in a file can cost.
  static constexpr int64_t kMaxIds = 1 << 21;

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // INVALID_ARGUMENT, naming token and id, if the id is out of range or either is in use.
  absl::Status Add(std::string_view token, int64_t id);

  std::optional<int32_t> Find(std::string_view token) const {
    const auto it = ids_.find(absl::string_view(token.data(), token.size()));
    return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
  }

  // Returns nullopt for an id out of range or unused. The view lives as long as the vocabulary.
  std::optional<std::string_view> TokenOf(int32_t id) const {
    if (id < 0 || id >= end() || tokens_[static_cast<size_t>(id)] == nullptr) {
      return std::nullopt;
    }
    return *tokens_[static_cast<size_t>(id)];
  }

  // Returns the largest id + 1.
  int32_t end() const { return static_cast<int32_t>(tokens_.size()); }
  size_t size() const { return ids_.size(); }

 private:
  std::deque<std::string> storage_;  // stable addresses
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  std::vector<const std::string*> tokens_;  // by id; null where unused
};

// TokenizerSpec: the content of a tokenizer's files in one form for tokenizer.json, tokenizer.model and
// vocab.json + merges.txt. Plain data from which the components are built.
//
// Names and meanings are those of Hugging Face `tokenizers`; nested Sequences are flattened into the vectors.
//
// Thread safety: plain values.

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

// Steps that all readers of tokenizer files share: adding merges and added tokens to a TokenizerSpec, with
// checks.
//
// Thread safety: free functions, safe to call from any thread on different specs.

// Adds the merge of two tokens. INVALID_ARGUMENT unless both and their concatenation are in the vocabulary.
absl::Status AddMerge(const std::string& left, const std::string& right, uint32_t rank, TokenizerSpec* spec);

// Adds the merge "left right", separated by one space.
absl::Status AddMergeLine(const std::string& line, uint32_t rank, TokenizerSpec* spec);

// Adds the token to the vocabulary, unless it is there with the same id, and to the added tokens, replacing
// an earlier one of the same content. INVALID_ARGUMENT if id or content is already in use otherwise.
absl::Status AddAddedToken(AddedToken token, TokenizerSpec* spec);

}  // namespace sluice
