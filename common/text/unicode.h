// Unicode properties, normal forms and GPT-2's byte alphabet.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Unicode properties and normalization forms, on utf8proc, by the rules of Rust's standard library and of
// Hugging Face `tokenizers`.
//
// Thread safety: free functions, safe to call from any thread.

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

bool IsWhitespace(char32_t code_point);   // White_Space
bool IsNumeric(char32_t code_point);      // Nd, Nl, No
bool IsPunctuation(char32_t code_point);  // P*, and the ASCII symbols $+<=>^`|~
bool IsWordChar(char32_t code_point);     // Alphabetic, M*, Nd, Pc, Join_Control

// `text` must be well-formed UTF-8. Time is O(n log n) in the worst case (runs of combining marks).
std::string Normalize(UnicodeForm form, std::string_view text);

// Lowercases each character on its own (no final sigma rule).
std::string Lowercase(std::string_view text);

// Python's str methods, by character. Some characters have a case of several: U+00DF becomes "SS".
enum class LetterCase { kLower, kUpper, kTitle };
void AppendInCase(char32_t code_point, LetterCase letter_case, std::string* out);
bool IsCasedLetter(char32_t code_point);  // Lu, Ll, Lt, and the letters that have another case
bool IsLetter(char32_t code_point);       // L*: isalpha()
bool IsDigit(char32_t code_point);        // Nd, and superscript, subscript and circled digits: isdigit()
bool IsPythonBlank(char32_t code_point);  // White_Space and U+001C to U+001F: isspace(), strip(), split()
bool IsPrintable(char32_t code_point);    // repr() writes all others as escapes

// Characters that Unicode 15.0 to 16.0 added: PCRE2 10.42 (Unicode 14) does not know their category, while
// the reference (Oniguruma 6.9.10, Unicode 16) does. They are new emoji, two blocks of Han characters and
// scripts.
//
// Thread safety: free functions, safe to call from any thread.

// Returns the content of a PCRE2 class with the newer characters of a category ("Lu"), a group of categories
// ("L"), of "Han", "Alphabetic" or "Word" (Oniguruma's \w); empty for a property without any.
std::string NewerCharactersOf(std::string_view property);

// Returns the category of a newer character; empty for all others.
std::string_view NewerCategoryOf(char32_t code_point);

// Byte alphabet of GPT-2: each of the 256 bytes written as one printable character, so that a byte-level
// vocabulary can be stored as text.
//
// Thread safety: free functions, safe to call from any thread.

// Appends each byte of `bytes` as its character.
void AppendByteAlphabet(std::string_view bytes, std::string* out);

// Appends the bytes that `token` represents; a token with a character outside the alphabet is copied
// unchanged (added tokens hold plain text). `token` is well-formed UTF-8.
void AppendBytesOfToken(std::string_view token, std::string* out);

}  // namespace sluice
