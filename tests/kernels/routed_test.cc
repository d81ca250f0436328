// Tests that RoutedExperts and RoutedLeads, whose experts are known on the device only, are bit-equal to
// MoeExperts and ExpertLeads with the same choice.
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "pack/row_layout.h"
#include "tests/kernels/expert_testing.h"

namespace sluice {
namespace {

constexpr uint32_t kTokens = 5;
constexpr uint32_t kHidden = 96;
constexpr uint32_t kWidth = 130;
constexpr uint32_t kRanks = 3;
constexpr uint32_t kExperts = 4;

// Token t goes to experts t, t + 1 and t + 2 of four; the middle rank of the third is left out.
class RoutedTest : public testing::TestWithParam<BackendCase> {
 protected:
  RoutedTest() : bench_(GetParam()), random_(17) {
    const EncodingDescriptor bf16 = MakeDescriptor(Encoding::kBf16);
    const EncodingDescriptor q4 = MakeDescriptor(Encoding::kQ4, 16);
    x_ = random_.Normals(kTokens * kHidden);
    rows_of_ = slots_of_ = std::vector<std::vector<uint32_t>>(kExperts);
    for (uint32_t pair = 0; pair < kTokens * kRanks; ++pair) {
      ids_.push_back(static_cast<int32_t>((pair / kRanks + pair % kRanks) % kExperts));
      weights_.push_back(pair == 2 * kRanks + 1 ? 0.0f : 0.25f);
      if (weights_.back() != 0) {
        rows_of_[ids_.back()].push_back(pair / kRanks);
        slots_of_[ids_.back()].push_back(pair);
      }
    }
    for (uint32_t e = 0; e < kExperts; ++e) {
      const Parts parts = e % 2 == 0 ? Parts{bf16, bf16, bf16} : Parts{q4, q4, q4};
      experts_.push_back(MakeExpert(random_, parts, kWidth, kHidden, /*biases=*/e == 3));
      work_.push_back(PutExpert(bench_, experts_.back()));
      work_.back().sparsity = SparsityOrder::kUp;
      work_.back().threshold = 0.2f;
    }
    in_ = bench_.PutRows(x_, kHidden);
    ids_ref_ = bench_.NewWords(ids_.size());
    EXPECT_TRUE(bench_.queue().Upload(ids_.data(), ids_.size() * 4, ids_ref_).ok());
    weights_ref_ = bench_.PutWritable(weights_);
  }

  RoutedExpertsArgs Args() {
    return {.x = in_,
            .tokens = kTokens,
            .hidden = kHidden,
            .ids = ids_ref_,
            .weights = weights_ref_,
            .ranks = kRanks,
            .experts = work_,
            .y = bench_.NewRows(kTokens * kRanks, kHidden),
            .active = bench_.NewWords(kTokens * kRanks)};
  }

  OpBench bench_;
  Random random_;
  std::vector<float> x_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  std::vector<std::vector<uint32_t>> rows_of_, slots_of_;
  std::vector<Expert> experts_;
  std::vector<ExpertWork> work_;
  Rows in_;
  BufferRef ids_ref_;
  BufferRef weights_ref_;
};
INSTANTIATE_TEST_SUITE_P(Backends, RoutedTest, testing::ValuesIn(BackendsAndDelayed()), CaseName);

TEST_P(RoutedTest, ExpertsAreThoseThatTheIdsName) {
  const RoutedExpertsArgs routed = Args();
  ASSERT_TRUE(bench_.queue().RoutedExperts(routed).ok()) << bench_.queue().RoutedExperts(routed);
  std::vector<ExpertWork> work = work_;
  for (uint32_t e = 0; e < kExperts; ++e) {
    work[e].rows = rows_of_[e];
    work[e].slots = slots_of_[e];
  }
  const MoeExpertsArgs named = {.x = in_,
                                .tokens = kTokens,
                                .hidden = kHidden,
                                .experts = work,
                                .y = bench_.NewRows(kTokens * kRanks, kHidden),
                                .slots = kTokens * kRanks,
                                .active = bench_.NewWords(kTokens * kRanks)};
  ASSERT_TRUE(bench_.queue().MoeExperts(named).ok());
  EXPECT_TRUE(BitEqual(bench_.GetRows(routed.y, kTokens * kRanks, kHidden),
                       bench_.GetRows(named.y, kTokens * kRanks, kHidden)));
  EXPECT_EQ(bench_.Ints(routed.active, kTokens * kRanks), bench_.Ints(named.active, kTokens * kRanks));
}

// A device may keep what it made of a numbered list: it must tell apart numbers, and calls whose rows are
// prepared in another way.
TEST_P(RoutedTest, NumberedListsComputeTheSame) {
  const std::vector<ExpertWork> turned(work_.rbegin(), work_.rend());
  const auto run = [&](const std::vector<ExpertWork>& experts, uint64_t number, uint32_t tokens) {
    RoutedExpertsArgs args = Args();
    args.tokens = tokens;
    args.experts = experts;
    args.experts_number = number;
    EXPECT_TRUE(bench_.queue().BeginGraph().ok());
    const absl::Status status = bench_.queue().RoutedExperts(args);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(bench_.queue().EndGraph().ok());
    return bench_.GetRows(args.y, tokens * kRanks, kHidden);
  };
  for (const uint32_t tokens : {kTokens, 1u}) {
    EXPECT_FALSE(BitEqual(run(work_, 0, tokens), run(turned, 0, tokens)));
  }
  for (const uint32_t tokens : {kTokens, kTokens, 1u, 1u, kTokens}) {
    EXPECT_TRUE(BitEqual(run(work_, 1, tokens), run(work_, 0, tokens))) << tokens;
    EXPECT_TRUE(BitEqual(run(work_, 1, tokens), run(work_, 0, tokens))) << tokens;
    EXPECT_TRUE(BitEqual(run(turned, 2, tokens), run(turned, 0, tokens))) << tokens;
    EXPECT_TRUE(BitEqual(run(work_, 1, tokens), run(work_, 0, tokens))) << tokens;
  }
}

TEST_P(RoutedTest, LeadsAreThoseThatTheIdsName) {
  std::vector<LeadWork> leads;
  for (const ExpertWork& work : work_) {
    leads.push_back({.lead = work.up, .bias = work.up_bias, .threshold = work.threshold});
  }
  const uint32_t words = (kWidth + 63) / 64;
  const RoutedLeadsArgs routed = {.x = in_,
                                  .tokens = kTokens,
                                  .hidden = kHidden,
                                  .ids = ids_ref_,
                                  .weights = weights_ref_,
                                  .ranks = kRanks,
                                  .top_k = kRanks - 1,
                                  .experts = leads,
                                  .values = bench_.NewRows(kTokens * kRanks, kWidth),
                                  .active = bench_.NewWords(kTokens * kRanks * words * 2)};
  ASSERT_TRUE(bench_.queue().RoutedLeads(routed).ok()) << bench_.queue().RoutedLeads(routed);
  const std::vector<float> values = bench_.GetRows(routed.values, kTokens * kRanks, kWidth);
  const std::vector<int32_t> active = bench_.Ints(routed.active, kTokens * kRanks * words * 2);
  for (uint32_t pair = 0; pair < kTokens * kRanks; ++pair) {
    const std::vector<float> got(values.begin() + pair * kWidth, values.begin() + (pair + 1) * kWidth);
    if (pair % kRanks == kRanks - 1 || weights_[pair] == 0) {
      EXPECT_EQ(got[0], kUntouched) << "the last rank is no routed one, and one is left out";
      continue;
    }
    const uint32_t row = pair / kRanks;
    LeadWork one = leads[ids_[pair]];
    one.rows = {&row, 1};
    one.values = bench_.NewRows(1, kWidth);
    one.active = bench_.NewWords(words * 2);
    ASSERT_TRUE(bench_.queue()
                    .ExpertLeads({.x = in_, .tokens = kTokens, .hidden = kHidden, .experts = {&one, 1}})
                    .ok());
    EXPECT_TRUE(BitEqual(got, bench_.GetRows(one.values, 1, kWidth))) << pair;
    const std::vector<int32_t> mask(active.begin() + pair * words * 2,
                                    active.begin() + (pair + 1) * words * 2);
    EXPECT_EQ(mask, bench_.Ints(one.active, words * 2)) << pair;
  }
}

TEST_P(RoutedTest, PartsOfExpertsAreRefused) {
  work_[1].neuron_begin = 64;
  const RoutedExpertsArgs routed = Args();
  const absl::Status status = bench_.queue().RoutedExperts(routed);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

}  // namespace
}  // namespace sluice
