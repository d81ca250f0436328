// CallParser: parses one section of tool calls, from behind its opening mark to its end, in one family's
// syntax.
//
// Thread safety: thread-compatible; a parser belongs to one section.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inferd/dialect/dialect.h"
#include "inferd/dialect/message_parser.h"

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

// REQUIRES: CallMarks(style) is not empty. `types` outlives the parser.
std::unique_ptr<CallParser> MakeCallParser(ToolStyle style, const ToolTypes& types);

// JSON value of a parameter written as plain text, by the types of its schema.
std::string JsonOfText(const std::string& text, const std::vector<std::string>& types);

}  // namespace sluice::inferd
