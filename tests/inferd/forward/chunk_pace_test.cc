// The rows of a prefill step with a modelled disk and device: steps settle where reading and computing take
// the same time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "inferd/forward/scheduler.h"

namespace sluice::inferd {
namespace {

// A step that computes each row in `per_row` and reads `bytes` at `rate`, overlapped with computing.
struct Machine {
  double per_row = 0;
  double rate = 1;
  uint64_t bytes = 0;

  void Step(ChunkPace* pace) const {
    const double computing = per_row * pace->rows();
    const double reading = static_cast<double>(bytes) / rate;
    pace->Note(pace->rows(), std::max(computing, reading), std::max(0.0, reading - computing), bytes);
  }
};

TEST(ChunkPaceTest, GrowsUntilReadingAndComputingAreEqual) {
  ChunkPace pace(512, 4096);
  const Machine machine{0.001, 1e9, 1'500'000'000};
  EXPECT_EQ(pace.rows(), 512u);
  for (int step = 0; step < 4; ++step) machine.Step(&pace);
  EXPECT_NEAR(pace.rows(), 1500, ChunkPace::kQuantum);
  for (int step = 0; step < 50; ++step) {
    machine.Step(&pace);
    EXPECT_NEAR(pace.rows(), 1500, ChunkPace::kQuantum) << "it stays there, step " << step;
  }
}

TEST(ChunkPaceTest, NeverExceedsTheMaximumNorDoublesTwice) {
  ChunkPace pace(512, 2000);
  const Machine machine{0.001, 1e9, 100'000'000'000};
  machine.Step(&pace);
  EXPECT_EQ(pace.rows(), 1024u);
  for (int step = 0; step < 4; ++step) machine.Step(&pace);
  EXPECT_EQ(pace.rows(), 2000u);
}

TEST(ChunkPaceTest, StaysAtTheMinimumIfNothingIsRead) {
  ChunkPace pace(512, 2048);
  Machine{0.001, 1e9, 5'000'000'000}.Step(&pace);
  EXPECT_EQ(pace.rows(), 1024u);
  Machine{0.001, 1e9, 0}.Step(&pace);
  EXPECT_EQ(pace.rows(), 512u);
}

TEST(ChunkPaceTest, StaysSmallIfComputeBound) {
  ChunkPace pace(512, 2048);
  const Machine machine{0.01, 1e9, 1'000'000'000};
  for (int step = 0; step < 10; ++step) machine.Step(&pace);
  EXPECT_EQ(pace.rows(), 512u);
}

TEST(ChunkPaceTest, ShortStepsAndOutliersAreIgnored) {
  ChunkPace pace(512, 2048);
  pace.Note(100, 10, 9, 1'000'000'000);
  pace.Note(512, 0, 0, 0);
  pace.Note(512, 1, 1, 1'000'000'000);
  EXPECT_EQ(pace.rows(), 512u);
}

TEST(ScanRowsTest, SoManyRowsUseThreeQuartersOfTheExperts) {
  ModelConfig config;
  EXPECT_EQ(ScanRows(config), 0u);
  config.layers.resize(2);
  config.layers[1].moe.experts = 128;
  config.layers[1].moe.top_k = 8;
  const uint32_t rows = ScanRows(config);
  EXPECT_GE(1 - std::pow(1 - 8.0 / 128, rows), kScannedShare);
  EXPECT_LT(1 - std::pow(1 - 8.0 / 128, rows - 1), kScannedShare);
  config.layers[0].moe.experts = 8;
  config.layers[0].moe.top_k = 8;
  EXPECT_EQ(ScanRows(config), rows) << "the layer that needs most decides";
}

}  // namespace
}  // namespace sluice::inferd
