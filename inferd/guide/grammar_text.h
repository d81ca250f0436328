// Text of the grammar language that xgrammar reads (GBNF with macros).
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// A grammar of just these texts. REQUIRES: at least one; UTF-8 without NUL.
std::string ChoiceGrammar(const std::vector<std::string>& choices);

// INVALID_ARGUMENT if repetition counts {n} or {n,m} in `text`, a grammar, are above `most`: each asks for
// states of its own. Quoted and escaped braces count, too; that refuses only what is very large.
absl::Status CheckCounts(std::string_view text, uint64_t most);

}  // namespace sluice
