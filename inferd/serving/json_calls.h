// JSON in running text: finds the end of a value and the head of a call object.
//
// Thread safety: pure functions and plain values, safe to use from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferd/serving/call_parsers.h"
#include "inferd/serving/message_parser.h"

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

// Helpers of call parsers for a buffer that grows at its end and is consumed at its front.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.

inline void Emit(MessageEvent::Kind kind, std::string text, std::vector<MessageEvent>* out) {
  if (!text.empty() || kind == MessageEvent::Kind::kCall) {
    out->push_back({kind, std::move(text), ""});
  }
}

inline bool StartsWith(std::string_view text, std::string_view part) {
  return text.substr(0, part.size()) == part;
}
// True if `text` is a prefix of `part` or begins with it.
inline bool MayStartWith(std::string_view text, std::string_view part) {
  return StartsWith(text, part) || StartsWith(part, text);
}

// Moves the text before `mark` to *before, and removes both from *in. False: the mark is not there yet.
inline bool TakeTo(std::string* in, std::string_view mark, std::string* before) {
  const size_t at = in->find(mark);
  if (at == std::string::npos) {
    return false;
  }
  *before = in->substr(0, at);
  in->erase(0, at + mark.size());
  return true;
}
inline bool TakeMark(std::string* in, std::string_view mark) {
  const size_t at = SkipBlank(*in);
  if (!StartsWith(std::string_view(*in).substr(at), mark)) {
    return false;
  }
  in->erase(0, at + mark.size());
  return true;
}
inline bool MayTakeMark(const std::string& in, std::string_view mark) {
  return MayStartWith(std::string_view(in).substr(SkipBlank(in)), mark);
}
inline std::string Trimmed(const std::string& text) {
  const size_t begin = SkipBlank(text);
  return begin == text.size() ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// Parsers of calls with JSON object arguments.
//
// Thread safety: thread-compatible; see call_parsers.h.

// {"name", "arguments"} objects: one, or a list in brackets; then an optional `close`.
std::unique_ptr<CallParser> MakeObjectCalls(const std::string& close);
// Mistral: the list above, or f{..}, or f[ARGS]{..}; with [CALL_ID]id between in some versions.
std::unique_ptr<CallParser> MakeMistralCalls();
// DeepSeek: its own marks, with or without a fenced block.
std::unique_ptr<CallParser> MakeDeepSeekCalls();
// Kimi-K2: marks around an id such as "functions.f:0", and an object.
std::unique_ptr<CallParser> MakeKimiCalls();

}  // namespace sluice::inferd
