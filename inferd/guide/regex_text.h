// Regexes as xgrammar is given them: read here, and written in the part of its language that it gets right.
//
// xgrammar 0.2.8 has two ways from a regex to a grammar. The automaton is wrong for some regexes ((b(a)+)?
// takes "a"); the rewriting into rules is right, but takes a class that begins with ^ for a negated one, and
// knows nothing of the characters that a JSON string cannot hold. So every regex is parsed, its classes are
// worked out, and what is written has literal characters, classes of ranges, groups, alternatives and
// repetitions only.
//
// What is read: ECMA's and Python's common part. \d, \w, \s mean ASCII; a dot matches no line feed; ^ and $
// are allowed at the beginning and the end, where they say what holds anyway: the whole text matches.
//
// Thread safety: pure function, safe to call from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

// A repetition count of a regex or a grammar.
inline constexpr uint32_t kMaxRepetitions = 10'000;
// Groups within groups.
inline constexpr int kMaxRegexDepth = 200;

// `in_json_string`: the text stands in a JSON string; characters that need an escape there are written with
// it where they stand alone, and are left out of classes. INVALID_ARGUMENT naming the position: no regex, a
// construct that is not supported, a class of which nothing is left, a count above kMaxRepetitions. REQUIRES:
// `regex` is UTF-8.
absl::StatusOr<std::string> RewriteRegex(std::string_view regex, bool in_json_string);

}  // namespace sluice
