#include "tests/support/mutator.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace sluice {
namespace {

constexpr const char* kDecimals[] = {"0",          "-1",         "1",          "2",
                                     "3",          "255",        "65536",      "2147483647",
                                     "2147483648", "4294967295", "4294967296", "9223372036854775807",
                                     "1e308",      "1e999",      "-0.0",       "18446744073709551615",
                                     "0.5",        "null",       "true",       "18446744073709551616",
                                     "\"7\"",      "[]",         "{}",         "1152921504606846976",
                                     "4096",       "16777216",   "1048577",    "99999999999999999999999999"};
constexpr uint64_t kWords[] = {0,          1,          0x7f,       0xff,        0x100,          4095,
                               4096,       0x7fffffff, 0x80000000, 0xffffffff,  0x100000000ull, 1ull << 40,
                               1ull << 61, 1ull << 63, ~0ull,      ~0ull - 4095};

}  // namespace

uint64_t Mutator::Next() {  // splitmix64
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void Mutator::ReplaceDecimal(std::string* text) {
  const size_t from = Below(text->size());
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto begin = std::find_if(text->begin() + from, text->end(), is_digit);
  const auto end = std::find_if_not(begin, text->end(), is_digit);
  text->replace(begin - text->begin(), end - begin, kDecimals[Below(std::size(kDecimals))]);
}

void Mutator::ReplaceBinary(std::string* text) {
  const size_t bytes = size_t{1} << Below(4);
  if (text->size() < bytes) return;
  const uint64_t word = kWords[Below(std::size(kWords))];
  std::memcpy(text->data() + Below(text->size() - bytes + 1), &word, bytes);
}

void Mutator::Edit(std::string* text) {
  const size_t at = Below(text->size() + 1);
  const size_t length = Below(std::min<size_t>(text->size() - at, 64) + 1);
  switch (Below(9)) {
    case 0:
      if (at < text->size()) (*text)[at] = static_cast<char>((*text)[at] ^ (1 << Below(8)));
      break;
    case 1:
      if (at < text->size()) (*text)[at] = static_cast<char>(Next());
      break;
    case 2:
      text->insert(at, 1, static_cast<char>(Next()));
      break;
    case 3:
      text->erase(at, length);
      break;
    case 4:
      text->insert(Below(text->size() + 1), text->substr(at, length));
      break;
    case 5:
      text->resize(at);
      break;
    case 6: {
      const std::string piece = text->substr(at, length);
      text->replace(Below(text->size() + 1), piece.size(), piece);
      break;
    }
    case 7:
      ReplaceDecimal(text);
      break;
    default:
      ReplaceBinary(text);
      break;
  }
}

std::string Mutator::Mutate(const std::string& text) {
  std::string mutated = text;
  // Mostly few edits: many bury the interesting one under a syntax error.
  const uint64_t edits = 1 + Below(4) * Below(3);
  for (uint64_t i = 0; i < edits; ++i) Edit(&mutated);
  return mutated;
}

}  // namespace sluice
