// Packs with down by outputs: presets that need whole experts start, those that need single neurons say how
// to pack.
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inferd/engine/policy_choice.h"
#include "pack/pack.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OutputsPackTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::Status written = WriteTinyModel({.experts = 8}, dir_.File("model"));
    ASSERT_TRUE(written.ok()) << written;
    const absl::Status packed = PackFolder(dir_.File("model"), dir_.File("pack"), "q8", "up|gate|outputs");
    ASSERT_TRUE(packed.ok()) << packed;
    options_.engine.context = 128;
  }

  TempDir dir_;
  TestEngineOptions options_;
};

TEST_F(OutputsPackTest, PresetsOfSingleNeuronsAreRefused) {
  const auto pack = Pack::Open(dir_.File("pack"));
  ASSERT_TRUE(pack.ok()) << pack.status();
  const std::set<std::string> single = {"floe", "floe90", "corm", "intra"};
  for (const DeviceKind device : {DeviceKind::kHost, DeviceKind::kSim}) {
    for (const std::string& preset : PresetNames()) {
      EngineOptions options;
      options.preset = preset;
      options.device = device;
      options.virtual_clock = device == DeviceKind::kSim;
      const absl::Status status = ChoosePoliciesFor(options, **pack).status();
      if (!single.contains(preset)) {
        EXPECT_NE(status.code(), absl::StatusCode::kFailedPrecondition) << preset << ": " << status;
        continue;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << preset << ": " << status;
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr(preset), HasSubstr("sluice pack MODEL --out PACK --layout 'up|gate|down'")));
    }
  }
}

TEST_F(OutputsPackTest, SparsityOfAPresetIsRefusedAtStart) {
  options_.engine.policies.sparsity = "gate";
  options_.engine.policies.sparsity_threshold = 0.1;
  const absl::Status status = StartEngine(dir_.File("pack"), options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("sparsity=gate"));
}

TEST_F(OutputsPackTest, CachesOfWholeExpertsGiveTheHostsTokens) {
  std::vector<int32_t> wanted;
  for (const char* preset : {"exact", "ondemand", "lru_prefetch", "layerwise", "resident"}) {
    SCOPED_TRACE(preset);
    options_.engine.preset = preset;
    options_.engine.device = wanted.empty() ? DeviceKind::kHost : DeviceKind::kSim;
    absl::StatusOr<TestEngine> test = StartEngine(dir_.File("pack"), options_);
    ASSERT_TRUE(test.ok()) << test.status();
    const auto ids = GenerateIds(test->engine.get(), GreedySpec("a", {5, 6, 7}, 30));
    ASSERT_TRUE(ids.ok()) << ids.status();
    if (wanted.empty()) {
      wanted = *ids;
    }
    EXPECT_EQ(*ids, wanted);
  }
}

}  // namespace
}  // namespace sluice::inferd
