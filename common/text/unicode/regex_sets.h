// Sets of Oniguruma's dialect (\s, \w, \p{..}) as content of PCRE2 classes, to be put between [ and ].
//
// Each begins and ends with a range or a property, so that a hyphen after it never makes a range.
//
// Thread safety: constants and free functions, safe to use from any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice {

// PCRE2's own \s has U+180E, too.
inline constexpr const char* kSpaceSet =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{2000}-\\x{"
    "200a}";
inline constexpr const char* kHexSet = "0-9A-Fa-f";  // \h

// Returns \w. Outside of classes it also matches some digits and fractions of Latin-1.
std::string WordSet();
inline constexpr const char* kLatin1WordSet = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Returns \p{name}: a category by its short or long name, a few binary properties, or else a script (PCRE2
// refuses unknown ones). Unimplemented for other names.
absl::StatusOr<std::string> PropertySet(std::string_view name);

}  // namespace sluice
