// Tokenize: splits a template into text and tokens, with Jinja's white-space control: trim_blocks and
// lstrip_blocks are on, as chat templates expect, and `-`/`+` at a tag overrides them.
//
// Thread safety: a pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::jinja {

struct Token {
  enum class Kind {
    kText,
    kStatementBegin,
    kStatementEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// INVALID_ARGUMENT with the line: unclosed tag, comment or string; a character that starts no token.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace sluice::jinja
