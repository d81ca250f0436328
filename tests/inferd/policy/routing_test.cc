// Routing policies on a backend: logits in, experts and weights out.
#include "inferd/policy/routing.h"

#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "common/profile/profile.h"
#include "common/profile/profile_file.h"
#include "gtest/gtest.h"
#include "inferd/policy/miss_routing.h"
#include "kernels/reference/reference_backend.h"
#include "tests/support/temp_dir.h"

namespace sluice::inferd {
namespace {

class SetView final : public ResidencyView {
 public:
  explicit SetView(std::set<uint32_t> resident) : resident_(std::move(resident)) {}
  bool IsResident(uint32_t, uint32_t expert) const override { return resident_.count(expert) > 0; }
  bool AllResident(uint32_t) const override { return false; }

 private:
  const std::set<uint32_t> resident_;
};

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

class RoutingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BackendLimits limits;
    limits.max_tokens = 8;
    limits.max_context = 8;
    limits.experts = 8;
    limits.top_k = 4;
    backend_ = std::make_unique<ReferenceBackend>(limits);
  }

  // p by token: logits are their logarithms. `prompt` rows stand before the decoded ones.
  Chosen Route(RoutingPolicy* policy, const std::vector<std::vector<float>>& p, RouterArgs args,
               const std::set<uint32_t>& resident = {}, uint32_t prompt = 0) {
    const uint32_t experts = static_cast<uint32_t>(p[0].size());
    const uint32_t ranks = args.top_k + (args.shared ? 1 : 0);
    args.tokens = static_cast<uint32_t>(p.size());
    args.experts = experts;
    args.logits = {{*backend_->Allocate(p.size() * experts * 4, BufferKind::kActivations), 0}, experts};
    args.ids = {*backend_->Allocate(p.size() * ranks * 4, BufferKind::kStaging), 0};
    args.weights = {*backend_->Allocate(p.size() * ranks * 4, BufferKind::kStaging), 0};
    std::vector<float> logits;
    for (const auto& row : p) {
      for (const float value : row) logits.push_back(std::log(value));
    }
    EXPECT_TRUE(backend_->queue().Upload(logits.data(), logits.size() * 4, args.logits.base).ok());
    StepBatch batch(8, 1);
    batch.Clear(1);
    batch.Add(std::vector<int32_t>(p.size(), 1), {.decode_from = prompt});
    const SetView view(resident);
    const RoutingInput input{0, args, &view, &batch};
    const absl::Status status = policy->Choose(input, &backend_->queue());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(backend_->queue().Wait(backend_->queue().Record()).ok());
    EXPECT_TRUE(policy->Decide(input, &backend_->queue()).ok());
    const size_t count = p.size() * ranks;
    const auto* ids = reinterpret_cast<const int32_t*>(backend_->HostRead(args.ids, count * 4));
    const auto* weights = reinterpret_cast<const float*>(backend_->HostRead(args.weights, count * 4));
    return {{ids, ids + count}, {weights, weights + count}};
  }

  std::unique_ptr<Backend> backend_;
};

RouterArgs Args(uint32_t top_k, bool norm = true, bool shared = false) {
  RouterArgs args;
  args.top_k = top_k;
  args.norm_topk_prob = norm;
  args.shared = shared;
  return args;
}

void ExpectNear(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-5) << i;
}

TEST_F(RoutingTest, SingleExpertTakesAllWeight) {
  SensitivityRouting policy({2.0}, .1, backend_.get());
  // alphas .8 and .75: 2 * .04 = .08 <= .1 < 2 * .0625.
  const Chosen chosen = Route(&policy, {{.64f, .16f, .12f, .08f}, {.6f, .2f, .1f, .1f}}, Args(2));
  EXPECT_EQ(chosen.ids[0], 0);
  ExpectNear(chosen.weights, {1, 0, .75f, .25f});
  SensitivityRouting lenient({2.0}, .13, backend_.get());
  const Chosen single = Route(&lenient, {{.6f, .2f, .1f, .1f}}, Args(2));
  ExpectNear(single.weights, {1, 0});
  EXPECT_EQ(lenient.counters().single, 1u);
  EXPECT_EQ(lenient.counters().dropped, 1u);
}

TEST_F(RoutingTest, SumOfWeightsIsKeptAndSharedExpertsStay) {
  SensitivityRouting policy({1.0}, .13, backend_.get());
  const Chosen chosen = Route(&policy, {{.4f, .3f, .2f, .1f}}, Args(3, /*norm=*/false, /*shared=*/true));
  // Rests of .9: .5 / .9 (square .31), .2 / .9 (.049): two stay, with .9 between them.
  ExpectNear(chosen.weights, {.9f * 4 / 7, .9f * 3 / 7, 0, 1});
  EXPECT_EQ(chosen.ids[3], 4) << "the shared expert";
}

TEST_F(RoutingTest, PromptRowsKeepTheModelsChoice) {
  SensitivityRouting policy({0.0}, 1, backend_.get());
  const std::vector<float> p = {.6f, .2f, .1f, .1f};
  const Chosen chosen = Route(&policy, {p, p}, Args(2), {}, /*prompt=*/1);
  ExpectNear(chosen.weights, {.75f, .25f, 1, 0});
  CacheAwareRouting exchange(1, 1, 8, 8, 4, backend_.get());
  const Chosen cached = Route(&exchange, {{.4f, .22f, .2f, .18f}}, Args(2), {3}, /*prompt=*/1);
  EXPECT_EQ(cached.ids, (std::vector<int32_t>{0, 1}));
}

TEST_F(RoutingTest, AnExchangedExpertHasItsOwnScoreAsWeight) {
  CacheAwareRouting policy(.25, 1, 8, 8, 4, backend_.get());
  const std::vector<std::vector<float>> p = {{.4f, .22f, .2f, .18f}};
  const Chosen normalised = Route(&policy, p, Args(2), {3});
  EXPECT_EQ(normalised.ids, (std::vector<int32_t>{0, 3}));
  ExpectNear(normalised.weights, {.4f / .58f, .18f / .58f});
  const Chosen raw = Route(&policy, p, Args(2, /*norm=*/false, /*shared=*/true), {3});
  EXPECT_EQ(raw.ids, (std::vector<int32_t>{0, 3, 4}));
  ExpectNear(raw.weights, {.4f, .18f, 1});
  EXPECT_EQ(policy.counters().exchanged, 2u);
  EXPECT_EQ(policy.counters().pairs, 4u);
  const Chosen kept = Route(&policy, p, Args(2), {1, 3});
  EXPECT_EQ(kept.ids, (std::vector<int32_t>{0, 1}));
  ExpectNear(kept.weights, {.4f / .62f, .22f / .62f});
}

// Predictions for every row.
class FixedPredictions final : public ExpertPredictions {
 public:
  explicit FixedPredictions(std::vector<int32_t> experts) : experts_(std::move(experts)) {}
  absl::Span<const int32_t> Predicted(uint32_t, uint32_t, uint64_t) const override { return experts_; }

 private:
  const std::vector<int32_t> experts_;
};

ModelConfig OneLayer(uint32_t experts, uint32_t top_k, RouterKind router = RouterKind::kSoftmaxTopK) {
  ModelConfig config;
  config.layers.resize(1);
  config.layers[0].moe.experts = experts;
  config.layers[0].moe.top_k = top_k;
  config.layers[0].moe.router = router;
  config.layers[0].moe.shared_width = 64;
  return config;
}

TEST(MissRoutingTest, TokenWithAMissProceedsWithPredictedExperts) {
  const std::vector<float> p = {.4f, .3f, .2f, .1f};
  const auto there = [](uint32_t expert) { return expert == 0 || expert == 2; };
  std::vector<int32_t> ids = {0, 1};
  std::vector<float> weights = {4.f / 7, 3.f / 7};
  ASSERT_TRUE(ProceedWith({2, 0}, p.data(), absl::MakeSpan(ids), absl::MakeSpan(weights), there));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 2})) << "the better one first";
  ExpectNear(weights, {2.f / 3, 1.f / 3});
  // A model that does not normalise: .4 + .3 go to experts in the proportion .2 : .1.
  ids = {0, 1};
  weights = {.4f, .3f};
  ASSERT_TRUE(ProceedWith({3, 2}, p.data(), absl::MakeSpan(ids), absl::MakeSpan(weights), there));
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 3}));
  ExpectNear(weights, {.7f * 2 / 3, .7f / 3});
  // One expert was predicted, as gating would: it gets all weight.
  ids = {0, 1};
  weights = {4.f / 7, 3.f / 7};
  ASSERT_TRUE(ProceedWith({2, -1}, p.data(), absl::MakeSpan(ids), absl::MakeSpan(weights), there));
  EXPECT_EQ(ids[0], 2);
  ExpectNear(weights, {1, 0});
}

TEST(MissRoutingTest, TokenWithoutMissOrPredictionIsUnchanged) {
  const std::vector<float> p = {.4f, .3f, .2f, .1f};
  std::vector<int32_t> ids = {0, 1};
  std::vector<float> weights = {.55f, .45f};
  const auto all = [](uint32_t) { return true; };
  const auto none = [](uint32_t) { return false; };
  EXPECT_FALSE(ProceedWith({2, 3}, p.data(), absl::MakeSpan(ids), absl::MakeSpan(weights), all));
  EXPECT_FALSE(ProceedWith({}, p.data(), absl::MakeSpan(ids), absl::MakeSpan(weights), none));
  EXPECT_FALSE(ProceedWith({-1, -1}, p.data(), absl::MakeSpan(ids), absl::MakeSpan(weights), none));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(weights, (std::vector<float>{.55f, .45f}));
}

TEST_F(RoutingTest, CountsChangesAndKeepsTheRoutersChoice) {
  const ModelConfig config = OneLayer(4, 2);
  const std::vector<std::vector<float>> p = {{.4f, .3f, .2f, .1f}, {.4f, .1f, .3f, .2f}};
  const FixedPredictions predictions({3, 1});
  auto proceed =
      MissRouting::Create({std::make_unique<TopKRouting>(), &predictions, &config, backend_.get(), 8});
  ASSERT_TRUE(proceed.ok()) << proceed.status();
  const Chosen replaced = Route(proceed->get(), p, Args(2, true, /*shared=*/true), {0, 3}, /*prompt=*/1);
  EXPECT_EQ(replaced.ids, (std::vector<int32_t>{0, 1, 4, 3, 1, 4}));
  ExpectNear(replaced.weights, {4.f / 7, 3.f / 7, 1, 2.f / 3, 1.f / 3, 1});
  EXPECT_EQ((*proceed)->skipped()[0], 1u) << "expert 2; expert 0 is the prompt's still";
  const Routing wanted = (*proceed)->Wanted({2, 2, 3, replaced.ids.data(), replaced.weights.data()});
  EXPECT_EQ(std::vector<int32_t>(wanted.ids, wanted.ids + 6), (std::vector<int32_t>{0, 1, 4, 0, 2, 4}));
}

TEST_F(RoutingTest, RoutersThatCannotProceedAreRefusedByName) {
  const ModelConfig config = OneLayer(4, 2, RouterKind::kSigmoidTopK);
  const auto refused =
      MissRouting::Create({std::make_unique<TopKRouting>(), nullptr, &config, backend_.get(), 8});
  EXPECT_TRUE(absl::IsUnimplemented(refused.status())) << refused.status();
  EXPECT_NE(std::string(refused.status().message()).find("expert_miss=proceed"), std::string::npos);
}

// Profiles: a table of T for each share, as `sluice calibrate` writes it.
class GatingTest : public ::testing::Test {
 protected:
  static constexpr char kSource[] = "0123456789abcdef0123456789abcdef";

  void SetUp() override {
    model_.layers.resize(2);
    for (LayerConfig& layer : model_.layers) layer.moe.experts = 4;
    SensitivityProfile sensitivity{kSource, 10, {{3, .3, .1}, {6, .6, .1}}};
    Write(kSensitivityName, SerializeSensitivity(sensitivity));
    GatingProfile gating{kSource, 10, 5, {}};
    for (size_t i = 0; i < GatingTable::kPoints; ++i) {
      gating.table.thresholds.push_back(static_cast<double>(3 * i));
    }
    gating.table.rises = {{.1, .002}, {.3, .006}, {.5, .014}};
    Write(kGatingName, SerializeGating(gating));
  }

  void Write(const char* name, const std::string& text) {
    ASSERT_TRUE(WriteProfileFile(dir_.path(), name, text).ok());
  }

  absl::StatusOr<GatingRule> Resolve(const SensitivityConfig& config) {
    return ResolveGating(config, model_, dir_.path(), kSource);
  }

  ModelConfig model_;
  TempDir dir_;
};

TEST_F(GatingTest, ThresholdComesFromShareOrValue) {
  const auto score = ResolveGating({{}, .7}, model_, "/nowhere", kSource);  // needs no profile
  ASSERT_TRUE(score.ok()) << score.status();
  EXPECT_EQ(score->sensitivities, (std::vector<double>{1, 1}));
  EXPECT_EQ(score->threshold, .7);
  const auto share = Resolve({.255, {}});
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_EQ(share->sensitivities, (std::vector<double>{3, 6}));
  EXPECT_NEAR(share->threshold, 76.5, 1e-9);
  // 1 % of rise lies at a share of .4 on the line between .3 and .5.
  const auto standard = Resolve({});
  ASSERT_TRUE(standard.ok()) << standard.status();
  EXPECT_EQ(standard->sensitivities, (std::vector<double>{3, 6}));
  EXPECT_NEAR(standard->threshold, 120, 1e-9);
  const auto none = Resolve({0, {}});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_LT(none->threshold, 0);
}

TEST_F(GatingTest, MissingOrDamagedProfileIsReported) {
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ResolveGating({}, model_, dir_.path(), "ffffffffffffffffffffffffffffffff").status()));
  Write(kGatingName, "{\"format\": 1}");
  EXPECT_TRUE(absl::IsDataLoss(Resolve({}).status())) << Resolve({}).status();
  const TempDir empty;
  const absl::Status missing = ResolveGating({}, model_, empty.path(), kSource).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_NE(std::string(missing.message()).find("sluice calibrate"), std::string::npos) << missing;
}

}  // namespace
}  // namespace sluice::inferd
