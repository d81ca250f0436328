// The daemon's sparse profile: one measurement for each kind of expert in a pack, stored.
#include <gtest/gtest.h>

#include <filesystem>

#include "inferd/policy/sparsity.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_pack.h"

namespace sluice::inferd {
namespace {

TEST(SparseSetupTest, MeasuresEachExpertKindOnceIfSparse) {
  const TestPack pack;
  const TempDir dir;
  const MoeConfig& moe = pack.pack().config().layers[0].moe;
  BackendLimits limits;
  limits.max_tokens = 4;
  limits.max_sequences = 1;
  limits.max_cols = limits.hidden = pack.pack().config().hidden;
  limits.heads = limits.head_dim = 2;
  limits.max_context = 1;
  limits.experts = moe.experts;
  limits.top_k = moe.top_k;
  limits.expert_width = moe.expert_width;
  limits.vocab = 1;
  auto backend = CreateCpuBackend(limits, 1);
  ASSERT_TRUE(backend.ok()) << backend.status();
  SparsityConfig sparsity;
  auto line = SetUpSparseSwitches(pack.pack(), sparsity, limits, dir.File("cache"), **backend);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(*line, "");
  EXPECT_FALSE(std::filesystem::exists(dir.File("cache")));

  sparsity.order = SparsityOrder::kUp;
  sparsity.threshold = 0.1;
  for (const char* word : {"measured now", "measured before"}) {
    line = SetUpSparseSwitches(pack.pack(), sparsity, limits, dir.File("cache"), **backend);
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_NE(line->find(word), std::string::npos) << *line;
  }
  const std::filesystem::directory_iterator files(dir.File("cache"));
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

}  // namespace
}  // namespace sluice::inferd
