// Pieces of JSON found in running text: where a value ends, and how a call that is an object begins.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

// Follows brackets and strings, byte by byte.
class JsonSpan {
 public:
  // True with the bracket that closes the first one.
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

// The number of bytes up to the end of the object or list that `text` begins with; npos: it does not end
// there.
size_t JsonEnd(std::string_view text);

// `{"name": "f", "arguments": ` at the front of `text`, white space as it likes.
struct CallHead {
  enum class Match { kNo, kPartial, kYes };
  Match match = Match::kNo;
  std::string name;
  size_t bytes = 0;  // of it, up to the arguments' first byte
};
CallHead MatchCallHead(std::string_view text);

inline size_t SkipBlank(std::string_view text, size_t from = 0) {
  const size_t at = text.find_first_not_of(" \t\r\n", from);
  return at == std::string_view::npos ? text.size() : at;
}

// The longest end of `text` that is a beginning of `mark`, short of all of it.
size_t PartialMark(std::string_view text, std::string_view mark);

}  // namespace sluice
