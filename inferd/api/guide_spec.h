// What an answer must conform to, as a client says it. inferd/guide makes masks of it.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

// A text whose middle is a JSON document, such as the call of a tool.
struct GuideCall {
  std::string begin;
  std::string json_schema;
  std::string end;
};

struct GuideSpec {
  enum class Kind : uint8_t {
    kJsonObject,  // any JSON object
    kJsonSchema,  // a JSON document that `text`, a JSON schema, allows
    kRegex,       // the whole answer matches `text`
    kGrammar,     // `text` is a grammar (GBNF) whose rule "root" derives the answer
    kChoice,      // one of `choices`
    kCall,        // one of `calls`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  std::vector<GuideCall> calls;
  // Up to and with this token the answer is free, and does not end: the thoughts of a model that thinks
  // first.
  std::optional<int32_t> after_token;
};

}  // namespace sluice
