// CallParser: parses one section of tool calls, from behind its opening mark to its end, in one family's
// syntax.
//
// Thread safety: thread-compatible; a parser belongs to one section.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inferd/serving/dialect.h"
#include "inferd/serving/message_parser.h"

namespace sluice::inferd {

class CallParser {
 public:
  enum class Outcome : uint8_t {
    kMore,    // the rest of *in needs more input
    kDone,    // the section has ended; the rest of *in follows it
    kNoCall,  // this is no call; *in is unchanged, and no event was appended
  };
  virtual ~CallParser() = default;
  // Consumes the unambiguous front of *in. `ended`: no more input follows.
  virtual Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) = 0;
};

// Opening marks of a section in `style`, the longest first; kHarmony has none, since it uses channels.
std::vector<std::string> CallMarks(ToolStyle style);

// `mark` opened the section. REQUIRES: CallMarks(style) is not empty. `types` outlives the parser.
std::unique_ptr<CallParser> MakeCallParser(ToolStyle style, const std::string& mark, const ToolTypes& types);

// JSON value of a parameter written as plain text, by the types of its schema.
std::string JsonOfText(const std::string& text, const std::vector<std::string>& types);

// Returns the JSON of an object as Gemma writes it, with keys without quotes and texts between <|"|>; none if
// `text` is not such an object.
std::optional<std::string> GemmaObject(std::string_view text);

// Parser of calls in Python syntax: [f(a="x", b=1), g()]. Only literals are supported.
//
// Thread safety: pure functions, safe to call from any thread.

// Number of bytes up to the end of the list at the front of `text`; npos: the end is not there yet.
size_t PythonListEnd(std::string_view text);

// Names of the calls, and their arguments as JSON objects. None unless all of `text` is a list of calls with
// keyword arguments.
std::optional<std::vector<std::pair<std::string, std::string>>> ParsePythonCalls(std::string_view text);

}  // namespace sluice::inferd
