#include "inferd/dialect/json_calls.h"

#include <algorithm>

namespace sluice::inferd {
namespace {

// Matches the parts of a call's head one by one; a part missing at the end of the text may still arrive.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text) {}
  bool partial() const { return partial_; }
  size_t at() const { return at_; }

  bool Word(std::string_view word) {
    at_ = SkipBlank(text_, at_);
    const std::string_view rest = text_.substr(at_, word.size());
    if (rest == word) {
      at_ += word.size();
      return true;
    }
    partial_ = rest == word.substr(0, rest.size());
    return false;
  }
  // A string without escapes: tool names contain none.
  bool Name(std::string* name) {
    if (!Word("\"")) {
      return false;
    }
    const size_t end = text_.find_first_of("\"\\", at_);
    if (end == std::string_view::npos || text_[end] == '\\') {
      partial_ = end == std::string_view::npos;
      return false;
    }
    *name = std::string(text_.substr(at_, end - at_));
    at_ = end + 1;
    return !name->empty();
  }

 private:
  const std::string_view text_;
  size_t at_ = 0;
  bool partial_ = false;
};

}  // namespace

size_t JsonEnd(std::string_view text) {
  JsonSpan span;
  for (size_t i = 0; i < text.size(); ++i) {
    if (span.Feed(text[i])) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

CallHead MatchCallHead(std::string_view text) {
  CallHead head;
  Matcher matcher(text);
  std::string key;
  bool yes = matcher.Word("{") && matcher.Word("\"name\"") && matcher.Word(":") && matcher.Name(&head.name) &&
             matcher.Word(",") && matcher.Name(&key) && (key == "arguments" || key == "parameters") &&
             matcher.Word(":");
  const size_t value = SkipBlank(text, matcher.at());
  if (yes && value == text.size()) {
    head.match = CallHead::Match::kPartial;
  } else if (yes) {
    head.match = text[value] == '{' ? CallHead::Match::kYes : CallHead::Match::kNo;
    head.bytes = value;
  } else {
    head.match = matcher.partial() ? CallHead::Match::kPartial : CallHead::Match::kNo;
  }
  return head;
}

size_t PartialMark(std::string_view text, std::string_view mark) {
  for (size_t size = std::min(text.size(), mark.size() - (mark.empty() ? 0 : 1)); size > 0; --size) {
    if (text.substr(text.size() - size) == mark.substr(0, size)) {
      return size;
    }
  }
  return 0;
}

}  // namespace sluice::inferd
