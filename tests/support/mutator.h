// Seeded mutation of byte strings: the random half of a fuzzer, for tests that must be repeatable.
//
// Thread safety: a Mutator is used by one thread.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : state_(seed) {}

  // `text` after one to eight edits: flipped bits, overwritten, inserted, removed, repeated and swapped
  // ranges, cuts, and numbers (decimal in text, little-endian in binary) replaced by awkward ones.
  std::string Mutate(const std::string& text);

  uint64_t Next();
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }

 private:
  void Edit(std::string* text);
  void ReplaceDecimal(std::string* text);
  void ReplaceBinary(std::string* text);

  uint64_t state_;
};

}  // namespace sluice
