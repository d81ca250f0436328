// Recorded scores by sequence and position, and a router's choice under them.
#include "inferd/policy/replay_routing.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"

namespace sluice::inferd {
namespace {

struct Row {
  uint64_t sequence;
  uint32_t position;
  std::vector<float> p;
};

// One layer's record; every row chose expert 0, which is not used here.
TraceLayer LayerOf(const std::vector<Row>& rows) {
  TraceLayer layer;
  layer.experts = 4;
  layer.top_k = 2;
  for (size_t i = 0; i < rows.size(); ++i) {
    layer.Add(i, 0, {0u, 1u});
    layer.sequences.push_back(rows[i].sequence);
    layer.positions.push_back(rows[i].position);
    layer.scores.insert(layer.scores.end(), rows[i].p.begin(), rows[i].p.end());
  }
  return layer;
}

ModelConfig ConfigOf(size_t layers) {
  ModelConfig config;
  config.layers.resize(layers);
  for (LayerConfig& layer : config.layers) {
    layer.moe.experts = 4;
    layer.moe.top_k = 2;
  }
  return config;
}

const std::vector<float> kA = {.4f, .3f, .2f, .1f};
const std::vector<float> kB = {.1f, .4f, .3f, .2f};
const std::vector<float> kC = {.2f, .1f, .4f, .3f};
const std::vector<float> kD = {.3f, .2f, .1f, .4f};

// Two sequences that ran in parallel: 7 at positions 0 and 1, 9 from position 5 on.
std::vector<Row> TwoSequences() { return {{9, 5, kC}, {7, 0, kA}, {7, 1, kB}, {9, 6, kD}}; }

void ExpectScores(absl::Span<const float> logits, const std::vector<float>& p) {
  ASSERT_EQ(logits.size(), p.size());
  for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(std::exp(logits[i]), p[i], 1e-6) << i;
}

TEST(RecordedScoresTest, SequencesRepeatInOrder) {
  const auto scores = RecordedScores::Create({{LayerOf(TwoSequences())}}, "trace", ConfigOf(1));
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->sequences(), 2u);
  ExpectScores(scores->Logits(0, 0, 0), kA);
  ExpectScores(scores->Logits(0, 0, 1), kB);
  ExpectScores(scores->Logits(0, 0, 2), kA);
  ExpectScores(scores->Logits(0, 1, 5), kC);
  ExpectScores(scores->Logits(0, 1, 6), kD);
  ExpectScores(scores->Logits(0, 1, 7), kC);
  ExpectScores(scores->Logits(0, 1, 1), kD);  // before the recorded positions
  ExpectScores(scores->Logits(0, 2, 1), kB);  // the first sequence again
}

TEST(RecordedScoresTest, LastRunOfARowCountsAndAGapEndsASequence) {
  const auto scores = RecordedScores::Create({{LayerOf({{1, 0, kA}, {1, 1, kB}, {1, 1, kC}, {1, 9, kD}})}},
                                             "trace", ConfigOf(1));
  ASSERT_TRUE(scores.ok()) << scores.status();
  ExpectScores(scores->Logits(0, 0, 1), kC);
  ExpectScores(scores->Logits(0, 0, 2), kA);
}

TEST(RecordedScoresTest, ZeroScoreHasAFiniteLogit) {
  const auto scores = RecordedScores::Create({{LayerOf({{1, 0, {1, 0, 0, 0}}})}}, "trace", ConfigOf(1));
  ASSERT_TRUE(scores.ok()) << scores.status();
  for (const float logit : scores->Logits(0, 0, 0)) EXPECT_TRUE(std::isfinite(logit));
}

TEST(RecordedScoresTest, TruncatedStepUsesTheCommonRows) {
  std::vector<Row> shorter = TwoSequences();
  shorter.pop_back();
  const auto scores =
      RecordedScores::Create({{LayerOf(TwoSequences()), LayerOf(shorter)}}, "trace", ConfigOf(2));
  ASSERT_TRUE(scores.ok()) << scores.status();
  ExpectScores(scores->Logits(1, 1, 6), kC);
}

TEST(RecordedScoresTest, TracesOfOtherModelsAreRefusedByName) {
  ModelConfig wide = ConfigOf(1);
  wide.layers[0].moe.experts = 8;
  ModelConfig dense = ConfigOf(1);
  dense.layers[0].moe = {};
  std::vector<Row> others = TwoSequences();
  std::swap(others[0], others[1]);
  const std::pair<Trace, ModelConfig> cases[] = {{{{LayerOf(TwoSequences())}}, ConfigOf(2)},
                                                 {{{LayerOf(TwoSequences())}}, wide},
                                                 {{{LayerOf(TwoSequences())}}, dense},
                                                 {{{LayerOf({})}}, ConfigOf(1)},
                                                 {{{LayerOf(TwoSequences()), LayerOf(others)}}, ConfigOf(2)}};
  for (const auto& [trace, config] : cases) {
    const absl::Status status = RecordedScores::Create(trace, "the trace", config).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), "the trace: ")) << status;
  }
}

class ReplayRoutingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    BackendLimits limits;
    limits.max_tokens = 4;
    limits.max_context = 8;
    limits.experts = 4;
    limits.top_k = 2;
    backend_ = std::make_unique<ReferenceBackend>(limits);
    args_.tokens = 1;
    args_.experts = 4;
    args_.top_k = 2;
    args_.logits = {{*backend_->Allocate(64, BufferKind::kActivations), 0}, 4};
    args_.ids = {*backend_->Allocate(16, BufferKind::kStaging), 0};
    args_.weights = {*backend_->Allocate(16, BufferKind::kStaging), 0};
  }

  // The experts of one row whose router prefers 3, then 2.
  std::vector<int32_t> Choose(ReplayRouting* routing, uint64_t number, uint32_t position) {
    const float own[] = {0, 1, 2, 3};
    EXPECT_TRUE(backend_->queue().Upload(own, sizeof(own), args_.logits.base).ok());
    StepBatch batch(4, 1);
    batch.Clear(1);
    batch.Add({1}, {.first_position = position, .number = number});
    const absl::Status status = routing->Choose({0, args_, nullptr, &batch}, &backend_->queue());
    EXPECT_TRUE(status.ok()) << status;
    const auto* ids = reinterpret_cast<const int32_t*>(backend_->HostRead(args_.ids, 8));
    return {ids, ids + 2};
  }

  std::unique_ptr<Backend> backend_;
  RouterArgs args_;
};

TEST_F(ReplayRoutingTest, OnlyNumberedSequencesRouteAsRecorded) {
  auto routing = ReplayRouting::Create({{LayerOf(TwoSequences())}}, "trace", ConfigOf(1),
                                       std::make_unique<TopKRouting>());
  ASSERT_TRUE(routing.ok()) << routing.status();
  EXPECT_EQ(Choose(routing->get(), 0, 0), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(Choose(routing->get(), 40, 0), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Choose(routing->get(), 40, 1), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Choose(routing->get(), 41, 6), (std::vector<int32_t>{3, 0}));
  EXPECT_EQ(Choose(routing->get(), 42, 0), (std::vector<int32_t>{0, 1}));
}

TEST_F(ReplayRoutingTest, RoutersThatDoNotWeighBySoftmaxAreRefused) {
  ModelConfig config = ConfigOf(1);
  config.layers[0].moe.router = RouterKind::kSigmoidTopK;
  EXPECT_TRUE(absl::IsUnimplemented(
      ReplayRouting::Create({{LayerOf(TwoSequences())}}, "trace", config, std::make_unique<TopKRouting>())
          .status()));
}

}  // namespace
}  // namespace sluice::inferd
