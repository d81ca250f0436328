// UTF-8: decoding of possibly ill-formed bytes, encoding, replacement of ill-formed parts.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8State : uint8_t {
  kWhole,       // `code_point` is valid and has `length` bytes
  kIllFormed,   // the first `length` bytes are a maximal ill-formed part: one U+FFFD
  kIncomplete,  // all given bytes are the beginning of a character
};

struct Utf8Char {
  char32_t code_point;
  uint8_t length;  // bytes
  Utf8State state;
};

// Decodes the character at the beginning of `bytes`, which must not be empty. Overlong forms, surrogates and
// values above U+10FFFF are ill-formed; the parts are those of Unicode section 3.9 (Rust's and Python's
// rule).
Utf8Char DecodeUtf8(std::string_view bytes);

// Returns the length in bytes of the well-formed character that begins with `lead`.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// REQUIRES: `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

// Returns the code point at `*position` of well-formed `text` and moves past it.
char32_t NextCodePoint(std::string_view text, size_t* position);

bool IsWellFormedUtf8(std::string_view bytes);

// Replaces each maximal ill-formed part of `bytes` by one U+FFFD.
std::string ReplaceIllFormedUtf8(std::string_view bytes);

}  // namespace sluice
