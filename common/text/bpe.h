// BpeModel: byte-pair encoding of one word (pre-token), the model of every supported tokenizer.
//
// Thread safety: a BpeModel is immutable; Encode may be called from any thread at once, each with a
// BpeScratch of its own. A BpeScratch is used by one thread at a time and with one model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// BpeScratch: buffers of one caller and its cache of encoded words.
class BpeScratch {
 public:
  // Without `allow_special` no merge and no ignore_merges produces a special token: text that equals one
  // but is not to be parsed must not become it.
  explicit BpeScratch(bool allow_special) : allow_special(allow_special) {}

 private:
  friend class BpeModel;

  struct Symbol {
    int32_t id;
    int32_t previous;  // index, -1 at the beginning
    int32_t next;      // index, -1 at the end
    bool alive;
  };
  struct Candidate {  // a merge that was possible when it was queued
    uint32_t rank;
    int32_t position;
    int32_t result;
  };
  struct CachedWord {
    uint32_t begin;  // in cached_ids
    uint32_t count;
  };

  const bool allow_special;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  absl::flat_hash_map<std::string, CachedWord> cache;
  std::vector<int32_t> cached_ids;
};

class BpeModel {
 public:
  // REQUIRES: `vocabulary` outlives the model. `special_ids` are those that a scratch may exclude.
  static std::unique_ptr<const BpeModel> Create(const Vocabulary& vocabulary, const BpeSpec& spec,
                                                const absl::flat_hash_set<int32_t>& special_ids);

  // Appends the ids of `word`, well-formed UTF-8 of less than 2 GiB. A character outside the vocabulary
  // becomes its bytes, else the unknown token; without either it is left out, as in Hugging Face
  // `tokenizers`. Time O(n log n).
  void Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t result;
    bool makes_special;
  };

  BpeModel(const Vocabulary& vocabulary, const BpeSpec& spec,
           const absl::flat_hash_set<int32_t>& special_ids);

  void IndexCharacters();
  std::optional<int32_t> FindInModel(std::string_view token) const;
  void IndexMerges(const BpeSpec& spec);
  int32_t IdOfCharacter(char32_t code_point) const;
  bool MayMerge(char32_t left, char32_t right) const;
  void EncodeCached(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  void EncodeWord(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const;
  void SplitIntoSymbols(std::string_view word, std::vector<BpeScratch::Symbol>* symbols) const;
  void MergeAll(BpeScratch* scratch) const;
  const Merge* FindMerge(int32_t left, int32_t right, const BpeScratch& scratch) const;
  void Queue(int32_t position, BpeScratch* scratch) const;

  const Vocabulary& vocabulary_;
  const absl::flat_hash_set<int32_t> special_ids_;
  const absl::flat_hash_set<int32_t> added_only_;
  const std::optional<int32_t> unknown_;
  const bool fuse_unknown_;
  const bool ignore_merges_;
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by (left << 32 | right)
  absl::flat_hash_set<uint64_t>
      merge_boundaries_;                    // (last char of left << 32 | first char of right) of merges
  std::vector<int32_t> ids_of_characters_;  // by code point below 0x800; -1: not in the vocabulary
  absl::flat_hash_map<char32_t, int32_t> ids_of_other_characters_;
  std::vector<int32_t> ids_of_bytes_;  // "<0x00>"..: empty without byte fallback; -1 where missing
};

}  // namespace sluice
