#include "common/text/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/text/normalizer.h"
#include "common/text/unicode.h"

namespace sluice {
namespace {

constexpr size_t kMaxTokenBytes = 1024;
constexpr int32_t kNoToken = -1;

size_t PreviousCharacter(std::string_view text, size_t position) {
  do {
    --position;
  } while (position > 0 && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80);
  return position;
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) {
    return false;
  }
  size_t position = PreviousCharacter(text, text.size());
  return IsWordChar(NextCodePoint(text, &position));
}

bool StartsWithWord(std::string_view text) {
  size_t position = 0;
  return !text.empty() && IsWordChar(NextCodePoint(text, &position));
}

// Returns the start of the run of spaces before `end`, at least `limit`.
size_t SpacesBefore(std::string_view text, size_t limit, size_t end) {
  while (end > limit) {
    const size_t previous = PreviousCharacter(text, end);
    size_t position = previous;
    if (!IsWhitespace(NextCodePoint(text, &position))) {
      break;
    }
    end = previous;
  }
  return end;
}

size_t SpacesAfter(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    size_t next = begin;
    if (!IsWhitespace(NextCodePoint(text, &next))) {
      break;
    }
    begin = next;
  }
  return begin;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : token_of_node_(1, kNoToken) {}

absl::Status AddedTokenMatcher::Add(const std::string& pattern, const AddedToken& token) {
  if (pattern.empty() || pattern.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, " is spelt by ", pattern.size(),
                                                   " bytes; 1 to ", kMaxTokenBytes, " are allowed"));
  }
  uint32_t node = 0;
  for (const char byte : pattern) {
    const uint64_t edge = (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(byte);
    const auto [it, inserted] = edges_.emplace(edge, static_cast<uint32_t>(token_of_node_.size()));
    if (inserted) {
      token_of_node_.push_back(kNoToken);
    }
    node = it->second;
  }
  if (token_of_node_[node] != kNoToken) {
    return absl::InvalidArgumentError(absl::StrCat("added tokens ",
                                                   tokens_[static_cast<size_t>(token_of_node_[node])].id,
                                                   " and ", token.id, " are spelt alike"));
  }
  token_of_node_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  is_first_byte_[static_cast<uint8_t>(pattern[0])] = true;
  return absl::OkStatus();
}

AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text, const Wanted& wanted) const {
  Match longest;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = edges_.find((static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(text[i]));
    if (it == edges_.end()) {
      break;
    }
    node = it->second;
    if (token_of_node_[node] == kNoToken) {
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(token_of_node_[node])];
    if (wanted.Has(token)) {
      longest = {i + 1, &token};
    }
  }
  return longest;
}

void AddedTokenMatcher::Find(std::string_view text, bool parse_special, const Wanted& wanted, Scan* scan,
                             std::vector<TextSegment>* segments) const {
  for (size_t position = scan->range.begin; position < scan->range.end;) {
    if (!is_first_byte_[static_cast<uint8_t>(text[position])]) {
      ++position;
      continue;
    }
    const Match match = LongestAt(text.substr(position, scan->range.end - position), wanted);
    if (match.token == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = position + match.length;
    position = end;
    // A special token that must stay text is skipped whole: the search continues after it, so that no shorter
    // token inside of it is found.
    if (match.token->special && !parse_special) {
      continue;
    }
    if (match.token->single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (match.token->lstrip) {
      begin = std::max(SpacesBefore(text, scan->done, begin), scan->done);
    }
    if (match.token->rstrip) {
      end = SpacesAfter(text, end);
    }
    if (scan->done < begin) {
      segments->push_back({{scan->done, begin}, TextSegment::kText});
    }
    // Empty if an earlier token's rstrip covers the segment.
    if (begin < end) {
      segments->push_back({{begin, end}, match.token->id});
    }
    scan->done = end;
  }
}

void AddedTokenMatcher::Split(std::string_view text, bool parse_special,
                              std::vector<TextSegment>* segments) const {
  Scan scan{{0, text.size()}, 0};
  Find(text, parse_special, Wanted(), &scan, segments);
  if (scan.done < text.size()) {
    segments->push_back({{scan.done, text.size()}, TextSegment::kText});
  }
}

void AddedTokenMatcher::SplitMarked(std::string_view text, std::string_view marks,
                                    const absl::flat_hash_set<int32_t>& control,
                                    std::vector<TextSegment>* segments) const {
  // Control tokens are matched first, only where all bytes are the template's own; the other tokens are then
  // matched in the rest, regardless of origin. So a client's text can neither write a control token nor
  // complete one that the template began.
  std::vector<TextSegment> coarse;
  Scan scan;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = EndOfRun(marks, begin);
    if (marks[begin] == 0) {
      scan.range = {std::max(begin, scan.done), end};
      Find(text, /*parse_special=*/true, {&control, true}, &scan, &coarse);
    }
    begin = end;
  }
  if (scan.done < text.size()) {
    coarse.push_back({{scan.done, text.size()}, TextSegment::kText});
  }
  for (const TextSegment& segment : coarse) {
    if (segment.token != TextSegment::kText) {
      segments->push_back(segment);
      continue;
    }
    // Ends with the segment, so that no token's rstrip extends beyond it.
    const std::string_view upto = text.substr(0, segment.range.end);
    Scan inner{segment.range, segment.range.begin};
    Find(upto, /*parse_special=*/false, {&control, false}, &inner, segments);
    if (inner.done < segment.range.end) {
      segments->push_back({{inner.done, segment.range.end}, TextSegment::kText});
    }
  }
}

}  // namespace sluice
