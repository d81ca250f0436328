// Tokenizer::Impl: the components of one tokenizer, private to tokenizer.cc.
//
// Thread safety: immutable once loaded; const methods may be called from any thread at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/text/stages/added_tokens.h"
#include "common/text/stages/bpe.h"
#include "common/text/stages/decoder.h"
#include "common/text/stages/normalizer.h"
#include "common/text/stages/pre_tokenizer.h"
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/tokenizer.h"

namespace sluice {

// Buffers of one call of Encode.
struct EncodeScratch {
  explicit EncodeScratch(const EncodeOptions& options)
      : parse_special(options.parse_special), bpe(/*allow_special=*/options.parse_special) {}
  // Buffers of EncodeMarked.
  explicit EncodeScratch(const absl::flat_hash_set<int32_t>& control)
      : parse_special(false), control(&control), bpe(/*allow_special=*/false) {}
  const bool parse_special;
  const absl::flat_hash_set<int32_t>* const control = nullptr;  // null: the text has no marks
  RegexScratch regex;
  BpeScratch bpe;
};

struct Tokenizer::Impl {
  TokenizerSpec spec;
  std::unique_ptr<const Normalizer> normalizer;
  std::unique_ptr<const PreTokenizer> pre_tokenizer;
  std::unique_ptr<const BpeModel> bpe;  // refers to spec.vocabulary
  std::unique_ptr<const Decoder> decoder;
  AddedTokenMatcher raw_tokens;         // matched in the raw text
  AddedTokenMatcher normalized_tokens;  // matched in the normalized text between those
  absl::flat_hash_set<int32_t> special_ids;
  std::map<std::string, std::string> special_token_names;
  absl::flat_hash_map<int32_t, std::string> decoded_as;  // added tokens that normalizing changes

  // Fills the matchers and decoded_as. REQUIRES: spec and normalizer are set.
  absl::Status AddMatchers();

  // Appends the ids of `text`, well-formed UTF-8; `marks` is empty or has a byte per byte of it.
  absl::Status EncodeAll(std::string_view text, std::string_view marks, EncodeScratch* scratch,
                         std::vector<int32_t>* ids) const;

  // Appends the ids of `text`, which contains none of raw_tokens.
  absl::Status EncodeText(std::string_view text, std::string_view marks, bool starts_input,
                          EncodeScratch* scratch, std::vector<int32_t>* ids) const;

  static void SplitBy(const AddedTokenMatcher& matcher, std::string_view text, std::string_view marks,
                      const EncodeScratch& scratch, std::vector<TextSegment>* segments);

  // Returns the decoder's input for `id`; nullopt for none.
  std::optional<std::string_view> TextOf(int32_t id, bool skip_special) const;
};

}  // namespace sluice
