#include "common/base/utf8.h"

#include <cstring>

namespace sluice {
namespace {

// Length of a sequence by its lead byte, and the allowed range of its second byte, which excludes surrogates,
// overlong forms and code points above U+10FFFF (Unicode, table 3-7). Length 0: not a lead byte.
struct LeadRule {
  uint8_t length;
  uint8_t second_low;
  uint8_t second_high;
};

LeadRule RuleOf(uint8_t lead) {
  if (lead < 0x80) {
    return {1, 0, 0};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {0, 0, 0};
  }
  if (lead < 0xE0) {
    return {2, 0x80, 0xBF};
  }
  if (lead < 0xF0) {
    return {3, static_cast<uint8_t>(lead == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(lead == 0xED ? 0x9F : 0xBF)};
  }
  return {4, static_cast<uint8_t>(lead == 0xF0 ? 0x90 : 0x80),
          static_cast<uint8_t>(lead == 0xF4 ? 0x8F : 0xBF)};
}

}  // namespace

Utf8Char DecodeUtf8(std::string_view bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  const LeadRule rule = RuleOf(lead);
  if (rule.length == 1) {
    return {lead, 1, Utf8State::kWhole};
  }
  if (rule.length == 0) {
    return {0, 1, Utf8State::kIllFormed};
  }
  char32_t code_point = lead & (0xFF >> (rule.length + 1));
  for (uint8_t i = 1; i < rule.length; ++i) {
    if (i == bytes.size()) {
      return {0, i, Utf8State::kIncomplete};
    }
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? rule.second_low : 0x80;
    const uint8_t high = i == 1 ? rule.second_high : 0xBF;
    if (byte < low || byte > high) {
      return {0, i, Utf8State::kIllFormed};
    }
    code_point = (code_point << 6) | (byte & 0x3F);
  }
  return {code_point, rule.length, Utf8State::kWhole};
}

void AppendUtf8(char32_t code_point, std::string* out) {
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  const auto tail = [out, code_point](int shift) {
    out->push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)));
  };
  if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (code_point >> 6)));
  } else if (code_point < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    tail(6);
  } else {
    out->push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    tail(12);
    tail(6);
  }
  tail(0);
}

char32_t NextCodePoint(std::string_view text, size_t* position) {
  const Utf8Char next = DecodeUtf8(text.substr(*position));
  *position += next.length;
  return next.code_point;
}

bool IsWellFormedUtf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    // Eight ASCII bytes at a time: the common case.
    uint64_t eight = 0;
    if (bytes.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, bytes.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const Utf8Char next = DecodeUtf8(bytes.substr(i));
    if (next.state != Utf8State::kWhole) {
      return false;
    }
    i += next.length;
  }
  return true;
}

std::string ReplaceIllFormedUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char next = DecodeUtf8(bytes.substr(i));
    out.append(next.state == Utf8State::kWhole ? bytes.substr(i, next.length) : kReplacementUtf8);
    i += next.length;
  }
  return out;
}

}  // namespace sluice
