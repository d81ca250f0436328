// Number of host waits for an asynchronous device: at most one per layer and one at the step's end; with
// every expert on the device one per token.
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "gtest/gtest.h"
#include "pack/pack.h"
#include "tests/support/engine_testing.h"
#include "tests/support/profiled_pack.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kLayers = 4;

// Packs and profiles of all tests; made once.
class WaitsTest : public testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    const absl::Status made = MakeProfiledPack(kLayers, dir_->File("work"), PackDir());
    ASSERT_TRUE(made.ok()) << made;
  }
  static void TearDownTestSuite() { dir_.reset(); }
  static std::string PackDir() { return dir_->File("pack"); }

  // Returns the waits per generated token, from 24 further tokens.
  static absl::StatusOr<double> WaitsPerToken(const std::string& preset, uint64_t budget, uint64_t seed) {
    TestEngineOptions options;
    options.threads = 1;
    options.delay_seed = seed;
    options.engine.device = DeviceKind::kSim;
    options.engine.context = 128;
    options.engine.preset = preset;
    options.engine.slab.budget = budget;
    options.engine.stall_limit = absl::Seconds(60);  // a loaded machine must not fail the test
    ASSIGN_OR_RETURN(const TestEngine test, StartEngine(PackDir(), options));
    std::vector<uint64_t> waits = {AwaitQuiet(*test.engine).device_waits};
    for (const uint32_t tokens : {4u, 4u, 28u}) {
      RETURN_IF_ERROR(GenerateIds(test.engine.get(), GreedySpec("g", {3, 1, 4, 1, 5}, tokens)).status());
      waits.push_back(AwaitQuiet(*test.engine).device_waits);
    }
    return (static_cast<double>(waits[3] - waits[2]) - static_cast<double>(waits[2] - waits[1])) / 24;
  }

  static std::unique_ptr<TempDir> dir_;
};
std::unique_ptr<TempDir> WaitsTest::dir_;

TEST_P(WaitsTest, AtMostOnePerLayerAndOneAtTheEnd) {
  const absl::StatusOr<std::unique_ptr<sluice::Pack>> pack = sluice::Pack::Open(PackDir());
  ASSERT_TRUE(pack.ok()) << pack.status();
  for (const uint64_t share : {2, 3}) {
    const absl::StatusOr<double> waits =
        WaitsPerToken(GetParam(), (*pack)->total_expert_bytes() / share, /*seed=*/share);
    ASSERT_TRUE(waits.ok()) << waits.status();
    EXPECT_LE(*waits, kLayers + 1) << "1 / " << share << " of the experts on the device";
    EXPECT_GE(*waits, 1);
  }
}

TEST_P(WaitsTest, OnePerTokenIfAllExpertsAreResident) {
  const absl::StatusOr<double> waits = WaitsPerToken(GetParam(), /*budget=*/0, /*seed=*/5);
  ASSERT_TRUE(waits.ok()) << waits.status();
  EXPECT_EQ(*waits, 1);
}

INSTANTIATE_TEST_SUITE_P(Presets, WaitsTest,
                         testing::Values("exact", "floe", "corm", "adapmoe", "importance"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace sluice::inferd
