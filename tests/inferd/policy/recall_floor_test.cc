// Layers with low recall: when they are trusted, and the effects of a prediction without trust.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "inferd/policy/prefetcher.h"

namespace sluice::inferd {
namespace {

TEST(RecallFloorTest, WithoutAFloorEveryLayerIsTrustedAtOnce) {
  const RecallFloor floor(0, 2, true);
  EXPECT_TRUE(floor.Trusts(0));
  EXPECT_TRUE(floor.Trusts(1));
}

TEST(RecallFloorTest, TrustNeedsEnoughCounts) {
  RecallFloor floor(0.8, 2, true);
  for (uint32_t i = 0; i < RecallFloor::kEnough; ++i) {
    EXPECT_FALSE(floor.Trusts(1)) << i;
    floor.CountExperts(1, 4, 5);
    floor.CountExperts(1, 0, 0);  // no target
  }
  EXPECT_FALSE(floor.Trusts(1));
  for (uint32_t i = 0; i < RecallFloor::kEnough; ++i) {
    EXPECT_FALSE(floor.Trusts(1)) << i;
    floor.CountNeurons(1, 90, 100);
  }
  EXPECT_TRUE(floor.Trusts(1));
  EXPECT_FALSE(floor.Trusts(0));
}

TEST(RecallFloorTest, TrustFollowsTheRecall) {
  RecallFloor floor(0.75, 1, false);
  for (uint32_t i = 0; i < RecallFloor::kWindow; ++i) floor.CountExperts(0, 1, 1);
  ASSERT_TRUE(floor.Trusts(0));
  uint32_t wrong = 0;
  for (; floor.Trusts(0); ++wrong) floor.CountExperts(0, 0, 1);
  EXPECT_EQ(wrong, 19u);  // (63 / 64)^19 = 0.741
  uint32_t right = 0;
  for (; !floor.Trusts(0); ++right) floor.CountExperts(0, 1, 1);
  EXPECT_EQ(right, 3u);  // 1 - 0.259 (63 / 64)^3 = 0.753
}

TEST(RecallFloorTest, UntrustedLayerIsMeasuredLessAndLess) {
  RecallFloor floor(0.8, 2, false);
  uint32_t looked = 0;
  for (uint32_t step = 0; step < RecallFloor::kFirst; ++step) looked += floor.Measures(0);
  EXPECT_EQ(looked, RecallFloor::kFirst);
  for (uint32_t step = 0; step < 10 * RecallFloor::kEvery; ++step) looked += floor.Measures(0);
  EXPECT_EQ(looked, RecallFloor::kFirst + 10);
}

// Holds nothing; records the requested experts.
class EmptyResidency final : public ExpertPrefetch {
 public:
  bool IsResident(uint32_t, uint32_t) const override { return false; }
  bool AllResident(uint32_t) const override { return false; }
  void Prefetch(uint32_t, uint32_t expert) override { asked.push_back(expert); }

  std::vector<uint32_t> asked;
};

// Always predicts experts 0 and 1.
class SamePredictor final : public ExpertPredictor {
 public:
  using ExpertPredictor::ExpertPredictor;
  absl::Status Ask(const RouterState&, uint32_t) override { return absl::OkStatus(); }
  absl::StatusOr<Routing> Answer(const RouterState&, uint32_t) override {
    return Routing{1, 2, 2, ids_, chances_};
  }
  float Confidence(uint32_t, uint32_t) const override { return 1; }

 private:
  const int32_t ids_[2] = {0, 1};
  const float chances_[2] = {.75f, .25f};
};

class RecallFloorPrefetchTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.layers.resize(2);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 3;
      layer.moe.top_k = 2;
    }
    prefetcher_ = std::make_unique<Prefetcher>(
        config_, PrefetcherOptions{.max_tokens = 1, .max_sequences = 1, .recall = 0.8},
        Prefetcher::Predictors{.experts = std::make_unique<SamePredictor>(&backend_->queue())}, &residency_);
  }
  // One step, in which layer 1's router chooses `ids`. Returns true if a token could proceed with the
  // prediction.
  bool Step(std::vector<int32_t> ids) {
    ++step_;
    batch_.Clear(step_);
    batch_.Add(std::vector<int32_t>(1, 1), {.pages = pages_});
    bool told = false;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      told = layer == 1 && !prefetcher_->Predicted(1, 0, step_).empty();
      const float weights[] = {.5f, .5f};
      EXPECT_TRUE(
          prefetcher_->AfterRouter({layer, {}, {}, {1, 2, 2, ids.data(), weights}, &batch_, {}, {}}).ok());
    }
    return told;
  }

  ModelConfig config_;
  const std::unique_ptr<Backend> backend_ = *CreateReferenceBackend({});
  EmptyResidency residency_;
  std::unique_ptr<Prefetcher> prefetcher_;
  StepBatch batch_{1, 1};
  const uint32_t pages_[1] = {0};
  uint64_t step_ = 0;
};

TEST_F(RecallFloorPrefetchTest, PredictionIsOnlyCountedUntilTrusted) {
  for (uint32_t i = 0; i < RecallFloor::kEnough; ++i) {
    EXPECT_FALSE(Step({0, 1})) << i;
    EXPECT_TRUE(residency_.asked.empty()) << i;
  }
  EXPECT_EQ(prefetcher_->counters(1).right, 2 * RecallFloor::kEnough);
  EXPECT_TRUE(Step({0, 1}));
  EXPECT_EQ(residency_.asked, (std::vector<uint32_t>{0, 1}));
}

TEST_F(RecallFloorPrefetchTest, PredictionWithHalfRecallIsNeverUsed) {
  for (uint32_t i = 0; i < 10 * RecallFloor::kEvery; ++i) EXPECT_FALSE(Step({0, 2})) << i;
  EXPECT_TRUE(residency_.asked.empty());
  EXPECT_EQ(prefetcher_->counters(1).rows, RecallFloor::kFirst + 9);
}

}  // namespace
}  // namespace sluice::inferd
