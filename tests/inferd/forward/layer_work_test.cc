#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "inferd/forward/moe_work.h"

namespace sluice::inferd {
namespace {

// Two rows over experts 1 and 3 of four, of eight neurons; experts have biases.
class LayerWorkTest : public testing::Test {
 protected:
  LayerWorkTest() {
    config_.layers.resize(1);
    MoeConfig& moe = config_.layers[0].moe;
    moe.experts = 4;
    moe.top_k = 2;
    moe.expert_width = 8;
    moe.expert_bias = true;
    weights_.resize(1);
    weights_[0].up_biases.base = {7, 0};
    weights_[0].up_biases.stride = 32;
    sparsity_ = *SparsityPolicy::Create({}, config_, "", "");
    StepBatch batch(2, 1);
    batch.Clear(1);
    batch.Add(std::vector<int32_t>{1, 1}, {});
    const std::vector<int32_t> ids = {1, 3, 3, 1};
    const std::vector<float> weights(4, .5f);
    EXPECT_TRUE(plan_.Build({2, 2, 2, ids.data(), weights.data()}, 4, batch).ok());
  }
  ReadyTile Tile(uint32_t demand, uint32_t begin, uint32_t end) {
    ReadyTile tile;
    tile.demand = demand;
    tile.neuron_begin = begin;
    tile.neuron_end = end;
    return tile;
  }

  ModelConfig config_;
  std::vector<LayerWeights> weights_;
  std::unique_ptr<SparsityPolicy> sparsity_;
  WorkPlan plan_{2, 2, 4};
};

TEST_F(LayerWorkTest, TilesBecomeWorkWithRowsAndBiases) {
  LayerWork work(config_, weights_, *sparsity_, plan_);
  work.Begin(0);
  EXPECT_TRUE(work.ready().empty()) << "no expert that every token goes through";
  work.Add({Tile(1, 0, 4)});
  ASSERT_EQ(work.ready().size(), 1u);
  EXPECT_EQ(work.ready()[0].rows, plan_.rows(1));
  EXPECT_EQ(work.ready()[0].slots, plan_.slots(1));
  EXPECT_EQ(work.ready()[0].neuron_end, 4u);
  EXPECT_EQ(work.ready()[0].up_bias.offset, 3 * 32u);
  work.Queued();
  EXPECT_TRUE(work.ready().empty());
}

TEST_F(LayerWorkTest, ADemandIsMissingUntilItsLastNeuronIsReady) {
  LayerWork work(config_, weights_, *sparsity_, plan_);
  work.Begin(0);
  EXPECT_EQ(work.missing(), 2u);
  work.Add({Tile(0, 0, 4)});
  EXPECT_EQ(work.missing(), 2u);
  work.Add({Tile(0, 4, 8)});
  EXPECT_TRUE(work.IsWhole(0));
  EXPECT_EQ(work.missing(), 1u);
  work.Add({Tile(1, 0, 0)});  // all of them
  EXPECT_EQ(work.missing(), 0u);
  work.Begin(0);
  EXPECT_EQ(work.missing(), 2u);
}

TEST_F(LayerWorkTest, CommonExpertIsReadyAtOnce) {
  config_.layers[0].moe.shared_width = 8;
  LayerWork work(config_, weights_, *sparsity_, plan_);
  work.Begin(0);
  ASSERT_EQ(work.ready().size(), 1u);
  EXPECT_EQ(work.missing(), 2u) << "it is nobody's demand";
}

}  // namespace
}  // namespace sluice::inferd
