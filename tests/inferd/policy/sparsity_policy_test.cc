// Presets, their overrides by options, and the resulting thresholds.
#include <gtest/gtest.h>

#include <fstream>

#include "common/profile/threshold_tables.h"
#include "inferd/policy/policies.h"
#include "inferd/policy/sparsity.h"
#include "tests/support/temp_dir.h"

namespace sluice::inferd {
namespace {

constexpr char kModelId[] = "0123456789abcdef0123456789abcdef";

// Layers of 2 experts, of none (dense) and of 3, 10 neurons each, top-2, with a shared expert of `shared`.
ModelConfig Model(uint32_t shared = 0) {
  ModelConfig model;
  for (const uint32_t experts : {2, 0, 3}) {
    LayerConfig layer;
    layer.moe.experts = experts;
    layer.moe.top_k = experts == 0 ? 0 : 2;
    layer.moe.expert_width = 10;
    layer.moe.shared_width = shared;
    model.layers.push_back(layer);
  }
  return model;
}

// A profile whose threshold for a target of i half percents is `base` + i; base encodes lead, layer and
// expert.
class SparsityPolicyTest : public testing::Test {
 protected:
  static float Base(Lead lead, uint32_t layer, uint32_t expert) {
    return 10000.0f * static_cast<float>(lead) + 2000.0f * static_cast<float>(layer) +
           500.0f * static_cast<float>(expert);
  }
  void WriteProfile() {
    ThresholdTables tables(kModelId, 1000, RoutedExperts(Model()));
    for (const Lead lead : {Lead::kUp, Lead::kGate, Lead::kProduct}) {
      for (uint32_t i = 0; i < kThresholdPoints; ++i) {
        tables.pooled(lead)[i] = 50000.0f + static_cast<float>(i);
        for (const uint32_t layer : {0, 2}) {
          for (uint32_t expert = 0; expert < Model().layers[layer].moe.experts; ++expert) {
            tables.table(lead, layer, expert)[i] = Base(lead, layer, expert) + static_cast<float>(i);
          }
        }
      }
    }
    std::ofstream file(dir_.File(kThresholdsName), std::ios::binary);
    file << SerializeThresholds(tables);
    ASSERT_TRUE(file.flush().good());
  }
  absl::StatusOr<std::unique_ptr<SparsityPolicy>> Make(const std::string& preset,
                                                       const PolicyOverrides& overrides = {},
                                                       const ModelConfig& model = Model()) {
    const auto policies = PoliciesOf(preset, overrides);
    EXPECT_TRUE(policies.ok()) << policies.status();
    return SparsityPolicy::Create(policies->sparsity, model, dir_.path(), kModelId);
  }
  TempDir dir_;
};

TEST_F(SparsityPolicyTest, ExactLeavesNothingOutAndNeedsNoProfile) {
  const auto policy = Make("exact");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_FALSE((*policy)->enabled());
  EXPECT_TRUE((*policy)->counts().empty());
}

TEST_F(SparsityPolicyTest, FloeTakesEachExpertsOwnThreshold) {
  WriteProfile();
  const auto policy = Make("floe");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ((*policy)->order(), SparsityOrder::kUp);
  EXPECT_EQ((*policy)->threshold(0, 1), Base(Lead::kUp, 0, 1) + 160);
  EXPECT_EQ((*policy)->threshold(2, 2), Base(Lead::kUp, 2, 2) + 160);
  const auto more = Make("floe90");
  ASSERT_TRUE(more.ok());
  EXPECT_EQ((*more)->threshold(2, 0), Base(Lead::kUp, 2, 0) + 180);
}

TEST_F(SparsityPolicyTest, CormHasOneAbsoluteThresholdAndNeedsNoProfile) {
  const auto policy = Make("corm");
  ASSERT_TRUE(policy.ok()) << policy.status();
  EXPECT_EQ((*policy)->order(), SparsityOrder::kGate);
  EXPECT_EQ((*policy)->threshold(0, 0), 0.25f);
  EXPECT_EQ((*policy)->threshold(2, 2), 0.25f);
}

TEST_F(SparsityPolicyTest, IntraRaisesPooledThresholdForSharedExpert) {
  WriteProfile();
  const auto plain = Make("intra");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ((*plain)->threshold(0, 0), 50100.0f);
  EXPECT_EQ((*plain)->threshold(2, 1), 50100.0f);
  // (2 x 10 + 8) / (2 x 10) x 0.5 = 0.7
  const auto shared = Make("intra", {}, Model(8));
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_NEAR((*shared)->threshold(0, 0), 50140.0f, 0.01f);
  // (20 + 24) / 20 x 0.5 > 1
  const auto beyond = Make("intra", {}, Model(24));
  EXPECT_TRUE(absl::IsInvalidArgument(beyond.status())) << beyond.status();
}

// Between the last point and 1 the threshold's share is unknown.
TEST_F(SparsityPolicyTest, TargetBeyondTheTableIsRefusedWithAHint) {
  WriteProfile();
  EXPECT_TRUE(Make("floe", {.sparsity_target = 0.995}).ok());
  const auto beyond = Make("floe", {.sparsity_target = 0.999});
  EXPECT_TRUE(absl::IsInvalidArgument(beyond.status())) << beyond.status();
  for (const char* named : {"0.999", "0.995", "sluice calibrate"}) {
    EXPECT_NE(std::string(beyond.status().message()).find(named), std::string::npos) << beyond.status();
  }
  // (2 x 10 + 8) / (2 x 10) x 0.712 = 0.9968
  const auto shared = Make("intra", {.sparsity_target = 0.712}, Model(8));
  EXPECT_TRUE(absl::IsInvalidArgument(shared.status())) << shared.status();
}

TEST_F(SparsityPolicyTest, MissingProfileNamesTheCommandThatMakesIt) {
  const auto policy = Make("floe");
  EXPECT_TRUE(absl::IsNotFound(policy.status()));
  EXPECT_NE(std::string(policy.status().message()).find("sluice calibrate"), std::string::npos)
      << policy.status();
}

TEST_F(SparsityPolicyTest, ProfileOfAnotherPackIsRefused) {
  WriteProfile();
  const auto policies = PoliciesOf("floe");
  ASSERT_TRUE(policies.ok());
  const auto policy =
      SparsityPolicy::Create(policies->sparsity, Model(), dir_.path(), "ffffffffffffffffffffffffffffffff");
  EXPECT_TRUE(absl::IsFailedPrecondition(policy.status())) << policy.status();
}

TEST_F(SparsityPolicyTest, CountsAddUpByLayer) {
  const auto policy = Make("corm");
  ASSERT_TRUE(policy.ok());
  (*policy)->Count(2, 100, 40);
  (*policy)->Count(2, 10, 10);
  const std::vector<LayerSparsity> counts = (*policy)->counts();
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].neurons, 0u);
  EXPECT_EQ(counts[2].neurons, 110u);
  EXPECT_EQ(counts[2].kept, 50u);
}

TEST(PresetTest, OptionsChangeOneValueAtATime) {
  const auto target = PoliciesOf("floe", {.sparsity_target = 0.6});
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->sparsity.order, SparsityOrder::kUp);
  EXPECT_EQ(target->sparsity.target, 0.6);
  const auto absolute = PoliciesOf("floe", {.sparsity_threshold = 1.5});
  ASSERT_TRUE(absolute.ok());
  EXPECT_EQ(absolute->sparsity.threshold, 1.5);
  EXPECT_FALSE(absolute->sparsity.target.has_value());
  const auto order = PoliciesOf("corm", {.sparsity = "product", .sparsity_target = 0.5});
  ASSERT_TRUE(order.ok());
  EXPECT_EQ(order->sparsity.order, SparsityOrder::kProduct);
  EXPECT_FALSE(order->sparsity.threshold.has_value());
  const auto off = PoliciesOf("floe", {.sparsity = "none"});
  ASSERT_TRUE(off.ok());
  EXPECT_EQ(off->sparsity.order, SparsityOrder::kNone);
}

TEST(PresetTest, ContradictionsAreRefusedNamingTheOption) {
  const struct {
    const char* preset;
    PolicyOverrides overrides;
    const char* named;
  } cases[] = {
      {"fast", {}, "unknown preset"},
      {"exact", {.sparsity = "down"}, "--sparsity"},
      {"exact", {.sparsity = "up"}, "--sparsity-target"},
      {"exact", {.sparsity_target = 0.5}, "--sparsity up"},
      {"floe", {.sparsity_target = 1.0}, "--sparsity-target"},
      {"floe", {.sparsity_target = 0.5, .sparsity_threshold = 1}, "exclude"},
      {"floe", {.sparsity_scope = "layer"}, "--sparsity-scope"},
  };
  for (const auto& c : cases) {
    const auto policies = PoliciesOf(c.preset, c.overrides);
    EXPECT_TRUE(absl::IsInvalidArgument(policies.status())) << c.named;
    EXPECT_NE(std::string(policies.status().message()).find(c.named), std::string::npos) << policies.status();
  }
}

TEST(PresetTest, EveryPresetIsListedAndDescribed) {
  EXPECT_EQ(PresetNames().front(), "exact");
  for (const std::string& name : PresetNames()) {
    const auto policies = UncheckedPolicies(name, {}, DeviceKind::kSim);
    ASSERT_TRUE(policies.ok()) << name;
    const std::vector<PolicyWord> words = Describe(*policies);
    EXPECT_EQ(words[0].name, "bits");
    EXPECT_EQ(words.size(), PolicyKeys().size() + 1);
    EXPECT_EQ(KeepsModelTokens(*policies), name == "exact" || name == "auto" || name == "layerwise" ||
                                               name == "ondemand" || name == "lru_prefetch" ||
                                               name == "static_hot" || name == "resident")
        << name;
  }
}

TEST(PresetTest, EveryKeyShowsTheValueItWasSetTo) {
  for (const PolicyKey& key : PolicyKeys()) {
    Policies policies;
    const std::string values = key.values;
    const bool words = values.find(',') != std::string::npos;
    const std::string value = words ? values.substr(values.rfind(' ') + 1)
                                    : (values == "1 to 3" || values.rfind("1 to", 0) == 0 ? "3" : "0.5");
    const std::string whole = std::string(key.name) == "max_prefetch" ? "3" : value;
    ASSERT_TRUE(SetPolicy(std::string(key.name) + "=" + whole, &policies).ok()) << key.name;
    EXPECT_EQ(key.show(policies), whole) << key.name;
    const absl::Status bad = SetPolicy(std::string(key.name) + "=-1", &policies);
    EXPECT_TRUE(absl::IsInvalidArgument(bad)) << key.name;
    EXPECT_NE(std::string(bad.message()).find(key.name), std::string::npos) << bad;
    EXPECT_EQ(key.show(policies), whole) << key.name;
  }
  Policies policies;
  EXPECT_TRUE(absl::IsInvalidArgument(SetPolicy("colour=red", &policies)));
  EXPECT_TRUE(absl::IsInvalidArgument(SetPolicy("routing", &policies)));
}

TEST(PresetTest, ARemovedKeyNamesItsVersionAndReplacement) {
  Policies policies;
  for (const RemovedName& removed : kRemovedPolicyKeys) {
    const absl::Status status = SetPolicy(absl::StrCat(removed.name, "=1"), &policies);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << removed.name;
    EXPECT_EQ(status.message(), absl::StrCat("--policy ", removed.name, " was removed in ", removed.version,
                                             ": ", removed.instead));
    for (const PolicyKey& key : PolicyKeys()) EXPECT_STRNE(key.name, removed.name);
  }
}

TEST(PresetTest, PrefetchRulesFollowFromThePredictor) {
  const auto rules = [](const char* preset, const char* policy) {
    const Policies p = *PoliciesOf(preset, {.policy = {policy}}, DeviceKind::kSim);
    return std::pair(FetchesInReach(p), CancelsBegunPrefetches(p));
  };
  EXPECT_EQ(rules("exact", "max_prefetch=16"), std::pair(false, false));
  EXPECT_EQ(rules("adapmoe", "max_prefetch=16"), std::pair(false, true));
  EXPECT_EQ(rules("importance", "max_prefetch=1"), std::pair(true, true));
  EXPECT_EQ(rules("importance", "predictor_depth=1"), std::pair(false, true));
  EXPECT_EQ(rules("exact", "expert_miss=balance,predictor_depth=2"), std::pair(true, true));
}

TEST(PresetTest, PoliciesAreSetOneByOneAfterTheOtherOptions) {
  const auto policies = PoliciesOf(
      "floe", {.sparsity_target = 0.6, .policy = {"sparsity_threshold=2,max_prefetch=5", "max_prefetch=6"}});
  ASSERT_TRUE(policies.ok()) << policies.status();
  EXPECT_EQ(policies->sparsity.threshold, 2.0);
  EXPECT_FALSE(policies->sparsity.target.has_value());
  EXPECT_EQ(policies->max_prefetch, 6u);
}

TEST(PresetTest, SlotPoliciesAreRefusedOnHost) {
  for (const char* policy : {"cache=slots", "cache_eviction=score", "cache_allocation=dp_timed",
                             "expert_miss=balance", "neuron_miss=proceed"}) {
    const auto policies = PoliciesOf("exact", {.policy = {policy}});
    EXPECT_TRUE(absl::IsInvalidArgument(policies.status())) << policy;
    EXPECT_NE(std::string(policies.status().message()).find(policy), std::string::npos) << policies.status();
  }
  for (const char* preset : {"layerwise", "ondemand", "lru_prefetch", "static_hot"}) {
    const auto policies = PoliciesOf(preset);
    EXPECT_TRUE(absl::IsInvalidArgument(policies.status())) << preset;
    EXPECT_NE(std::string(policies.status().message()).find(preset), std::string::npos) << policies.status();
  }
}

TEST(PresetTest, ProceedingNeedsSomethingPredicted) {
  EXPECT_TRUE(PoliciesOf("exact", {.policy = {"expert_miss=proceed"}}, DeviceKind::kSim).ok());
  const auto policies =
      PoliciesOf("exact", {.policy = {"expert_miss=proceed,expert_predictor=none"}}, DeviceKind::kSim);
  EXPECT_TRUE(absl::IsInvalidArgument(policies.status())) << policies.status();
}

TEST(PresetTest, ValuesThatContradictEachOtherAreRefusedByName) {
  for (const char* policy : {"cache=lease", "cache_granularity=neuron", "neuron_predictor=up_reuse",
                             "neuron_miss=proceed", "lead_resident=on"}) {
    const auto policies = PoliciesOf("exact", {.policy = {policy}}, DeviceKind::kSim);
    EXPECT_TRUE(absl::IsInvalidArgument(policies.status())) << policy;
    EXPECT_NE(std::string(policies.status().message()).find(policy), std::string::npos) << policies.status();
  }
}

TEST(PresetTest, ResidencyDependentPoliciesPromiseNothing) {
  for (const char* name : {"exact", "adapmoe", "intra", "floe"}) {
    const auto policies = UncheckedPolicies(name, {}, DeviceKind::kHost);
    ASSERT_TRUE(policies.ok());
    for (const PolicyPromise& promise : Promises(*policies)) EXPECT_TRUE(promise.kept) << name;
  }
  for (const char* name : {"importance", "corm", "floe"}) {
    const auto policies = UncheckedPolicies(name, {}, DeviceKind::kSim);
    ASSERT_TRUE(policies.ok());
    for (const PolicyPromise& promise : Promises(*policies)) EXPECT_FALSE(promise.kept) << name;
  }
}

}  // namespace
}  // namespace sluice::inferd
