// Characters that Unicode 15.0 to 16.0 added: PCRE2 10.42 (Unicode 14) does not know their category, while
// the reference (Oniguruma 6.9.10, Unicode 16) does. They are new emoji, two blocks of Han characters and
// scripts.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Returns the content of a PCRE2 class with the newer characters of a category ("Lu"), a group of categories
// ("L"), of "Han", "Alphabetic" or "Word" (Oniguruma's \w); empty for a property without any.
std::string NewerCharactersOf(std::string_view property);

// Returns the category of a newer character; empty for all others.
std::string_view NewerCategoryOf(char32_t code_point);

}  // namespace sluice
