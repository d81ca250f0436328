// Preset `auto`: its choices, on tables of inputs.
#include "inferd/policy/auto_preset.h"

#include <cmath>
#include <random>
#include <string>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

// 100 experts of a megabyte, half of them on the device; two a token. Loading takes three times computing.
AutoFacts Facts() {
  AutoFacts facts;
  facts.device = DeviceKind::kSim;
  facts.budget = 50u << 20;
  facts.all_expert_bytes = 100u << 20;
  facts.top_k = 2;
  facts.load_seconds = 15e-3;
  facts.compute_seconds = 5e-3;
  facts.cpu_seconds = 20e-3;
  facts.attention_seconds = 0.3e-3;
  return facts;
}

bool Says(const AutoChoice& choice, const std::string& words) {
  return absl::StrJoin(choice.reasons, "; ").find(words) != std::string::npos;
}

TEST(AutoPresetTest, EverythingStaysResidentIfItFits) {
  for (const uint64_t budget : {uint64_t{0}, uint64_t{100} << 20, uint64_t{1} << 40}) {
    AutoFacts facts = Facts();
    facts.budget = budget;
    const AutoChoice choice = ChoosePolicies(facts);
    EXPECT_EQ(choice.policies.cache, CacheKind::kResident) << budget;
    EXPECT_EQ(choice.policies.predictor, ExpertPredictorKind::kNone);
  }
}

TEST(AutoPresetTest, HostUsesExpertsInPlace) {
  AutoFacts facts = Facts();
  facts.device = DeviceKind::kHost;
  const AutoChoice choice = ChoosePolicies(facts);
  EXPECT_EQ(choice.policies.cache, CacheKind::kLease);
  EXPECT_TRUE(CheckPolicies(choice.policies, DeviceKind::kHost).ok());
}

TEST(AutoPresetTest, PredictionReachesAsFarAsALoadTakes) {
  const struct {
    double load_ms;
    ExpertPredictorKind predictor;
    uint32_t depth;
    const char* words;
  } rows[] = {
      {0.1, ExpertPredictorKind::kNone, 1, "no prediction"},   // .1 of 10.3 ms a layer
      {8, ExpertPredictorKind::kGateReuse, 1, "depth 1"},      // 8 < 10.3: one layer hides it
      {10.2, ExpertPredictorKind::kGateReuse, 1, "depth 1"},   //
      {30, ExpertPredictorKind::kGateReuse, 1, "the bound"},   // one miss a layer: 30 > 10.3
      {150, ExpertPredictorKind::kGateReuse, 1, "the bound"},  //
  };
  for (const auto& row : rows) {
    AutoFacts facts = Facts();
    facts.load_seconds = row.load_ms * 1e-3;
    facts.cpu_seconds = 1;  // misses are loaded
    const AutoChoice choice = ChoosePolicies(facts);
    EXPECT_EQ(choice.policies.predictor, row.predictor) << row.load_ms;
    EXPECT_EQ(choice.policies.predictor_depth, row.depth) << row.load_ms;
    EXPECT_TRUE(Says(choice, row.words)) << row.load_ms << ": " << absl::StrJoin(choice.reasons, "; ");
  }
  AutoFacts facts = Facts();
  facts.budget = 90u << 20;  // a fifth of a miss a layer: 5 of 10.3 ms
  facts.load_seconds = 25e-3;
  EXPECT_EQ(ChoosePolicies(facts).policies.predictor_depth, 3u);
}

TEST(AutoPresetTest, CpuIsUsedIfFasterWithEqualRounding) {
  AutoFacts facts = Facts();
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kLoad);
  facts.cpu_seconds = 5e-3;
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kBalance);
  facts.device = DeviceKind::kCuda;
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kLoad);
  EXPECT_TRUE(Says(ChoosePolicies(facts), "rounds"));
  facts.quality_bound = 0.01;
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kBalance);
}

TEST(AutoPresetTest, ParallelCpuHelpsBehindAFastLinkToo) {
  AutoFacts facts = Facts();  // the device computes a layer's two experts in 10 ms
  facts.load_seconds = 1.5e-3;
  facts.cpu_seconds = 5e-3;
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kLoad) << "the CPU is the device";
  facts.cpu_parallel = true;
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kBalance);
  EXPECT_TRUE(KeepsModelTokens(ChoosePolicies(facts).policies));
  facts.cpu_seconds = 11e-3;
  EXPECT_EQ(ChoosePolicies(facts).policies.miss, ExpertMiss::kLoad) << "the device ends before it";
}

TEST(AutoPresetTest, WithCpuOnlyTimelyExpertsArePrefetched) {
  AutoFacts facts = Facts();
  facts.cpu_seconds = 5e-3;
  facts.cache_profile = true;
  AutoChoice choice = ChoosePolicies(facts);
  EXPECT_EQ(choice.policies.predictor, ExpertPredictorKind::kGateReuse);
  EXPECT_TRUE(FetchesInReach(choice.policies));
  EXPECT_EQ(choice.policies.predictor_depth, 3u);
  EXPECT_EQ(choice.policies.max_prefetch, 1u);
  EXPECT_EQ(choice.policies.allocation, CacheAllocation::kUniform);
  EXPECT_TRUE(Says(choice, "comes in time"));
  facts.look_ahead = true;
  EXPECT_EQ(ChoosePolicies(facts).policies.predictor, ExpertPredictorKind::kLookahead);
  EXPECT_TRUE(CheckPolicies(ChoosePolicies(facts).policies, DeviceKind::kSim).ok());
  AutoFacts quarter = facts;  // one and a half of a layer's two experts are missing
  quarter.budget = facts.all_expert_bytes / 4;
  choice = ChoosePolicies(quarter);
  EXPECT_EQ(choice.policies.predictor, ExpertPredictorKind::kNone);
  EXPECT_TRUE(Says(choice, "no prediction after all: 1.5 experts"));
  facts.load_seconds = 1e-3;  // loaded, then: nothing waits for the CPU
  choice = ChoosePolicies(facts);
  EXPECT_EQ(choice.policies.predictor, ExpertPredictorKind::kGateReuse);
  EXPECT_FALSE(FetchesInReach(choice.policies));
}

TEST(AutoPresetTest, SlotsFollowTheProfile) {
  AutoFacts facts = Facts();
  EXPECT_EQ(ChoosePolicies(facts).policies.allocation, CacheAllocation::kUniform);
  facts.cache_profile = true;
  EXPECT_EQ(ChoosePolicies(facts).policies.allocation, CacheAllocation::kDpTimed);
}

TEST(AutoPresetTest, QualityBoundIsSpentOnTheBottleneck) {
  AutoFacts facts = Facts();
  facts.single_share = 0.4;
  facts.sparsity = 0.3;
  EXPECT_TRUE(Says(ChoosePolicies(facts), "nothing is left out"));
  facts.quality_bound = 0.01;
  const AutoChoice by_link = ChoosePolicies(facts);
  EXPECT_EQ(by_link.policies.routing, RoutingKind::kSensitivity);
  EXPECT_EQ(by_link.policies.sensitivity.share, facts.single_share);
  EXPECT_EQ(by_link.policies.sparsity.order, SparsityOrder::kNone);
  facts.load_seconds = 1e-3;
  const AutoChoice by_compute = ChoosePolicies(facts);
  EXPECT_EQ(by_compute.policies.routing, RoutingKind::kTopK);
  EXPECT_EQ(by_compute.policies.sparsity.order, SparsityOrder::kGate);
  EXPECT_EQ(by_compute.policies.sparsity.target, 0.3);
  facts.sparsity = 0;
  EXPECT_TRUE(KeepsModelTokens(ChoosePolicies(facts).policies)) << "no profile, no loss";
}

TEST(AutoPresetTest, WithoutABoundNoTokenChangesWhateverTheMachine) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-6, 1);
  for (int draw = 0; draw < 500; ++draw) {
    AutoFacts facts = Facts();
    facts.device = draw % 2 == 0 ? DeviceKind::kSim : DeviceKind::kHost;
    facts.budget = random() % (120u << 20);
    facts.load_seconds = std::pow(10, exponent(random));
    facts.compute_seconds = std::pow(10, exponent(random));
    facts.cpu_seconds = std::pow(10, exponent(random));
    facts.single_share = 0.5;
    facts.sparsity = 0.5;
    facts.cache_profile = random() % 2 == 0;
    facts.look_ahead = random() % 2 == 0;
    const AutoChoice choice = ChoosePolicies(facts);
    EXPECT_TRUE(KeepsModelTokens(choice.policies)) << draw;
    EXPECT_TRUE(CheckPolicies(choice.policies, facts.device).ok()) << draw;
    for (const PolicyPromise& promise : Promises(choice.policies)) EXPECT_TRUE(promise.kept) << promise.what;
    EXPECT_FALSE(choice.reasons.empty());
  }
}

}  // namespace
}  // namespace sluice::inferd
