// API between the engine and its clients: constraints, queue limits, requests, sinks, statistics.
//
// GrammarSpec: a client's guide on an answer (structured output). The engine compiles it to token masks.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::inferd {

// A text with a JSON document in the middle, such as a tool call.
struct ToolCallGrammar {
  std::string begin;
  std::string json_schema;
  std::string end;
};

struct GrammarSpec {
  enum class Kind : uint8_t {
    kJsonObject,  // any JSON object
    kJsonSchema,  // a JSON document valid under `text`, a JSON schema
    kRegex,       // the whole answer matches `text`, a regular expression
    kGrammar,     // `text` is a grammar (GBNF) whose rule "root" derives the answer
    kChoice,      // one of `choices`
    kCall,        // one of `calls`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  std::vector<ToolCallGrammar> calls;
  // Token that ends the unconstrained part of the answer (included): the thoughts of a reasoning model. The
  // answer cannot end before it.
  std::optional<int32_t> after_token;
};

}  // namespace sluice::inferd
