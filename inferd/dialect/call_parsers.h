// CallParser: one section of calls, from behind its opening mark to its end, in one family's writing.
//
// Thread safety: thread-compatible; a parser belongs to one section.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "inferd/dialect/dialect.h"
#include "inferd/dialect/message_parser.h"

namespace sluice {

class CallParser {
 public:
  enum class Outcome : uint8_t {
    kMore,    // the rest of *in may become clear with what follows
    kDone,    // the section has ended; the rest of *in is behind it
    kNoCall,  // this is no call; nothing was taken from *in, and no event appended
  };
  virtual ~CallParser() = default;
  // Takes from the front of *in what is clear. `ended`: nothing follows.
  virtual Outcome Step(std::string* in, bool ended, std::vector<MessageEvent>* out) = 0;
};

// What opens a section in `style`, the longest first; kHarmony has none, as it has channels instead.
std::vector<std::string> CallMarks(ToolStyle style);

// REQUIRES: CallMarks(style) is not empty. `types` outlives the parser.
std::unique_ptr<CallParser> MakeCallParser(ToolStyle style, const ToolTypes& types);

// What a parameter that is written as plain text means by its schema's types: JSON.
std::string JsonOfText(const std::string& text, const std::vector<std::string>& types);

}  // namespace sluice
