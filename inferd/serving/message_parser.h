// MessageParser: splits a model's output, while it arrives, into thoughts, text and tool calls.
//
// A possible beginning of a mark is held back until it is decided, and emitted as text if it is no mark. A
// malformed call is emitted as text.
//
// Thread safety: thread-compatible; a parser belongs to one answer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "inferd/serving/dialect.h"

namespace sluice::inferd {

struct MessageEvent {
  enum class Kind : uint8_t {
    kReasoning,  // `text`: a part of the thoughts
    kText,       // a part of the answer
    kCall,       // start of a call; `text`: the tool's whole name
    kArguments,  // a part of the call's arguments; all parts joined are a JSON object
  };
  Kind kind = Kind::kText;
  std::string text;
  std::string id;  // of a call whose model names one; else empty
  bool operator==(const MessageEvent&) const = default;
};

// JSON types by tool and parameter, from the schema ("string", "integer", ..; empty: unspecified). Families
// with plain text arguments need it to distinguish the number 5 from the text "5".
using ToolTypes = std::map<std::string, std::map<std::string, std::vector<std::string>>>;

struct MessageParserOptions {
  bool tools = false;               // parse calls
  bool split_thoughts = true;       // false: thoughts stay in the text, with their marks
  bool begins_in_thought = false;   // the prompt ended with the opening mark
  std::string opening;              // beginning of the message, already in the prompt
  uint32_t max_calls = UINT32_MAX;  // further calls are dropped
  ToolTypes types;
};

class MessageParser {
 public:
  MessageParser(const Dialect& dialect, MessageParserOptions options);
  ~MessageParser();
  MessageParser(MessageParser&&) noexcept;

  // Consumes the next part and appends the events decided so far.
  void Push(std::string_view text, std::vector<MessageEvent>* out);
  // Ends the message and appends the remaining events.
  void Finish(std::vector<MessageEvent>* out);
  // Number of calls so far.
  uint32_t calls() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice::inferd
