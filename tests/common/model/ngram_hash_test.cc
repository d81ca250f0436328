#include "common/model/ngram_hash.h"

#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// Those of a tiny checkpoint that transformers 5.24 wrote, which stores factors, moduli and offsets.
NgramConfig Config(uint32_t layer) {
  return {.size = 3,
          .heads = 2,
          .width = 8,
          .rows = 480,
          .base = 97,
          .layer = layer,
          .seed = 1234,
          .end = 2,
          .kernel = 4};
}
constexpr uint32_t kHashVocab = 512;

TEST(NgramHash, NumbersAreThoseOfTransformers) {
  const NgramHash first(Config(0), kHashVocab);
  EXPECT_EQ(first.factors(), (std::vector<int64_t>{4295158889763781, 17440218147737327, 1270917961434445}));
  EXPECT_EQ(first.primes(), (std::vector<uint64_t>{97, 101, 103, 107}));
  EXPECT_EQ(first.offsets(), (std::vector<uint64_t>{0, 97, 198, 301}));
  EXPECT_EQ(first.rows(), 408u);
  const NgramHash second(Config(1), kHashVocab);
  EXPECT_EQ(second.factors(), (std::vector<int64_t>{17237745666423273, 2619768721783435, 15090836525362811}));
  EXPECT_EQ(second.primes(), (std::vector<uint64_t>{109, 113, 127, 131}));
  EXPECT_EQ(second.offsets(), (std::vector<uint64_t>{0, 109, 222, 349}));
}

std::vector<uint64_t> RowsOf(const std::vector<int32_t>& back) {
  std::vector<uint64_t> rows(4);
  NgramHash(Config(0), kHashVocab).FindRows(back, absl::MakeSpan(rows));
  return rows;
}

TEST(NgramHash, RowsAreHashesModuloThePrimes) {
  const uint64_t pair = uint64_t{7} * 4295158889763781 ^ uint64_t { 300 } * 17440218147737327;
  const uint64_t triple = pair ^ uint64_t { 11 } * 1270917961434445;
  EXPECT_EQ(RowsOf({7, 300, 11}),
            (std::vector<uint64_t>{pair % 97, 97 + pair % 101, 198 + triple % 103, 301 + triple % 107}));
}

TEST(NgramHash, NothingIsSeenBehindAnEndToken) {
  EXPECT_EQ(RowsOf({7, 2, 11}), RowsOf({7, 2, 2}));
  EXPECT_EQ(RowsOf({7, 300, 2}), RowsOf({7, 300}));
  EXPECT_EQ(RowsOf({7}), RowsOf({7, 2, 2}));
  // An end token itself sees those before it.
  EXPECT_NE(RowsOf({2, 300, 11}), RowsOf({2, 2, 2}));
}

}  // namespace
}  // namespace sluice
