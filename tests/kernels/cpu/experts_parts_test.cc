// Tests the parts of the experts alone: the order in which blocks are added, and the switch to reading all
// rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/fused_experts.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace sluice::cpu {
namespace {

constexpr uint32_t kHidden = 40;
constexpr uint32_t kBlocks = 5;  // of each expert
constexpr uint32_t kExperts = 3;

// Three experts of two rows each, the second with a bias and the third a later tile of its expert: sums of
// all blocks, and y as it was before.
class BlockOrderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto kernels = ChooseKernels(CpuIsa::kBest);
    ASSERT_TRUE(kernels.ok()) << kernels.status();
    kernels_ = *kernels;
    limits_.experts = kExperts;
    limits_.expert_width = kBlocks * kNeuronBlock;
    Random random(3);
    bias_ = random.Normals(kHidden);
    bias_[3] = -0.0f;
    before_ = random.Normals(kExperts * 2 * kHidden);
    sums_ = random.Normals(kExperts * kBlocks * 2 * kHidden);
    slots_ = {0, 1, 2, 3, 4, 5};
    for (uint32_t e = 0; e < kExperts; ++e) {
      experts_[e].rows = experts_[e].slots = absl::MakeSpan(slots_).subspan(2 * e, 2);
      experts_[e].neuron_begin = e == 2 ? kNeuronBlock : 0;
      experts_[e].down_bias = e == 1 ? bias_.data() : nullptr;
      jobs_[e].call = &experts_[e];
      jobs_[e].blocks = kBlocks;
      jobs_[e].first_tile = e * kBlocks;
      jobs_[e].memory = e * kBlocks * 2 * kHidden;
    }
    partials_.resize(sums_.size());
    space_.partials = partials_.data();
  }

  // y after the tiles were finished in this order, shared out over `threads`.
  std::vector<float> YAfter(const std::vector<uint32_t>& tiles, uint32_t threads) {
    std::vector<float> y = before_;
    MoeExpertsCall call;
    call.hidden = kHidden;
    call.experts = experts_;
    call.y = {y.data(), kHidden};
    BlockOrder order(limits_, *kernels_, space_);
    order.Begin(call, jobs_);
    std::vector<std::thread> workers;
    for (uint32_t worker = 0; worker < threads; ++worker) {
      workers.emplace_back([&, worker] {
        for (size_t i = worker; i < tiles.size(); i += threads) {
          order.Finish(tiles[i] / kBlocks, tiles[i] % kBlocks, sums_.data() + tiles[i] * 2 * kHidden,
                       kHidden);
        }
      });
    }
    for (std::thread& worker : workers) {
      worker.join();
    }
    return y;
  }

  const KernelTable* kernels_ = nullptr;
  BackendLimits limits_;
  Workspace space_;
  std::vector<float> bias_, before_, sums_, partials_;
  std::vector<uint32_t> slots_;
  ExpertCall experts_[kExperts];
  ExpertJob jobs_[kExperts];
};

TEST_F(BlockOrderTest, SumsAreAddedOneAfterTheOther) {
  std::vector<uint32_t> tiles(kExperts * kBlocks);
  for (uint32_t i = 0; i < tiles.size(); ++i) {
    tiles[i] = i;
  }
  const std::vector<float> y = YAfter(tiles, 1);
  for (uint32_t e = 0; e < kExperts; ++e) {
    for (uint32_t row = 0; row < 2; ++row) {
      for (uint32_t h = 0; h < kHidden; ++h) {
        float want = e == 1 ? bias_[h] + 0.0f : e == 2 ? before_[(2 * e + row) * kHidden + h] : 0.0f;
        for (uint32_t block = 0; block < kBlocks; ++block) {
          want = want + sums_[((e * kBlocks + block) * 2 + row) * kHidden + h];
        }
        EXPECT_EQ(y[(2 * e + row) * kHidden + h], want) << "expert " << e << " column " << h;
      }
    }
  }
}

TEST_F(BlockOrderTest, TheBitsDoNotDependOnWhoIsFirst) {
  std::vector<uint32_t> tiles(kExperts * kBlocks);
  for (uint32_t i = 0; i < tiles.size(); ++i) {
    tiles[i] = i;
  }
  const std::vector<float> want = YAfter(tiles, 1);
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::shuffle(tiles.begin(), tiles.end(), random);
    ASSERT_TRUE(BitEqual(YAfter(tiles, 1 + round % 3), want)) << "round " << round;
  }
}

TEST_F(BlockOrderTest, ATurnIsOneWorkersUntilItEnds) {
  std::vector<float> y = before_;
  MoeExpertsCall call;
  call.hidden = kHidden;
  call.y = {y.data(), kHidden};
  BlockOrder order(limits_, *kernels_, space_);
  order.Begin(call, jobs_);
  EXPECT_FALSE(order.TakeTurn(1, 1));
  ASSERT_TRUE(order.TakeTurn(1, 0));
  EXPECT_FALSE(order.TakeTurn(1, 0));
  EXPECT_TRUE(order.TakeTurn(0, 0));  // another expert's
  EXPECT_FALSE(order.StartToken(0, 0, y.data()));
  EXPECT_TRUE(order.StartToken(1, 0, y.data()));
  EXPECT_EQ(std::memcmp(y.data(), bias_.data(), 3 * sizeof(float)), 0);
  EXPECT_FALSE(std::signbit(y[3]));
  order.EndTurn(1);
  EXPECT_TRUE(order.TakeTurn(1, 1));
}

TEST(DenseSwitchTest, AnEntryOfTheExpertsKindComesBeforeTheDefaults) {
  ExpertCall expert;
  expert.up.encoding = expert.gate.encoding = expert.down.encoding = MakeDescriptor(Encoding::kQ4, 64);
  const std::vector<uint32_t> rows(3);
  expert.rows = rows;
  DenseSwitch dense;
  EXPECT_EQ(dense.Above(expert), 1.0f);  // no masks
  expert.sparsity = SparsityOrder::kGate;
  EXPECT_EQ(dense.Above(expert), SparseSwitch().DenseAbove(3));
  SparseSwitchEntry entry{
      SparsityOrder::kGate, expert.up.encoding, expert.gate.encoding, expert.down.encoding, {}};
  std::fill(std::begin(entry.at.dense_above), std::end(entry.at.dense_above), 0.25f);
  ASSERT_TRUE(dense.Set({&entry, 1}).ok());
  EXPECT_EQ(dense.Above(expert), 0.25f);
  expert.sparsity = SparsityOrder::kUp;
  EXPECT_EQ(dense.Above(expert), SparseSwitch().DenseAbove(3));
  const std::vector<SparseSwitchEntry> many(kMaxSparseSwitches + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(dense.Set(many)));
}

}  // namespace
}  // namespace sluice::cpu
