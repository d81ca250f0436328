// Rewrites regexes for xgrammar: parses them here and prints them in the subset that xgrammar handles
// correctly.
//
// xgrammar 0.2.8 has two ways from a regex to a grammar. The automaton is wrong for some regexes ((b(a)+)?
// accepts "a"); the rewriting into rules is right, but treats a class that begins with ^ as negated, and
// ignores the characters that a JSON string cannot hold. So every regex is parsed, its classes are computed,
// and the output has only literal characters, classes of ranges, groups, alternatives and repetitions.
//
// Input: the common part of ECMA's and Python's syntax. \d, \w, \s are ASCII; a dot matches no line feed; ^
// and $ are allowed at the beginning and the end, where they change nothing: the whole text must match.
//
// Thread safety: pure function, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::inferd {

// Maximum repetition count of a regex or a grammar.
inline constexpr uint32_t kMaxRepetitions = 10'000;
// Maximum nesting of groups.
inline constexpr int kMaxRegexDepth = 200;

// `in_json_string`: the text is inside a JSON string; characters that need an escape there are printed with
// it where they stand alone, and removed from classes. INVALID_ARGUMENT naming the position: invalid regex,
// unsupported construct, empty class, or a count above kMaxRepetitions. REQUIRES: `regex` is UTF-8.
absl::StatusOr<std::string> RewriteRegex(std::string_view regex, bool in_json_string);

// Text of xgrammar's grammar language (GBNF with macros).
//
// Thread safety: pure functions, safe to call from any thread.

// Returns a grammar of exactly these texts. REQUIRES: at least one; UTF-8 without NUL.
std::string ChoiceGrammar(const std::vector<std::string>& choices);

// INVALID_ARGUMENT if a repetition count {n} or {n,m} in `text`, a grammar, exceeds `maximum`: each count
// multiplies the states. Quoted and escaped braces count, too; that refuses only very large numbers.
absl::Status CheckCounts(std::string_view text, uint64_t maximum);

}  // namespace sluice::inferd
