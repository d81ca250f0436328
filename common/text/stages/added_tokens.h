// AddedTokenMatcher: finds the added tokens spelt in a text.
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
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/unicode/regex.h"

namespace sluice {

// A part of a text: an added token, or text in between.
struct TextSegment {
  static constexpr int32_t kText = -1;
  ByteRange range;
  int32_t token = kText;  // id of the added token
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher();

  // `pattern` is what stands in the text for `token`. InvalidArgument if it is empty, longer than 1024 bytes
  // or already taken by another token.
  absl::Status Add(const std::string& pattern, const AddedToken& token);

  bool empty() const { return tokens_.empty(); }

  // Appends the segments that cover `text`: leftmost matches, of these the longest. Without `parse_special`
  // special tokens are text; so is a single_word token inside a word.
  void Split(std::string_view text, bool parse_special, std::vector<TextSegment>* segments) const;

  // The same for a text with marks (marked_text.h): the tokens in `control` are found first, and only where
  // all bytes are the template's own; the others between them, wherever they stand.
  void SplitMarked(std::string_view text, std::string_view marks, const absl::flat_hash_set<int32_t>& control,
                   std::vector<TextSegment>* segments) const;

 private:
  struct Match {
    size_t length = 0;
    const AddedToken* token = nullptr;
  };
  // Which tokens a scan looks for: all, or by whether they are in a set.
  struct Wanted {
    const absl::flat_hash_set<int32_t>* control = nullptr;
    bool in_control = false;
    bool Has(const AddedToken& token) const {
      return control == nullptr || control->contains(token.id) == in_control;
    }
  };
  // Where a scan is: matches begin and end in `range`; what lies before `done` has its segments.
  struct Scan {
    ByteRange range;
    size_t done = 0;
  };
  Match LongestAt(std::string_view text, const Wanted& wanted) const;
  void Find(std::string_view text, bool parse_special, const Wanted& wanted, Scan* scan,
            std::vector<TextSegment>* segments) const;

  // A trie: node 0 is the root, edges by (node << 8 | byte).
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_of_node_;  // index in tokens_, -1: none
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace sluice
