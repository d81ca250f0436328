// Feeds mutations of good inputs to a fuzz target.
//
// Thread safety: free functions, used by one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/mutator.h"

namespace sluice {

// Returns the number of mutations of one kind: `in_ci`, or 10^5 with SLUICE_STRESS=full.
inline int MutationsOr(int in_ci) {
  const char* stress = std::getenv("SLUICE_STRESS");
  return stress != nullptr && std::string(stress) == "full" ? std::max(in_ci, 100'000) : in_ci;
}

inline bool Feed(decltype(FuzzTarget::run) target, const std::string& input) {
  return target(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// Mutates `seeds` in turn; every seed itself must be accepted, and some mutants refused.
inline void Mutate(decltype(FuzzTarget::run) target, const std::vector<std::string>& seeds, int cases,
                   uint64_t seed) {
  for (const std::string& input : seeds) ASSERT_TRUE(Feed(target, input)) << input.substr(0, 2000);
  Mutator mutator(seed);
  int accepted = 0;
  for (int i = 0; i < cases; ++i) accepted += Feed(target, mutator.Mutate(seeds[i % seeds.size()])) ? 1 : 0;
  EXPECT_LT(accepted, cases);
  ::testing::Test::RecordProperty("accepted", accepted);
}

}  // namespace sluice
