#include "common/text/unicode/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "common/text/unicode/utf8.h"

namespace sluice {
namespace {

// Printable bytes represent themselves; the other 68, in ascending order, are U+0100 and following.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr char32_t kFirstOther = 0x100;
constexpr char32_t kEnd = 0x144;

constexpr std::array<char16_t, 256> MakeCharOfByte() {
  std::array<char16_t, 256> table{};
  char16_t next = kFirstOther;
  for (int byte = 0; byte < 256; ++byte) {
    table[byte] = IsPrintable(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return table;
}

constexpr std::array<char16_t, 256> kCharOfByte = MakeCharOfByte();

constexpr std::array<int16_t, kEnd> MakeByteOfChar() {
  std::array<int16_t, kEnd> table{};
  for (int16_t& entry : table) {
    entry = -1;
  }
  for (int byte = 0; byte < 256; ++byte) {
    table[kCharOfByte[byte]] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr std::array<int16_t, kEnd> kByteOfChar = MakeByteOfChar();

}  // namespace

void AppendByteAlphabet(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) {
    AppendUtf8(kCharOfByte[static_cast<uint8_t>(byte)], out);
  }
}

// A token with any character outside of the alphabet is an added token and represents its own text.
void AppendBytesOfToken(std::string_view token, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < token.size();) {
    const char32_t c = NextCodePoint(token, &i);
    if (c >= kEnd || kByteOfChar[c] < 0) {
      out->resize(before);
      out->append(token);
      return;
    }
    out->push_back(static_cast<char>(kByteOfChar[c]));
  }
}

}  // namespace sluice
