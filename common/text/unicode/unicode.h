// Unicode properties and normalization forms, on utf8proc, by the rules of Rust's standard library and of
// Hugging Face `tokenizers`.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

bool IsWhitespace(char32_t code_point);   // White_Space
bool IsNumeric(char32_t code_point);      // Nd, Nl, No
bool IsPunctuation(char32_t code_point);  // P*, and the ASCII symbols $+<=>^`|~
bool IsWordChar(char32_t code_point);     // Alphabetic, M*, Nd, Pc, Join_Control

// `text` must be well-formed UTF-8. Time is O(n log n) in the worst case (runs of combining marks).
std::string Normalize(UnicodeForm form, std::string_view text);

// Lowercases each character on its own (no final sigma rule).
std::string Lowercase(std::string_view text);

}  // namespace sluice
