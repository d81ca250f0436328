// JSON in running text: finds the end of a value and the head of a call object.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::inferd {

// Tracks brackets and strings, byte by byte.
class JsonSpan {
 public:
  // True at the bracket that closes the first one.
  bool Feed(char c) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return false;
    }
    in_string_ = c == '"';
    depth_ += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    return depth_ <= 0 && (c == '}' || c == ']');
  }

 private:
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

// Number of bytes up to the end of the object or list at the front of `text`; npos: the end is not there yet.
size_t JsonEnd(std::string_view text);

// The head `{"name": "f", "arguments": ` at the front of `text`, with any white space.
struct CallHead {
  enum class Match { kNo, kPartial, kYes };
  Match match = Match::kNo;
  std::string name;
  size_t bytes = 0;  // length of the head, up to the first byte of the arguments
};
CallHead MatchCallHead(std::string_view text);

inline size_t SkipBlank(std::string_view text, size_t from = 0) {
  const size_t at = text.find_first_not_of(" \t\r\n", from);
  return at == std::string_view::npos ? text.size() : at;
}

// Length of the longest suffix of `text` that is a proper prefix of `mark`.
size_t PartialMark(std::string_view text, std::string_view mark);

}  // namespace sluice::inferd
