// Cuts PTX text into tokens.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace sluice::cuda_fake {

enum class TokenKind {
  kWord,    // name, register, opcode with its modifiers, directive (begins with a dot), label
  kNumber,  // literal as written: 12, 0x1F, 0f3F800000, 0d3FF0000000000000
  kString,  // without its quotes
  kSign     // one character
};

struct Token {
  TokenKind kind = TokenKind::kSign;
  absl::string_view text;  // into the source
  int line = 0;            // from 1
};

// Comments are left out. The tokens point into `source`.
std::vector<Token> Tokenize(absl::string_view source);

}  // namespace sluice::cuda_fake
