// NgramHash: the rows of a table that hashes of a token and the tokens before it name (NgramConfig; PLE of
// Qwen3.8's modelling class in transformers).
//
// A token names `heads` rows for each n-gram of 2..size tokens that ends at it. An n-gram's hash is the
// exclusive or of its tokens, each times a factor of its place; each head takes it modulo a prime of its own
// and has a part of the table of that many rows. Tokens before the text, and those behind an end token on the
// way back, count as end tokens.
//
// Thread safety: constant after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_config.h"

namespace sluice {

class NgramHash {
 public:
  // REQUIRES: a configuration that ValidateModelConfig accepts.
  NgramHash(const NgramConfig& ngrams, uint32_t vocab);

  // Writes the row of each head. `back`: the token and those before it, nearest first; fewer than `size`
  // where the text begins.
  void FindRows(absl::Span<const int32_t> back, absl::Span<uint64_t> rows) const;

  // Rows of all heads' parts, the least that a table has.
  uint64_t rows() const { return offsets_.back() + primes_.back(); }

  const std::vector<int64_t>& factors() const { return factors_; }   // by place, from the token back
  const std::vector<uint64_t>& primes() const { return primes_; }    // by head, those of pairs first
  const std::vector<uint64_t>& offsets() const { return offsets_; }  // by head: first row of its part

 private:
  NgramConfig ngrams_;
  std::vector<int64_t> factors_;
  std::vector<uint64_t> primes_;
  std::vector<uint64_t> offsets_;
};

}  // namespace sluice
