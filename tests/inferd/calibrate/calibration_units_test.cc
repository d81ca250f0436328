// Cost of a calibration unit, which is the delay of an interruption and the step of a progress bar: one
// window, with the head only if the loss is used.
#include <gtest/gtest.h>

#include <functional>

#include "common/profile/threshold_tables.h"
#include "inferd/calibrate/activation_stage.h"
#include "inferd/calibrate/cache_stage.h"
#include "inferd/calibrate/calibration_stage.h"
#include "inferd/calibrate/cutoff_stage.h"
#include "inferd/calibrate/sensitivity_stage.h"
#include "tests/support/temp_dir.h"

namespace sluice::inferd {
namespace {

// Records the requested windows; a window's loss is its first token.
class CountingHost final : public WindowHost {
 public:
  absl::StatusOr<double> Run(const CalibrationWindow& window, const WindowRunner::Hooks& hooks) override {
    ++windows;
    losses += hooks.loss ? 1 : 0;
    return hooks.loss ? window.input[0] * (1 + sparsity) : 0;
  }
  absl::Status UseSparsity(const SparsityConfig& config, const std::string&) override {
    sparsity = config.target.value_or(0);
    return sparsity > most ? absl::InvalidArgumentError("too much") : absl::OkStatus();
  }
  const WindowRunner& runner() const override { std::abort(); }

  int windows = 0;
  int losses = 0;
  double sparsity = 0;
  double most = 1;
};

class FinishedStage final : public CalibrationStage {
 public:
  FinishedStage(std::string name, std::string bytes) : name_(std::move(name)), bytes_(std::move(bytes)) {}
  std::string name() const override { return "finished"; }
  uint64_t units() const override { return 0; }
  absl::Status RunUnit(uint64_t) override { return absl::OkStatus(); }
  void Save(std::string*) const override {}
  absl::Status Load(ByteReader*) override { return absl::OkStatus(); }
  absl::StatusOr<std::map<std::string, std::string>> Finish() override {
    return std::map<std::string, std::string>{{name_, bytes_}};
  }

 private:
  const std::string name_;
  const std::string bytes_;
};

class CalibrationUnitsTest : public ::testing::Test {
 protected:
  CalibrationUnitsTest() {
    config_.hidden = 4;
    config_.layers.resize(2);
    for (LayerConfig& layer : config_.layers) {
      layer.moe.experts = 4;
      layer.moe.top_k = 2;
    }
    for (int i = 0; i < 5; ++i) windows_.push_back({{i + 1, 2, 3}, {2, 3}});
  }

  // Returns the maximum windows of any unit, restoring the stage into a new one after each.
  int WindowsOfAUnit(const std::function<std::unique_ptr<CalibrationStage>()>& make) {
    std::unique_ptr<CalibrationStage> stage = make();
    int most = 0;
    for (uint64_t unit = 0; unit < stage->units(); ++unit) {
      const int before = host_.windows;
      EXPECT_TRUE(stage->RunUnit(unit).ok()) << stage->name() << " " << unit;
      most = std::max(most, host_.windows - before);
      std::string state;
      stage->Save(&state);
      stage = make();
      ByteReader reader(state, "state");
      EXPECT_TRUE(stage->Load(&reader).ok());
      EXPECT_TRUE(reader.Finish().ok());
    }
    last_ = std::move(stage);
    return most;
  }

  std::unique_ptr<CalibrationStage> Cutoff() {
    return std::make_unique<CutoffStage>(keys_, windows_, 3, std::vector<double>{10, 1e9}, dir_.path(),
                                         &thresholds_, &host_);
  }

  const ProfileKeys keys_{std::string(32, 'a'), std::string(32, 'b')};
  TempDir dir_;
  ModelConfig config_;
  std::vector<CalibrationWindow> windows_;
  CountingHost host_;
  std::unique_ptr<CalibrationStage> last_;
  FinishedStage thresholds_{kThresholdsName, "tables"};
};

TEST_F(CalibrationUnitsTest, LayerStagesSkipTheHead) {
  ActivationStage activations(config_, keys_, windows_, &host_, nullptr);
  CacheStage cache(config_, keys_, windows_, 5, &host_);
  for (CalibrationStage* stage : std::initializer_list<CalibrationStage*>{&activations, &cache}) {
    ASSERT_TRUE(stage->RunUnit(0).ok());
  }
  EXPECT_EQ(host_.windows, 2);
  EXPECT_EQ(host_.losses, 0);
}

TEST_F(CalibrationUnitsTest, GatingRunsOneHeldOutWindowAUnit) {
  SensitivityProfile sensitivity{keys_.source_digest, 5, std::vector<LayerSensitivity>(2)};
  FinishedStage sensitivities(kSensitivityName, SerializeSensitivity(sensitivity));
  EXPECT_EQ(WindowsOfAUnit([&] {
              return std::make_unique<GatingStage>(config_, keys_, windows_, 4, &sensitivities, &host_);
            }),
            1);
  EXPECT_EQ(host_.windows, 4 + 2 * (1 + 8));
  const auto files = last_->Finish();
  ASSERT_TRUE(files.ok()) << files.status();
  const auto gating = ParseGating(files->at(kGatingName), "g", keys_.source_digest);
  ASSERT_TRUE(gating.ok()) << gating.status();
  ASSERT_EQ(gating->table.rises.size(), 8u);
  for (const auto& rise : gating->table.rises) EXPECT_EQ(rise.rise, 0) << "the same two windows in every run";
}

// Losses rise by the sparsity times (3 + 4 + 5) over six targets: 10 is passed at expm1(2 s) = 10, never
// here.
TEST_F(CalibrationUnitsTest, SparsitySearchRunsOneWindowPerUnit) {
  EXPECT_EQ(WindowsOfAUnit([&] { return Cutoff(); }), 1);
  const auto files = last_->Finish();
  ASSERT_TRUE(files.ok()) << files.status();
  const auto cutoffs = ParseCutoffs(files->at(kCutoffName), "c", keys_.model_id);
  ASSERT_TRUE(cutoffs.ok()) << cutoffs.status();
  EXPECT_EQ(cutoffs->cutoffs[0].sparsity, 0.99);
  EXPECT_NEAR(cutoffs->cutoffs[0].rise, std::expm1(2 * 0.99), 1e-12);
  EXPECT_EQ(cutoffs->cutoffs[1].sparsity, 0.99);
}

TEST_F(CalibrationUnitsTest, ImpossibleSparsityExceedsEveryBound) {
  host_.most = 0.355;
  EXPECT_EQ(WindowsOfAUnit([&] { return Cutoff(); }), 1);
  const auto files = last_->Finish();
  ASSERT_TRUE(files.ok()) << files.status();
  const auto cutoffs = ParseCutoffs(files->at(kCutoffName), "c", keys_.model_id);
  ASSERT_TRUE(cutoffs.ok()) << cutoffs.status();
  EXPECT_EQ(cutoffs->cutoffs[1].sparsity, 0.35);
}

// Hidden 4, two routed layers of 4 x 4 x 4 + 3 x 4 x 2 x 8 = 256, a head of 400.
TEST_F(CalibrationUnitsTest, WorkCountsFromTheFirstLayerOfAPass) {
  config_.vocab = 100;
  for (LayerConfig& layer : config_.layers) layer.moe.expert_width = 8;
  const PositionWork work(config_);
  EXPECT_EQ(work.Whole(false), 512);
  EXPECT_EQ(work.From(1, true), 656);
  EXPECT_EQ(work.From(2, true), 400);
  EXPECT_EQ(work.SingleExperts(), 912 + 912 + 656);
}

TEST(TimeLeftTest, EstimatesFromThisRunOnly) {
  TimeLeft left(100);
  EXPECT_FALSE(left.Estimate().has_value());
  left.Skip(40);
  EXPECT_FALSE(left.Estimate().has_value());
  left.Add(20, absl::Seconds(10));
  EXPECT_EQ(*left.Estimate(), absl::Seconds(20));
  left.Add(40, absl::Seconds(50));
  EXPECT_EQ(*left.Estimate(), absl::ZeroDuration());
}

}  // namespace
}  // namespace sluice::inferd
