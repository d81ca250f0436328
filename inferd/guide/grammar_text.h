// Text of xgrammar's grammar language (GBNF with macros).
//
// Thread safety: pure functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace sluice::inferd {

// Returns a grammar of exactly these texts. REQUIRES: at least one; UTF-8 without NUL.
std::string ChoiceGrammar(const std::vector<std::string>& choices);

// INVALID_ARGUMENT if a repetition count {n} or {n,m} in `text`, a grammar, exceeds `maximum`: each count
// multiplies the states. Quoted and escaped braces count, too; that refuses only very large numbers.
absl::Status CheckCounts(std::string_view text, uint64_t maximum);

}  // namespace sluice::inferd
