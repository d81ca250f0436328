// Predictors on hand-computed cases: neurons from a lead, the learned networks' inputs, the first layer's
// gate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/profile/predictor_weights.h"
#include "inferd/policy/first_layer.h"
#include "inferd/policy/learned_experts.h"
#include "inferd/policy/neuron_predictor.h"
#include "inferd/policy/neuron_thresholds.h"
#include "inferd/policy/prefetcher.h"
#include "inferd/policy/sparsity.h"
#include "kernels/reference/reference_backend.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Remembers what it is asked for, and has the leads that it is given.
class AskedResidency final : public Residency {
 public:
  struct Asked {
    uint32_t layer = 0;
    uint32_t expert = 0;
    std::vector<uint32_t> neurons;
    bool operator==(const Asked&) const = default;
  };

  bool IsResident(uint32_t, uint32_t) const override { return false; }
  double NeuronShare(uint32_t layer, uint32_t expert) const override {
    const auto found = shares.find({layer, expert});
    return found == shares.end() ? 0 : found->second;
  }
  bool IsBehind() const override { return behind; }
  void SetLeadListener(LeadListener* told) override { listener = told; }
  bool IsComing(uint32_t, uint32_t) const override { return all_coming; }
  bool AllResident(uint32_t) const override { return all_resident; }
  void BeginStep(uint64_t) override {}
  absl::Status BeginLayer(uint32_t, absl::Span<const ExpertDemand>) override { return absl::OkStatus(); }
  absl::StatusOr<absl::Span<const ReadyTile>> Next() override { return absl::Span<const ReadyTile>(); }
  bool NextWaits() const override { return false; }
  absl::Span<const FailedDemand> failed() const override { return {}; }
  void Prefetch(uint32_t layer, uint32_t expert) override { experts.emplace_back(layer, expert); }
  void PrefetchNeurons(uint32_t layer, uint32_t expert, absl::Span<const uint32_t> wanted) override {
    neurons.push_back({layer, expert, {wanted.begin(), wanted.end()}});
  }
  std::optional<WeightView> Lead(uint32_t layer, uint32_t expert) const override {
    const auto found = leads.find({layer, expert});
    return found == leads.end() ? std::nullopt : std::optional<WeightView>(found->second);
  }
  bool LinkIdle() override { return link_idle; }
  uint32_t LayersToFetch() override { return layers_to_fetch + static_cast<uint32_t>(experts.size()); }
  void Poll() override {}
  void Abandon() override {}
  uint64_t held() const override { return 0; }
  ResidencyCounters counters() const override { return {}; }

  bool all_resident = false;
  bool behind = false;
  LeadListener* listener = nullptr;
  std::map<std::pair<uint32_t, uint32_t>, double> shares;  // of neurons
  bool all_coming = false;
  bool link_idle = true;
  uint32_t layers_to_fetch = 1;  // and one more for each expert asked for
  std::map<std::pair<uint32_t, uint32_t>, WeightView> leads;
  std::vector<Asked> neurons;
  std::vector<std::pair<uint32_t, uint32_t>> experts;
};

// Two layers of two experts of four neurons over a residual of two values.
class PredictorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BackendLimits limits;
    limits.max_tokens = 40;
    limits.max_cols = 8;
    limits.hidden = 2;
    limits.max_context = 8;
    limits.experts = 3;
    limits.top_k = 2;
    limits.expert_width = 4;
    backend_ = std::make_unique<ReferenceBackend>(limits);
    config_.hidden = 2;
    config_.layers.resize(2);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 2;
      layer.moe.top_k = 1;
      layer.moe.expert_width = 4;
    }
    layers_.resize(2);
    for (LayerWeights& layer : layers_) layer.ffn_norm = {Floats({1, 1}), 0.0f};
  }

  BufferRef Floats(const std::vector<float>& values) {
    const BufferRef at = {*backend_->Allocate(values.size() * sizeof(float), BufferKind::kStaging), 0};
    EXPECT_TRUE(backend_->queue().Upload(values.data(), values.size() * sizeof(float), at).ok());
    return at;
  }
  Rows RowsOf(const std::vector<float>& values) { return {Floats(values), 2}; }

  // A lead of four neurons, in bf16: the values below are exact.
  WeightView LeadOf(const std::vector<float>& values) {
    std::vector<uint16_t> bits;
    for (const float value : values)
      bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    const BufferRef at = {*backend_->Allocate(bits.size() * 2, BufferKind::kTables), 0};
    EXPECT_TRUE(backend_->queue().Upload(bits.data(), bits.size() * 2, at).ok());
    return {EncodingDescriptor{.encoding = Encoding::kBf16}, at, 4, 4, 2, {}};
  }

  // Every row's one expert (routed with weight 1 unless said).
  RouterTap Tap(uint32_t layer, const Rows& residual, const Rows& normed, std::vector<int32_t> ids,
                std::vector<float> weights = {}, uint32_t top_k = 1, uint64_t step = 8) {
    ids_ = std::move(ids);
    weights_ = weights.empty() ? std::vector<float>(ids_.size(), 1.0f) : std::move(weights);
    const uint32_t tokens = static_cast<uint32_t>(ids_.size()) / top_k;
    if (batch_.step() != step || batch_.tokens() != tokens) {
      batch_.Clear(step);
      batch_.Add(std::vector<int32_t>(tokens, 1), {.pages = pages_});
    }
    return {layer, residual, normed, {tokens, top_k, top_k, ids_.data(), weights_.data()}, &batch_, {}};
  }

  std::unique_ptr<NeuronPredictor> Neurons(SparsityOrder order, double threshold,
                                           NeuronPredictorOptions options = {}) {
    SparsityConfig sparsity;
    sparsity.order = order;
    sparsity.threshold = threshold;
    sparsity_ = *SparsityPolicy::Create(sparsity, config_, "", "");
    options.order = order;
    options.max_rows = 4;
    options.count_every = 1;
    auto made = NeuronPredictor::Create(options, NeuronThresholds(sparsity_.get()),
                                        {&config_, &layers_, backend_.get(), &residency_});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  std::unique_ptr<Backend> backend_;
  ModelConfig config_;
  std::vector<LayerWeights> layers_;
  AskedResidency residency_;
  std::unique_ptr<SparsityPolicy> sparsity_;
  const std::vector<uint32_t> pages_ = {0};
  StepBatch batch_{40, 2};
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
};

// FloE 3.3.2: |U x_l| >= t. U x = (0.5, -1, -0.5, -1) for x = (0.5, -1).
TEST_F(PredictorsTest, UpReuseAsksForTheNeuronsWhoseUpProductWithXIsLarge) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const RouterTap tap = Tap(0, RowsOf({9, 9}), RowsOf({0.5f, -1}), {1});
  ASSERT_TRUE(*neurons->Begin(tap, 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {1, 3}}));
}

// The residual (3, 4) has root mean square 3.5355: x = (0.8485, 1.1314), U x = (0.85, 1.13, 1.98, -1.70).
TEST_F(PredictorsTest, TheNormedInputIsTheResidualUnderTheNextLayersNorm) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  NeuronPredictorOptions options;
  options.input = NeuronInput::kNormed;
  const auto neurons = Neurons(SparsityOrder::kUp, 1.2, options);
  ASSERT_TRUE(*neurons->Begin(Tap(0, RowsOf({3, 4}), RowsOf({0, 0}), {1}), 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {2, 3}}));
  layers_[1].ffn_norm.weight = Floats({0.5f, 2});  // x = (0.4243, 2.2627): (0.42, 2.26, 2.69, -0.85)
  residency_.neurons.clear();
  ASSERT_TRUE(*neurons->Begin(Tap(0, RowsOf({3, 4}), RowsOf({0, 0}), {1}), 1, 1, std::vector<int32_t>{0}));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {1, 2}}));
}

// CORM 4.2: |silu(G x_l)| >= theta. silu of 2, -1, -1.2785, 0.25: 1.7616, -0.2689, -0.2785, 0.1405.
TEST_F(PredictorsTest, GateReuseGoesByTheActivationOfTheGate) {
  const float least = -1.28125f;  // silu(-1.28125) = -0.27846, near SiLU's minimum
  residency_.leads[{1, 1}] = LeadOf({2, 0, -1, 0, least, 0, 0.25f, 0});
  const RouterTap tap = Tap(0, RowsOf({1, 0}), RowsOf({1, 0}), {0});
  ASSERT_TRUE(*Neurons(SparsityOrder::kGate, 0.25)->Begin(tap, 1, 1, std::vector<int32_t>{1}));
  ASSERT_TRUE(*Neurons(SparsityOrder::kGate, 0.275)->Begin(tap, 1, 1, std::vector<int32_t>{1}));
  ASSERT_TRUE(*Neurons(SparsityOrder::kGate, 0.28)->Begin(tap, 1, 1, std::vector<int32_t>{1}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 1, {0, 1, 2}}, AskedResidency::Asked{1, 1, {0, 2}},
                          AskedResidency::Asked{1, 1, {0}}));
}

// Row 0 wants neurons 1 and 3, row 2 (x = (1, 0): 1, 0, 1, -2) neurons 0, 2 and 3; row 1 another expert.
TEST_F(PredictorsTest, AnExpertIsAskedForWhatAnyOfItsRowsWants) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  residency_.leads[{1, 1}] = LeadOf({0, 0, 0, 0, 0, 0, 1, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const RouterTap tap = Tap(0, RowsOf({0, 0, 0, 0, 0, 0}), RowsOf({0.5f, -1, 2, 2, 1, 0}), {1, 1, 1});
  ASSERT_TRUE(*neurons->Begin(tap, 1, 1, std::vector<int32_t>{0, 1, 0}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {0, 1, 2, 3}}, AskedResidency::Asked{1, 1, {3}}));
}

TEST_F(PredictorsTest, ALeadThatIsMissingIsFetchedBeforeItsNeurons) {
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const RouterTap tap = Tap(0, RowsOf({0, 0}), RowsOf({0.5f, -1}), {1});
  ASSERT_TRUE(*neurons->Begin(tap, 1, 1, std::vector<int32_t>{0}));
  ASSERT_TRUE(neurons->Continue().ok());
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {}}));
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  ASSERT_TRUE(neurons->Continue().ok());
  ASSERT_TRUE(neurons->Continue().ok());  // once is enough
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {}}, AskedResidency::Asked{1, 0, {1, 3}}));
}

// Expert 0 has half of its neurons, expert 1 a quarter; one asked for without neurons is kept.
TEST_F(PredictorsTest, ExpertsThatHaveEnoughNeuronsAreKeptAndNotPredicted) {
  residency_.leads[{1, 0}] = residency_.leads[{1, 1}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  residency_.shares = {{{1, 0}, 0.5}, {{1, 1}, 0.25}};
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const Rows x = RowsOf({0.5f, -1, 1, 0});
  ASSERT_TRUE(*neurons->Begin(Tap(0, x, x, {1, 1}), 1, 1, std::vector<int32_t>{0, 1}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {}}, AskedResidency::Asked{1, 1, {0, 2, 3}}));
  residency_.shares[{1, 1}] = 1;
  residency_.neurons.clear();
  EXPECT_FALSE(*neurons->Begin(Tap(0, x, x, {1, 1}), 1, 1, std::vector<int32_t>{0, 1}));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {}}, AskedResidency::Asked{1, 1, {}}));
  NeuronPredictorOptions options;
  options.enough = 2;
  residency_.neurons.clear();
  ASSERT_TRUE(*Neurons(SparsityOrder::kUp, 0.75, options)
                   ->Begin(Tap(0, x, x, {1, 1}), 1, 1, std::vector<int32_t>{0, 1}));
  EXPECT_EQ(residency_.neurons.size(), 2u);
  EXPECT_THAT(residency_.neurons[0].neurons, ElementsAre(1, 3));
}

// Two experts a row, the better one first: row 0 names 0, then 1; row 1 names 1, then 0.
TEST_F(PredictorsTest, WhileTheLinkIsBehindOnlyTheBestExpertsOfARowAreAskedFor) {
  residency_.leads[{1, 0}] = residency_.leads[{1, 1}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  NeuronPredictorOptions options;
  options.most_behind = 1;
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75, options);
  const Rows x = RowsOf({0.5f, -1, 1, 0});
  const RouterTap tap = Tap(0, x, x, {0, 1, 0, 1}, {}, 2);
  const std::vector<int32_t> ids = {0, 1, 1, 0};
  ASSERT_TRUE(*neurons->Begin(tap, 1, 2, ids));
  EXPECT_THAT(residency_.neurons, ElementsAre(AskedResidency::Asked{1, 0, {0, 1, 2, 3}},
                                              AskedResidency::Asked{1, 1, {0, 1, 2, 3}}));
  residency_.behind = true;
  residency_.neurons.clear();
  ASSERT_TRUE(*neurons->Begin(tap, 1, 2, ids));
  EXPECT_THAT(residency_.neurons,
              ElementsAre(AskedResidency::Asked{1, 0, {1, 3}}, AskedResidency::Asked{1, 1, {0, 2, 3}}));
}

TEST_F(PredictorsTest, StepsOfMoreRowsThanItTakesAreLeftAlone) {
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const std::vector<int32_t> ids(5, 0);
  const RouterTap tap = Tap(0, RowsOf(std::vector<float>(10)), RowsOf(std::vector<float>(10)), ids);
  EXPECT_FALSE(*neurons->Begin(tap, 1, 1, ids));
  EXPECT_THAT(residency_.neurons, IsEmpty());
}

// Predicted {1, 3}; with the true x = (1, -0.25) the products are 1, -0.25, 0.75, -2: neurons 0, 2 and 3.
TEST_F(PredictorsTest, NeuronsAreCountedForRowsWhoseExpertWasChosen) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const Rows x = RowsOf({0.5f, -1, 0.5f, -1, 0.5f, -1});
  const std::vector<int32_t> predicted = {0, 0, 0};
  ASSERT_TRUE(*neurons->Begin(Tap(0, x, x, {1, 1, 1}), 1, 1, predicted));
  // Row 0 chose it, row 1 another, row 2 chose it but is left out.
  const Rows truth = RowsOf({1, -0.25f, 1, -0.25f, 1, -0.25f});
  ASSERT_TRUE(neurons->Compare(Tap(1, truth, truth, {0, 1, 0}, {1, 1, 0})).ok());
  EXPECT_EQ(neurons->counters(1).predicted, 2u);
  EXPECT_EQ(neurons->counters(1).wanted, 3u);
  EXPECT_EQ(neurons->counters(1).right, 1u);
  ASSERT_TRUE(neurons->Compare(Tap(1, truth, truth, {0, 1, 0})).ok());  // nothing is counted twice
  EXPECT_EQ(neurons->counters(1).predicted, 2u);
}

TEST_F(PredictorsTest, AnotherStepsPredictionIsNotCounted) {
  residency_.leads[{1, 0}] = LeadOf({1, 0, 0, 1, 1, 1, -2, 0});
  const auto neurons = Neurons(SparsityOrder::kUp, 0.75);
  const Rows x = RowsOf({0.5f, -1});
  ASSERT_TRUE(*neurons->Begin(Tap(0, x, x, {1}, {}, 1, 8), 1, 1, std::vector<int32_t>{0}));
  ASSERT_TRUE(neurons->Compare(Tap(1, x, x, {0}, {}, 1, 9)).ok());
  EXPECT_EQ(neurons->counters(1).predicted, 0u);
}

// The true values are 0..4, the predicted ones an eighth of that: the threshold shrinks by as much.
TEST_F(PredictorsTest, ACalibratedThresholdLeavesOutTheShareThatTheSparsityLeavesOut) {
  const std::vector<uint32_t> experts = {2, 2};
  ThresholdTables actual("", 1, experts, 5);
  ThresholdTables predicted("", 1, experts, 5);
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t expert = 0; expert < 2; ++expert) {
      for (uint32_t i = 0; i < 5; ++i) {
        const float value = static_cast<float>(i * (layer + 1));
        actual.table(Lead::kUp, layer, expert)[i] = value;
        predicted.table(Lead::kUp, layer, expert)[i] = value / 8;
      }
    }
  }
  const auto neurons = Neurons(SparsityOrder::kUp, 2.5);
  const NeuronThresholds thresholds = NeuronThresholds::Matching(sparsity_.get(), actual, predicted);
  EXPECT_FLOAT_EQ(thresholds.predicted(0, 0), 2.5f / 8);
  EXPECT_FLOAT_EQ(thresholds.predicted(1, 1), 2.5f / 8);
  EXPECT_FLOAT_EQ(thresholds.actual(1, 1), 2.5f);
}

// FloE 3.3.1: a network sees x_l, this layer's experts and those of the routed layer before.
class LearnedExpertsTest : public PredictorsTest {
 protected:
  void SetUp() override {
    PredictorsTest::SetUp();
    config_.layers.resize(3);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 3;
      layer.moe.top_k = 2;
    }
  }

  // Linear over (x0, x1, own 0..2, before 0..2).
  PredictorNet Linear(std::vector<float> w, std::vector<float> b) {
    return {.inputs = 8,
            .units = 0,
            .outputs = 3,
            .precision = 0.5,
            .w1 = {},
            .b1 = {},
            .w2 = std::move(w),
            .b2 = std::move(b)};
  }
  std::unique_ptr<LearnedExperts> Learned(uint32_t layer, PredictorNet net) {
    PredictorProfile profile;
    profile.learned.push_back({layer, std::move(net)});
    return *LearnedExperts::Create(config_, std::move(profile), backend_.get());
  }
};

// Scores: expert 0 has x0 = 0.5; expert 1 has 2 if expert 2 was chosen here; expert 2 has 1 if expert 0 was
// chosen in the layer before.
TEST_F(LearnedExpertsTest, ItSeesTheHiddenStateAndTheChoicesOfTwoLayers) {
  const auto learned = Learned(1, Linear({1, 0, 0, 0, 0, 0, 0, 0,  //
                                          0, 0, 0, 0, 2, 0, 0, 0,  //
                                          0, 0, 0, 0, 0, 1, 0, 0},
                                         {0, 0, 0}));
  const Rows x = RowsOf({0.5f, 7, 3, 7});
  ASSERT_TRUE(learned->Observe(Tap(0, x, x, {0, 1, 1, 2}, {}, 2)).ok());
  const RouterTap tap = Tap(1, x, x, {2, 0, 1, 0}, {}, 2);
  ASSERT_TRUE(learned->Observe(tap).ok());
  const auto routing = learned->Predict(tap, 2);
  ASSERT_TRUE(routing.ok()) << routing.status();
  ASSERT_EQ(routing->tokens, 2u);
  // Row 0: scores 0.5, 2, 1. Row 1 chose neither: 3, 0, 0, the tie goes to the lower index.
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 4), ElementsAre(1, 2, 0, 1));
  EXPECT_NEAR(routing->weights[0], 1 / (1 + std::exp(-2.0)), 1e-6);
}

// relu(x0 - 1) = 2 for x0 = 3, and relu(-x0) = 0.
TEST_F(LearnedExpertsTest, AHiddenLayerIsRectified) {
  PredictorNet net{.inputs = 8,
                   .units = 2,
                   .outputs = 3,
                   .precision = 0.5,
                   .w1 = std::vector<float>(16),
                   .b1 = {-1, 0},
                   .w2 = {0, 9, 1, 0, 0, 0},
                   .b2 = {1, 0, 1.5f}};
  net.w1[0] = 1;
  net.w1[8] = -1;
  const auto learned = Learned(0, std::move(net));
  const Rows x = RowsOf({3, 0});
  const RouterTap tap = Tap(0, x, x, {0, 1}, {}, 2);
  ASSERT_TRUE(learned->Observe(tap).ok());
  const auto routing = learned->Predict(tap, 1);  // scores 1, 2, 1.5
  ASSERT_TRUE(routing.ok()) << routing.status();
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 2), ElementsAre(1, 2));
}

TEST_F(LearnedExpertsTest, TheLayerBeforeOfAnotherStepCountsAsUnknown) {
  const auto learned = Learned(1, Linear({0, 0, 0, 0, 0, 0, 0, 0,  //
                                          0, 0, 0, 0, 0, 0, 0, 0,  //
                                          0, 0, 0, 0, 0, 1, 0, 0},
                                         {0.5f, 0.25f, 0}));
  const Rows x = RowsOf({0, 0});
  ASSERT_TRUE(learned->Observe(Tap(0, x, x, {0, 1}, {}, 2, 4)).ok());
  const RouterTap tap = Tap(1, x, x, {2, 1}, {}, 2, 5);
  ASSERT_TRUE(learned->Observe(tap).ok());
  const auto routing = learned->Predict(tap, 2);
  ASSERT_TRUE(routing.ok()) << routing.status();
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 2), ElementsAre(0, 1));
}

TEST_F(LearnedExpertsTest, LayersWithoutANetworkAndLongStepsGetNoPrediction) {
  const auto learned = Learned(1, Linear(std::vector<float>(24), {0, 0, 0}));
  const Rows x = RowsOf(std::vector<float>(80));
  EXPECT_EQ(learned->Predict(Tap(0, x, x, {0, 1}, {}, 2), 1)->tokens, 0u);
  EXPECT_EQ(learned->Predict(Tap(1, x, x, std::vector<int32_t>(80, 0), {}, 2), 2)->tokens, 0u);
  EXPECT_EQ(learned->Predict(Tap(1, x, x, {0, 1}, {}, 2), 2)->tokens, 1u);
}

// AdapMoE eq. 9: softmax(W a + b) of the last layer's output.
class FirstLayerTest : public PredictorsTest {
 protected:
  std::unique_ptr<FirstLayerPredictor> Gate(bool final_norm) {
    config_.layers[0].moe.experts = 3;
    config_.layers[0].moe.top_k = 2;
    PredictorProfile profile;
    profile.first_layer =
        FirstLayerGate{final_norm, 0, {2, 0, 3, 0.5, {}, {}, {1, 0, 0, 1, 0, 0}, {0, 0, 1}}};
    final_norm_ = {Floats({1, 1}), 0.0f};
    auto made = FirstLayerPredictor::Create(config_, profile, &final_norm_, backend_.get(), 40, 2);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  NormSpec final_norm_;
};

// Scores 0.5, 2, 1 of row 1: experts 1 and 2, e^2 and e^1 of e^0.5 + e^2 + e^1.
TEST_F(FirstLayerTest, TheBestExpertsOfTheLastRowAreNamedWithTheirChances) {
  const auto gate = Gate(false);
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(2, 1), {});
  const auto routing = gate->Predict({1, RowsOf({9, 9, 0.5f, 2}), {}, &batch_}, std::vector<uint32_t>{1});
  ASSERT_TRUE(routing.ok()) << routing.status();
  EXPECT_THAT(std::vector<int32_t>(routing->ids, routing->ids + 2), ElementsAre(1, 2));
  const double sum = std::exp(0.5) + std::exp(2.0) + std::exp(1.0);
  EXPECT_NEAR(routing->weights[0], std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(routing->weights[1], std::exp(1.0) / sum, 1e-6);
}

// (3, 4) normed is (0.85, 1.13), and expert 2 has 1: experts 1 and 2. Without the norm: experts 1 and 0.
TEST_F(FirstLayerTest, TheFinalNormComesFirstWhereTheGateWasTrainedOnIt) {
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(1, 1), {});
  const LayerEnd end = {1, RowsOf({3, 4}), {}, &batch_};
  const auto with_norm = Gate(true);
  const auto normed = with_norm->Predict(end, std::vector<uint32_t>{0});
  ASSERT_TRUE(normed.ok()) << normed.status();
  EXPECT_THAT(std::vector<int32_t>(normed->ids, normed->ids + 2), ElementsAre(1, 2));
  const auto without_norm = Gate(false);
  const auto raw = without_norm->Predict(end, std::vector<uint32_t>{0});
  ASSERT_TRUE(raw.ok()) << raw.status();
  EXPECT_THAT(std::vector<int32_t>(raw->ids, raw->ids + 2), ElementsAre(1, 0));
}

// The forward pass ends with the last layer's AfterLayer(); head and sampling come behind it.
TEST_F(FirstLayerTest, ItsFetchBeginsWhenTheLastLayerEndsAndIsComparedInTheNextStep) {
  auto gate = Gate(false);
  Prefetcher prefetcher(config_, {.max_tokens = 40, .max_sequences = 2}, nullptr, std::move(gate), nullptr,
                        &residency_);
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(2, 1), {.first_position = 0, .pages = pages_});
  ASSERT_TRUE(prefetcher.AfterLayer({0, RowsOf({9, 9, 0.5f, 2}), {}, &batch_}).ok());
  EXPECT_THAT(residency_.experts, IsEmpty());
  ASSERT_TRUE(prefetcher.AfterLayer({1, RowsOf({9, 9, 0.5f, 2}), {}, &batch_}).ok());
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(0u, 1u), std::pair(0u, 2u)));
  batch_.Clear(4);
  batch_.Add(std::vector<int32_t>(1, 1), {.first_position = 2, .pages = pages_});
  const std::vector<int32_t> chosen = {2, 0};
  const std::vector<float> weights = {0.5f, 0.5f};
  const Rows x = RowsOf({0, 0});
  ASSERT_TRUE(prefetcher.AfterRouter({0, x, x, {1, 2, 2, chosen.data(), weights.data()}, &batch_, {}}).ok());
  EXPECT_EQ(prefetcher.counters_at(0, 0).predicted, 2u);
  EXPECT_EQ(prefetcher.counters_at(0, 0).right, 1u);
  EXPECT_EQ(prefetcher.counters_at(0, 0).wanted, 2u);
}

// Names experts 0 and 1 of any layer, with the confidence that it is given.
class FixedPredictor final : public ExpertPredictor {
 public:
  explicit FixedPredictor(std::vector<float> confidence) : confidence_(std::move(confidence)) {}
  absl::StatusOr<Routing> Predict(const RouterTap&, uint32_t target) override {
    asked.push_back(target);
    return Routing{1, 2, 2, ids_, chances_};
  }
  float Confidence(uint32_t, uint32_t rank) const override { return confidence_[rank]; }

  std::vector<uint32_t> asked;

 private:
  const std::vector<float> confidence_;
  const int32_t ids_[2] = {0, 1};
  const float chances_[2] = {.75f, .25f};
};

// How far ahead is looked, and what is fetched of it.
class PrefetchRulesTest : public PredictorsTest {
 protected:
  void SetUp() override {
    PredictorsTest::SetUp();
    config_.layers.resize(4);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 3;
      layer.moe.top_k = 2;
    }
  }
  // The layers asked about after layer 0's router.
  std::vector<uint32_t> Asked(PrefetcherOptions options) {
    options.max_tokens = 40;
    options.max_sequences = 2;
    options.depth = 3;
    auto predictor = std::make_unique<FixedPredictor>(std::vector<float>{.9f, .6f});
    const FixedPredictor* const asked = predictor.get();
    Prefetcher prefetcher(config_, options, std::move(predictor), nullptr, nullptr, &residency_);
    const Rows x = RowsOf({0, 0});
    RouterTap tap = Tap(0, x, x, {0, 1}, {}, 2);
    batch_.Clear(tap.batch->step());
    batch_.Add(std::vector<int32_t>(1, 1), {.pages = pages_, .decode_from = prompt_ ? 1u : 0u});
    EXPECT_TRUE(prefetcher.AfterRouter(tap).ok());
    return asked->asked;
  }

  bool prompt_ = false;  // whether the row is a prompt's
};

TEST_F(PrefetchRulesTest, WhatIsLackingEndsTheSearch) {
  EXPECT_THAT(Asked({}), ElementsAre(1));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(1u, 0u), std::pair(1u, 1u)));
  residency_.all_coming = true;
  EXPECT_THAT(Asked({}), ElementsAre(1, 2, 3));
}

TEST_F(PrefetchRulesTest, LayersFurtherAheadWaitForAnIdleLinkIfToldSo) {
  residency_.all_coming = true;
  residency_.link_idle = false;
  EXPECT_THAT(Asked({}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Asked({.deep_when_idle = true}), ElementsAre(1));
  residency_.link_idle = true;
  EXPECT_THAT(Asked({.deep_when_idle = true}), ElementsAre(1, 2, 3));
}

TEST_F(PrefetchRulesTest, OnlyWhatIsPredictedSurelyEnoughIsFetched) {
  Asked({.confidence = .7f});
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(1u, 0u)));
  residency_.experts.clear();
  EXPECT_THAT(Asked({.confidence = .95f}), ElementsAre(1, 2, 3)) << "nothing is lacking then";
  EXPECT_THAT(residency_.experts, IsEmpty());
}

TEST_F(PrefetchRulesTest, OnlyWhatComesInTimeIsFetchedIfToldSo) {
  // Layer 1's first expert takes one layer, the second another: late by one at most. Then three: layer 2's
  // first. The next takes four: layer 3's.
  EXPECT_THAT(Asked({.in_reach = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(residency_.experts,
              ElementsAre(std::pair(1u, 0u), std::pair(1u, 1u), std::pair(2u, 0u), std::pair(3u, 0u)));
  residency_.experts.clear();
  EXPECT_THAT(Asked({.max_prefetch = 1, .in_reach = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(1u, 0u), std::pair(2u, 0u), std::pair(3u, 0u)));
  // Of a prompt's rows as many experts as come in time, whatever the bound of a layer.
  residency_.experts.clear();
  residency_.layers_to_fetch = 1;
  prompt_ = true;
  EXPECT_THAT(Asked({.max_prefetch = 1, .in_reach = true}), ElementsAre(1, 2, 3));
  EXPECT_THAT(residency_.experts,
              ElementsAre(std::pair(1u, 0u), std::pair(1u, 1u), std::pair(2u, 0u), std::pair(3u, 0u)));
  prompt_ = false;
  residency_.experts.clear();
  residency_.layers_to_fetch = 4;
  EXPECT_THAT(Asked({.in_reach = true}), ElementsAre(3));
  EXPECT_THAT(residency_.experts, ElementsAre(std::pair(3u, 0u)));
  residency_.experts.clear();
  residency_.layers_to_fetch = 5;
  EXPECT_THAT(Asked({.in_reach = true}), IsEmpty());
  // The next layer is looked ahead to, those after it are predicted at once.
  residency_.layers_to_fetch = 1;
  EXPECT_THAT(Asked({.in_reach = true, .look_ahead = true}), ElementsAre(2, 3));
}

TEST_F(FirstLayerTest, AResidentFirstLayerIsPredictedOnlyToBeCounted) {
  residency_.all_resident = true;
  const Rows rows = RowsOf({0.5f, 2});
  batch_.Clear(3);
  batch_.Add(std::vector<int32_t>(1, 1), {.pages = pages_});
  Prefetcher idle(config_, {.max_tokens = 40, .max_sequences = 2}, nullptr, Gate(false), nullptr,
                  &residency_);
  ASSERT_TRUE(idle.AfterLayer({1, rows, {}, &batch_}).ok());
  EXPECT_THAT(residency_.experts, IsEmpty());
  Prefetcher counting(config_, {.max_tokens = 40, .max_sequences = 2, .predict_resident = true}, nullptr,
                      Gate(false), nullptr, &residency_);
  ASSERT_TRUE(counting.AfterLayer({1, rows, {}, &batch_}).ok());
  EXPECT_EQ(residency_.experts.size(), 2u);
}

}  // namespace
}  // namespace sluice
