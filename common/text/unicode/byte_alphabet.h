// Byte alphabet of GPT-2: each of the 256 bytes written as one printable character, so that a byte-level
// vocabulary can be stored as text.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Appends each byte of `bytes` as its character.
void AppendByteAlphabet(std::string_view bytes, std::string* out);

// Appends the bytes that `token` represents; a token with a character outside the alphabet is copied
// unchanged (added tokens hold plain text). `token` is well-formed UTF-8.
void AppendBytesOfToken(std::string_view token, std::string* out);

}  // namespace sluice
