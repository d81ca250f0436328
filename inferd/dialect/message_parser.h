// MessageParser: splits what a model writes, as it comes, into thoughts, text and calls of tools.
//
// What may be the beginning of a mark is held back until it is clear, and given back when it is none. What
// does not parse as a call is text.
//
// Thread safety: thread-compatible; a parser belongs to one answer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "inferd/dialect/dialect.h"

namespace sluice {

struct MessageEvent {
  enum class Kind : uint8_t {
    kReasoning,  // `text`: a part of the thoughts
    kText,       // of the answer
    kCall,       // a call begins; `text`: the tool's whole name
    kArguments,  // a part of the call's arguments, which joined are a JSON object
  };
  Kind kind = Kind::kText;
  std::string text;
  bool operator==(const MessageEvent&) const = default;
};

// By tool and parameter: the JSON types that its schema allows ("string", "integer", ..; empty: not said).
// Families that write arguments as plain text need it to tell the number 5 from the text "5".
using ToolTypes = std::map<std::string, std::map<std::string, std::vector<std::string>>>;

struct MessageParserOptions {
  bool tools = false;               // calls are looked for
  bool split_thoughts = true;       // else they stay in the text, marks and all
  bool begins_in_thought = false;   // the prompt ended with the opening mark
  std::string opening;              // of the message, which the prompt ended with
  uint32_t max_calls = UINT32_MAX;  // further ones are dropped
  ToolTypes types;
};

class MessageParser {
 public:
  MessageParser(const Dialect& dialect, MessageParserOptions options);
  ~MessageParser();
  MessageParser(MessageParser&&) noexcept;

  // Takes the next part and appends what has become clear.
  void Push(std::string_view text, std::vector<MessageEvent>* out);
  // The message has ended.
  void Finish(std::vector<MessageEvent>* out);
  // So far.
  uint32_t calls() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
