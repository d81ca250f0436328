#include "weightd/store/memory_budget.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice::weightd {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

TEST(MemoryBudgetTest, RefusalShowsTheFourNumbers) {
  const MemoryFacts facts{10 * kGiB, 5 * kGiB, kGiB};
  const absl::Status status = CheckBudget(6 * kGiB, facts);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t number : {6 * kGiB, 10 * kGiB, 5 * kGiB, kGiB}) {
    EXPECT_NE(status.ToString().find(std::to_string(number)), std::string::npos) << status;
  }
}

TEST(MemoryBudgetTest, WaitsForADyingPredecessorUntilTheTimeout) {
  int reads = 0;
  int waited = 0;
  const auto pause = [&waited](int ms) { waited += ms; };
  const auto frees_later = [&reads]() -> absl::StatusOr<MemoryFacts> {
    return MemoryFacts{++reads < 4 ? kGiB : 8 * kGiB};
  };
  EXPECT_TRUE(WaitForBudget(4 * kGiB, 10'000, frees_later, pause).ok());
  EXPECT_EQ(reads, 4);
  EXPECT_LT(waited, 1000);
  waited = 0;
  const auto never = []() -> absl::StatusOr<MemoryFacts> { return MemoryFacts{kGiB}; };
  EXPECT_EQ(WaitForBudget(4 * kGiB, 10'000, never, pause).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(waited, 10'000);
}

TEST(MemoryBudgetTest, DefaultHoldsAllButLeavesTheMachineAShare) {
  const WeightSizes sizes{.all = 9 * kGiB, .dense = kGiB, .largest_expert = kGiB / 4};
  EXPECT_EQ(MinDramBudget(sizes, 4), 3 * kGiB) << "two experts a thread";
  EXPECT_EQ(DefaultDramBudget(sizes, 4, 100 * kGiB), 9 * kGiB);
  EXPECT_EQ(DefaultDramBudget(sizes, 4, 10 * kGiB), 7 * kGiB) << "70 %";
  EXPECT_EQ(DefaultDramBudget(sizes, 32, 100 * kGiB), 17 * kGiB) << "the minimum is more than all weights";
}

}  // namespace
}  // namespace sluice::weightd
