// Whole calibrations of tiny models on the engine: the measurements, and the continuation after an
// interruption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "common/base/file_io.h"
#include "common/base/status.h"
#include "common/profile/predictor_weights.h"
#include "common/profile/profile.h"
#include "common/profile/threshold_tables.h"
#include "tests/support/calibration_sink.h"
#include "tests/support/engine_testing.h"

namespace sluice::inferd {
namespace {

class CalibrateTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kVocab = 40;

  void SetUp() override {
    TinyModelSpec spec;
    spec.vocab = kVocab;
    spec.layers = 3;
    spec.experts = 4;
    spec.top_k = 2;
    spec.width = 24;
    ASSERT_TRUE(PackTiny(spec, dir_.File("work"), pack_).ok());
  }

  CalibrationSpec Spec() const {
    CalibrationSpec spec;
    spec.window = 16;
    for (int i = 0; i < 100; ++i) spec.tokens.push_back((7 * i * i + 3 * i) % static_cast<int>(kVocab));
    spec.sensitivity_tokens = 40;
    spec.epochs = 1;
    spec.sparsity_tokens = 30;
    spec.quality_bounds = {0.01, 1000};
    return spec;
  }

  absl::StatusOr<CalibrationSummary> Run(const CalibrationSpec& spec, int cancel_after = 0,
                                         int* reports = nullptr) {
    auto engine = StartEngine(pack_, {.threads = 2, .delay_seed = delay_seed_});
    RETURN_IF_ERROR(engine.status());
    auto sink = std::make_shared<CollectingCalibrationSink>(cancel_after);
    RETURN_IF_ERROR(engine->engine->Calibrate(spec, sink));
    RETURN_IF_ERROR(sink->Await());
    if (reports != nullptr) *reports = sink->reports();
    return sink->summary();
  }

  std::map<std::string, std::string> ProfileBytes() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(pack_ + "/profile")) {
      if (entry.is_regular_file()) {
        files[entry.path().filename()] = *ReadFile(entry.path().string(), 1 << 30);
      }
    }
    return files;
  }

  TempDir dir_;
  const std::string pack_ = dir_.File("pack");
  uint64_t delay_seed_ = 0;  // not 0: an asynchronous device
};

TEST_F(CalibrateTest, WritesUsageThresholdsAndSensitivities) {
  const auto summary = Run(Spec());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(summary->resumed);
  const auto pack = Pack::Open(pack_);
  ASSERT_TRUE(pack.ok());
  const ModelConfig& config = (*pack)->config();
  const uint64_t positions = config.bos_ids.empty() ? 93 : 100;
  EXPECT_EQ(summary->tokens, positions);
  const auto usage = ReadUsage(summary->folder, config, (*pack)->manifest().provenance.source_digest);
  ASSERT_TRUE(usage.ok()) << usage.status();
  for (const auto& layer : usage->experts) {
    EXPECT_EQ(std::accumulate(layer.begin(), layer.end(), uint64_t{0}), 2 * positions);
  }
  const auto thresholds = ReadThresholds(summary->folder, config, (*pack)->model_id());
  ASSERT_TRUE(thresholds.ok()) << thresholds.status();
  EXPECT_GT(thresholds->PooledThreshold(Lead::kGate, 0.5), 0);
  const auto sensitivity =
      ReadSensitivity(summary->folder, config, (*pack)->manifest().provenance.source_digest);
  ASSERT_TRUE(sensitivity.ok()) << sensitivity.status();
  for (const LayerSensitivity& layer : sensitivity->layers) {
    EXPECT_NEAR(layer.measured, layer.loss_rise / layer.mean_square, 1e-9 * std::abs(layer.measured));
    EXPECT_GT(layer.mean_square, 0);
    EXPECT_LE(layer.mean_square, 0.25);  // the second of two experts has at most half
  }
  const auto cutoffs = ReadCutoffs(summary->folder, (*pack)->model_id());
  ASSERT_TRUE(cutoffs.ok()) << cutoffs.status();
  ASSERT_EQ(cutoffs->cutoffs.size(), 2u);
  EXPECT_LE(cutoffs->cutoffs[0].rise, 0.01);
  EXPECT_EQ(cutoffs->cutoffs[1].sparsity, 0.99);  // no model of random weights can get 1000 times worse
  const auto predictors = ReadPredictors(summary->folder, config, (*pack)->model_id());
  ASSERT_TRUE(predictors.ok()) << predictors.status();
  ASSERT_EQ(predictors->learned.size(), 2u);
  for (const LearnedPredictor& learned : predictors->learned) {
    EXPECT_GE(learned.net.precision, 0.25) << "two of four by chance are right half of the time";
  }
  EXPECT_TRUE(predictors->first_layer.has_value());
  const auto cache = ReadCacheProfile(summary->folder, config, (*pack)->manifest().provenance.source_digest);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ(cache->tokens, positions);
  for (size_t layer = 0; layer < cache->layers.size(); ++layer) {
    const LayerCacheProfile& use = cache->layers[layer];
    const std::vector<double> misses = use.MissCurve(cache->tokens);
    EXPECT_EQ(misses.front(), 2) << "an empty cache misses both experts of every token";
    EXPECT_LE(misses.back() * static_cast<double>(positions), 4) << "the first use of each of four experts";
    for (size_t depth = 0; depth < kCacheDepths; ++depth) {
      EXPECT_EQ(use.accuracy[depth] > 0, layer > depth) << layer << ", " << depth;
    }
    EXPECT_LE(use.squares.back(), 0.25) << "the second of two has at most half";
  }
  EXPECT_FALSE(std::filesystem::exists(summary->folder + "/.calibrate"));
}

TEST_F(CalibrateTest, ResumesAfterInterruptionToTheSameBits) {
  int reports = 0;
  ASSERT_TRUE(Run(Spec(), 0, &reports).ok());
  const auto expected = ProfileBytes();
  ASSERT_GT(reports, 8);
  for (int cancel_after = 2; cancel_after < reports; cancel_after += 3) {
    std::filesystem::remove_all(pack_ + "/profile");
    const absl::Status cancelled = Run(Spec(), cancel_after).status();
    ASSERT_EQ(cancelled.code(), absl::StatusCode::kCancelled) << cancel_after << ": " << cancelled;
    const auto summary = Run(Spec());
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(summary->resumed);
    EXPECT_EQ(ProfileBytes(), expected) << "interrupted after " << cancel_after << " reports";
  }
}

TEST_F(CalibrateTest, OtherArgumentsRestartTheCalibration) {
  ASSERT_EQ(Run(Spec(), 4).status().code(), absl::StatusCode::kCancelled);
  CalibrationSpec other = Spec();
  other.tokens.pop_back();
  const auto summary = Run(other);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(summary->resumed);
}

TEST_F(CalibrateTest, ImpossibleTextsAndWindowsAreRefused) {
  CalibrationSpec spec = Spec();
  spec.tokens = {1};
  EXPECT_EQ(Run(spec).status().code(), absl::StatusCode::kInvalidArgument);
  spec = Spec();
  spec.tokens[5] = static_cast<int32_t>(kVocab);
  EXPECT_EQ(Run(spec).status().code(), absl::StatusCode::kInvalidArgument);
  spec = Spec();
  spec.window = 1 << 20;
  const absl::Status status = Run(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1048576"));
}

// Dense first layers, shared experts, biases, scaled inputs, recurrent states: stages assume no model family.
class CalibrateFamilyTest : public CalibrateTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CalibrateFamilyTest, MeasuresEveryRoutedLayer) {
  const std::string pack_dir = dir_.File("family");
  ASSERT_TRUE(PackFolder(std::string("tests/data/tiny/") + GetParam(), pack_dir).ok());
  const auto pack = Pack::Open(pack_dir);
  ASSERT_TRUE(pack.ok()) << pack.status();
  const ModelConfig& config = (*pack)->config();
  auto engine = StartEngine(pack_dir, {.threads = 2});
  ASSERT_TRUE(engine.ok()) << engine.status();
  CalibrationSpec spec = Spec();
  for (int32_t& token : spec.tokens) token %= static_cast<int32_t>(config.vocab);
  auto sink = std::make_shared<CollectingCalibrationSink>();
  ASSERT_TRUE(engine->engine->Calibrate(spec, sink).ok());
  const absl::Status status = sink->Await();
  ASSERT_TRUE(status.ok()) << status;
  const std::string folder = sink->summary().folder;
  const std::string source = (*pack)->manifest().provenance.source_digest;
  const auto usage = ReadUsage(folder, config, source);
  const auto sensitivity = ReadSensitivity(folder, config, source);
  const auto thresholds = ReadThresholds(folder, config, (*pack)->model_id());
  ASSERT_TRUE(usage.ok() && sensitivity.ok() && thresholds.ok());
  EXPECT_TRUE(ReadPredictors(folder, config, (*pack)->model_id()).ok());
  const auto cache = ReadCacheProfile(folder, config, source);
  ASSERT_TRUE(cache.ok()) << cache.status();
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const MoeConfig& moe = config.layers[layer].moe;
    const auto& counts = usage->experts[layer];
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), uint64_t{0}), moe.top_k * usage->tokens);
    EXPECT_EQ(sensitivity->layers[layer].mean_square > 0, moe.experts > 0 && moe.top_k > 1) << layer;
    EXPECT_EQ(cache->layers[layer].accesses, (moe.experts > 0 ? moe.top_k : 0) * cache->tokens) << layer;
    for (uint32_t expert = 0; expert < moe.experts; ++expert) {
      EXPECT_GT(thresholds->Threshold(Lead::kGate, layer, expert, 0.9), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CalibrateFamilyTest,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "gemma4", "glm4_moe", "gpt_oss",
                                           "granitemoe", "llama4", "nemotron_h", "olmoe", "phimoe",
                                           "qwen2_moe", "qwen3_5_moe", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

// Measurements do not depend on when the device computes.
TEST_F(CalibrateTest, AsynchronousDeviceMeasuresTheSame) {
  ASSERT_TRUE(Run(Spec()).ok());
  const auto at_the_call = ProfileBytes();
  ASSERT_FALSE(at_the_call.empty());
  std::filesystem::remove_all(pack_ + "/profile");
  delay_seed_ = 3;
  const auto later = Run(Spec());
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(ProfileBytes(), at_the_call);
}

TEST_F(CalibrateTest, RequestsAreServedAndTheEngineEndsCleanly) {
  auto engine = StartEngine(pack_, {.threads = 2});
  ASSERT_TRUE(engine.ok()) << engine.status();
  auto sink = std::make_shared<CollectingCalibrationSink>();
  CalibrationSpec spec = Spec();
  spec.epochs = 1'000'000;  // longer than the test
  ASSERT_TRUE(engine->engine->Calibrate(spec, sink).ok());
  EXPECT_EQ(engine->engine->Calibrate(spec, sink).code(), absl::StatusCode::kFailedPrecondition);
  const auto ids = GenerateIds(engine->engine.get(), GreedySpec("r", {1, 2, 3}, 5));
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), 5u);
  engine->engine.reset();
  EXPECT_FALSE(sink->Await().ok());
}

}  // namespace
}  // namespace sluice::inferd
