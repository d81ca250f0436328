// Helpers of call parsers for a buffer that grows at its end and is consumed at its front.
//
// Thread safety: pure functions over their arguments, safe to call from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferd/dialect/json_calls.h"
#include "inferd/dialect/message_parser.h"

namespace sluice::inferd {

inline void Emit(MessageEvent::Kind kind, std::string text, std::vector<MessageEvent>* out) {
  if (!text.empty() || kind == MessageEvent::Kind::kCall) {
    out->push_back({kind, std::move(text)});
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

}  // namespace sluice::inferd
