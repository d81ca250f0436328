// AddedTokenMatcher: finds the added tokens in a text.
//
// Thread safety: immutable; Split may be called from any thread at once.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// A part of a text: an added token, or the text between two.
struct TextSegment {
  static constexpr int32_t kText = -1;
  ByteRange range;
  int32_t token = kText;  // id of the added token
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher();

  // `pattern` is the string that matches `token`. INVALID_ARGUMENT if it is empty, longer than 1024 bytes or
  // already used by another token.
  absl::Status Add(const std::string& pattern, const AddedToken& token);

  bool empty() const { return tokens_.empty(); }

  // Appends the segments that cover `text`: leftmost matches, the longest of these. Without `parse_special`
  // special tokens are text; so is a single_word token inside a word.
  void Split(std::string_view text, bool parse_special, std::vector<TextSegment>* segments) const;

  // Splits a text with marks (normalizer.h): the tokens in `control` are matched first, and only where all
  // bytes are the template's own; the others between them, regardless of origin.
  void SplitMarked(std::string_view text, std::string_view marks, const absl::flat_hash_set<int32_t>& control,
                   std::vector<TextSegment>* segments) const;

 private:
  struct Match {
    size_t length = 0;
    const AddedToken* token = nullptr;
  };
  // Tokens that a scan looks for: all, or those inside or outside of a set.
  struct Wanted {
    const absl::flat_hash_set<int32_t>* control = nullptr;
    bool in_control = false;
    bool Has(const AddedToken& token) const {
      return control == nullptr || control->contains(token.id) == in_control;
    }
  };
  // State of a scan: matches begin and end in `range`; the text before `done` already has its segments.
  struct Scan {
    ByteRange range;
    size_t done = 0;
  };
  Match LongestAt(std::string_view text, const Wanted& wanted) const;
  void Find(std::string_view text, bool parse_special, const Wanted& wanted, Scan* scan,
            std::vector<TextSegment>* segments) const;

  // Trie: node 0 is the root, edges by (node << 8 | byte).
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_of_node_;  // index in tokens_, -1: none
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace sluice
