// Regex: an Oniguruma pattern run by PCRE2 (with its JIT), with the search semantics of Hugging Face
// `tokenizers`.
//
// Thread safety: a Regex is immutable; its const methods may be called from any thread at once, each with a
// RegexScratch of its own. A RegexScratch is used by one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// A range of bytes, [begin, end).
struct ByteRange {
  size_t begin;
  size_t end;
};

// RegexScratch: match data, limits and the JIT's stack of a search. Allocated on first use.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

class Regex {
 public:
  // UNIMPLEMENTED or INVALID_ARGUMENT, naming construct and offset, if the pattern cannot be translated or
  // compiled.
  static absl::StatusOr<std::unique_ptr<const Regex>> Compile(const std::string& pattern);

  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Replaces *matches by all matches in `text` (well-formed UTF-8), left to right, not overlapping; an empty
  // match right after a match does not count. RESOURCE_EXHAUSTED if a match exceeds PCRE2's limits.
  absl::Status FindAll(std::string_view text, RegexScratch* scratch, std::vector<ByteRange>* matches) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> compiled);
  const std::unique_ptr<Compiled> compiled_;
};

// TranslateRegex: translates Oniguruma patterns (the dialect of tokenizer.json) to PCRE2 patterns of the same
// meaning.
//
// The dialects agree on most of the syntax that tokenizers use; where they differ (\s, \w, \h, \v, \b, nested
// and intersected classes, intervals with + or ?, \uHHHH, script names, m as dotall), the construct is
// rewritten. Constructs outside the known subset are refused by name, never passed through.
//
// Thread safety: a free function, safe to call from any thread.

// The result is meant for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with newline LF. UNIMPLEMENTED, naming the
// construct and its offset, for unsupported syntax; INVALID_ARGUMENT for a pattern that ends early.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

}  // namespace sluice
