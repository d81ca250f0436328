// TranslateRegex: translates Oniguruma patterns (the dialect of tokenizer.json) to PCRE2 patterns of the same
// meaning.
//
// The dialects agree on most of the syntax that tokenizers use; where they differ (\s, \w, \h, \v, \b, nested
// and intersected classes, intervals with + or ?, \uHHHH, script names, m as dotall), the construct is
// rewritten. Constructs outside the known subset are refused by name, never passed through.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

// The result is meant for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE with newline LF. Unimplemented, naming the
// construct and its offset, for unsupported syntax; InvalidArgument for a pattern that ends early.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

}  // namespace sluice
