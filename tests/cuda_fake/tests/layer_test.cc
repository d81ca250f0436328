// A layer of the forward pass on device cuda: how many kernels it is, and that it computes the same bits
// where steps are handed over as graphs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops.h"
#include "pack/row_layout.h"
#include "tests/cuda_fake/fake_cuda.h"
#include "tests/cuda_fake/tests/kernels_testing.h"

namespace sluice {
namespace {

constexpr uint32_t kHidden = 128;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeadDim = 32;
constexpr uint32_t kCols = kHeads * kHeadDim;
constexpr uint32_t kKvCols = kKvHeads * kHeadDim;
constexpr uint32_t kExperts = 8;
constexpr uint32_t kWidth = 64;
constexpr uint32_t kTopK = 2;
constexpr uint32_t kContext = 2048;
constexpr uint32_t kMaxTokens = 2;

// One layer's weights and cache, and rows to run it on.
class LayerTest : public testing::Test {
 protected:
  void Start(const cuda_fake::FakeOptions& options) {
    backend_.reset();
    EXPECT_TRUE(cuda_fake::TakeReports().empty());
    cuda_fake::ResetFake(options);
    BackendLimits limits;
    limits.max_tokens = 4;
    limits.max_sequences = 1;
    limits.max_cols = kHidden;
    limits.hidden = kHidden;
    limits.heads = kHeads;
    limits.head_dim = kHeadDim;
    limits.max_context = kContext;
    limits.experts = kExperts;
    limits.top_k = kTopK;
    limits.expert_width = kWidth;
    limits.layers = layers_;
    auto backend = CreateCudaBackend(limits);
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    MakeLayer();
  }
  void TearDown() override {
    backend_.reset();
    EXPECT_TRUE(cuda_fake::TakeReports().empty());
  }

  Queue& queue() { return backend_->queue(); }
  BufferRef New(const void* bytes, uint64_t size) {
    const BufferRef ref{*backend_->Allocate(size, BufferKind::kActivations), 0};
    EXPECT_TRUE(queue().Upload(bytes, size, ref).ok());
    return ref;
  }
  Rows NewRows(uint32_t cols, uint32_t rows = kMaxTokens) {
    const std::vector<float> zeros(uint64_t{cols} * rows);
    return {New(zeros.data(), 4 * zeros.size()), cols};
  }
  WeightView Matrix(uint32_t rows, uint32_t cols, uint64_t seed) {
    WeightView view;
    view.encoding = MakeDescriptor(Encoding::kQ4);
    view.rows = rows;
    view.cols = cols;
    const std::vector<uint8_t> bytes = cuda_fake::RandomQ4Rows(rows, cols, &view.stride, seed);
    view.base = New(bytes.data(), bytes.size());
    return view;
  }
  void MakeLayer() {
    const std::vector<float> x = cuda_fake::RandomFloats(kMaxTokens * kHidden, 1);
    x_ = {New(x.data(), 4 * x.size()), kHidden};
    const std::vector<float> weight(kHidden, 1.0f);
    norm_.weight = New(weight.data(), 4 * weight.size());
    q_ = NewRows(kCols);
    k_ = NewRows(kKvCols);
    v_ = NewRows(kKvCols);
    attended_ = NewRows(kCols);
    normed_ = NewRows(kHidden);
    logits_ = NewRows(kExperts);
    weights_ = NewRows(kTopK).base;
    ids_ = NewRows(kTopK).base;
    y_ = NewRows(kHidden, kMaxTokens * kTopK);
    qkv_ = {{Matrix(kCols, kHidden, 2), q_, {}},
            {Matrix(kKvCols, kHidden, 3), k_, {}},
            {Matrix(kKvCols, kHidden, 4), v_, {}}};
    o_ = {{Matrix(kHidden, kCols, 5), x_, {}}};
    router_ = {{Matrix(kExperts, kHidden, 6), logits_, {}}};
    experts_.clear();
    for (uint32_t e = 0; e < kExperts; ++e) {
      ExpertWork expert;
      expert.up = Matrix(kWidth, kHidden, 10 + e);
      expert.gate = Matrix(kWidth, kHidden, 20 + e);
      expert.down = Matrix(kWidth, kHidden, 30 + e);
      experts_.push_back(expert);
    }
    kv_.kv_heads = kKvHeads;
    kv_.head_dim = kHeadDim;
    kv_.pages = kContext / kPageTokens;
    kv_.page_stride = KvPageBytes(kv_.type, kKvHeads, kHeadDim);
    kv_.k = {*backend_->Allocate(kv_.pages * kv_.page_stride, BufferKind::kActivations), 0};
    kv_.v = {*backend_->Allocate(kv_.pages * kv_.page_stride, BufferKind::kActivations), 0};
    pages_.clear();
    for (uint32_t page = 0; page < kv_.pages; ++page) {
      pages_.push_back(page);
    }
  }
  // Enqueues the forward pass's operations, in its order, for tokens from `position` on.
  void RunLayer(uint32_t position, uint32_t tokens = 1) {
    const SequenceRows sequence = {0, tokens, position, pages_};
    const absl::Span<const SequenceRows> sequences = {&sequence, 1};
    Check(queue().MatMul({.x = x_, .tokens = tokens, .cols = kHidden, .norm = norm_, .parts = qkv_}));
    Check(queue().RopeKvWrite(
        {.q = q_, .k = k_, .v = v_, .tokens = tokens, .heads = kHeads, .sequences = sequences, .kv = kv_}));
    Check(queue().Attention({.q = q_,
                             .tokens = tokens,
                             .heads = kHeads,
                             .scale = 0.2f,
                             .sequences = sequences,
                             .kv = kv_,
                             .out = attended_}));
    Check(queue().MatMul({.x = attended_, .tokens = tokens, .cols = kCols, .parts = o_, .residual = x_}));
    Check(queue().Norm({.x = x_, .tokens = tokens, .cols = kHidden, .norm = norm_, .y = normed_}));
    Check(queue().MatMul({.x = normed_, .tokens = tokens, .cols = kHidden, .parts = router_}));
    Check(queue().Router({.logits = logits_,
                          .tokens = tokens,
                          .experts = kExperts,
                          .top_k = kTopK,
                          .ids = ids_,
                          .weights = weights_}));
    Check(queue().RoutedExperts({.x = normed_,
                                 .tokens = tokens,
                                 .hidden = kHidden,
                                 .ids = ids_,
                                 .weights = weights_,
                                 .ranks = kTopK,
                                 .experts = experts_,
                                 .y = y_}));
    Check(queue().Combine({.y = y_,
                           .weights = weights_,
                           .tokens = tokens,
                           .top_k = kTopK,
                           .hidden = kHidden,
                           .residual = x_,
                           .out = x_}));
  }
  std::vector<float> Residual() {
    std::vector<float> values(kMaxTokens * kHidden);
    Check(queue().Download(x_.base, 4 * values.size(), values.data()));
    Check(queue().Wait(queue().Record()));
    return values;
  }
  static void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  uint32_t layers_ = 4;
  std::unique_ptr<Backend> backend_;
  Rows x_, q_, k_, v_, attended_, normed_, logits_, y_;
  NormSpec norm_;
  BufferRef ids_, weights_;
  std::vector<MatMulPart> qkv_, o_, router_;
  std::vector<ExpertWork> experts_;
  KvView kv_;
  std::vector<uint32_t> pages_;
};

TEST_F(LayerTest, ResidentLayerTakesAtMost12KernelsAToken) {
  Start({});
  RunLayer(300);  // two spans of attention
  Residual();
  const uint64_t before = cuda_fake::CountersOfFake().launches;
  RunLayer(301);
  Residual();
  const uint64_t kernels = cuda_fake::CountersOfFake().launches - before;
  EXPECT_LE(kernels, 12u);
  EXPECT_GE(kernels, 9u) << "every operation is a kernel";
}

// A step of two layers: its residual, by itself or handed over as a graph.
struct Step {
  uint32_t position = 0;
  uint32_t tokens = 1;
  bool swaps = false;  // an expert has another place from here on
};

class LayerGraphTest : public LayerTest {
 protected:
  std::vector<float> Run(const Step& step, bool graph) {
    if (step.swaps) {
      std::swap(experts_[0], experts_[1]);
    }
    if (graph) {
      Check(queue().BeginGraph());
    }
    RunLayer(step.position, step.tokens);
    RunLayer(step.position, step.tokens);
    Check(queue().EndGraph());
    return Residual();
  }
  BackendCounters Counters() { return backend_->Counters(); }
};

// Positions cross spans, so that attention's launches change; there are two tokens for a while; an expert
// comes to lie elsewhere.
TEST_F(LayerGraphTest, StepsHandedOverAsGraphsComputeTheSameBits) {
  std::vector<Step> steps;
  for (uint32_t i = 0; i < 6; ++i) {
    steps.push_back({253 + i});
  }
  for (uint32_t i = 0; i < 3; ++i) {
    steps.push_back({260 + 2 * i, 2});
  }
  for (uint32_t i = 0; i < 4; ++i) {
    steps.push_back({270 + i, 1, i == 1 || i == 2});
  }
  for (uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    Start({.seed = seed});
    std::vector<std::vector<float>> expected;
    for (const Step& step : steps) {
      expected.push_back(Run(step, /*graph=*/false));
    }
    EXPECT_EQ(Counters().graph_launches, 0u);
    const uint64_t kernels = Counters().kernels;
    Start({.seed = seed});
    for (size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(Run(steps[i], /*graph=*/true), expected[i]) << "step " << i;
    }
    EXPECT_EQ(Counters().kernels, kernels);
    EXPECT_GE(Counters().graph_launches, 6u);
  }
}

TEST_F(LayerGraphTest, RepeatedStepIsOneLaunchAndSendsPositions) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    Start({.seed = seed});
    for (uint32_t i = 0; i < 2; ++i) {
      Run({300 + i}, true);
    }
    const BackendCounters before = Counters();
    const cuda_fake::FakeCounters fake = cuda_fake::CountersOfFake();
    constexpr uint32_t kSteps = 8;
    for (uint32_t i = 0; i < kSteps; ++i) {
      Run({302 + i}, true);
    }
    const BackendCounters after = Counters();
    EXPECT_EQ(after.graph_launches - before.graph_launches, kSteps);
    EXPECT_EQ(after.graphs_made, before.graphs_made);
    EXPECT_EQ(after.graphs_updated, before.graphs_updated);
    EXPECT_EQ(after.kernels - before.kernels, kSteps * 2 * 11);
    const cuda_fake::FakeCounters now = cuda_fake::CountersOfFake();
    EXPECT_EQ(now.graph_launches - fake.graph_launches, kSteps);
    EXPECT_EQ(now.launches - fake.launches, after.kernels - before.kernels);
    EXPECT_EQ(now.copies - fake.copies, 2 * kSteps) << "positions, and what the test reads";
    const uint64_t read = kSteps * kMaxTokens * kHidden * sizeof(float);
    // Two layers' places twice, with pages between them.
    EXPECT_LE(now.copied_bytes - fake.copied_bytes - read, kSteps * 4 * (32 + 4 * pages_.size()));
  }
}

// Each span more is another launch; of more kinds than are kept graphs are changed, not made.
TEST_F(LayerGraphTest, AGrowingContextChangesGraphsInPlace) {
  Start({.seed = 2});
  for (uint32_t span = 1; span < 8; ++span) {
    for (uint32_t i = 0; i < 3; ++i) {
      Run({256 * span + i}, true);
    }
  }
  EXPECT_EQ(Counters().graphs_made, 4u);
  EXPECT_EQ(Counters().graphs_updated, 3u);
  EXPECT_EQ(Counters().graph_launches, 14u);
}

TEST_F(LayerGraphTest, PointsThatAreKeptAreDoneInTheEndAndHaveTimes) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Start({.seed = seed});
    Check(queue().BeginGraph());
    Check(queue().BeginGraph());
    RunLayer(10);
    const Event middle = queue().Record();
    RunLayer(11);
    const Event end = queue().Record();
    while (!queue().IsDone(middle)) {
    }
    Check(queue().Wait(end));
    const absl::StatusOr<double> seconds = queue().Seconds(middle, end);
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_EQ(*seconds, 0) << "they went together";
    const double took = Counters().kernel_seconds;
    EXPECT_GT(took, 0);
    RunLayer(12);  // kept, as nobody has ended it
    const Event last = queue().Record();
    EXPECT_EQ(Counters().kernel_seconds, took);
    Check(queue().EndGraph());
    Check(queue().EndGraph());
    Check(queue().Wait(last));
    EXPECT_GT(*queue().Seconds(end, last), 0);
    EXPECT_GT(Counters().kernel_seconds, took);
  }
}

// More points than have times, more tables than have room: what is kept goes in pieces.
TEST_F(LayerGraphTest, MoreThanIsKeptAtOnceGoesInPieces) {
  layers_ = 1;
  std::vector<std::vector<float>> expected;
  for (const bool graph : {false, true}) {
    Start({.seed = 2});
    for (uint32_t step = 0; step < 3; ++step) {
      if (graph) {
        Check(queue().BeginGraph());
      }
      for (uint32_t layer = 0; layer < 12; ++layer) {
        RunLayer(step);
        for (uint32_t point = 0; point < 30; ++point) {
          queue().Record();
        }
      }
      Check(queue().EndGraph());
      if (graph) {
        EXPECT_EQ(Residual(), expected[step]) << "step " << step;
      } else {
        expected.push_back(Residual());
      }
    }
  }
  EXPECT_GT(Counters().graph_launches, 3u);
}

// Memory that a graph's kernel reads is gone when the graph is launched again.
TEST_F(LayerGraphTest, AnErrorOfAGraphIsTheWaits) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Start({.seed = seed});
    std::vector<float> weight(kHidden, 1.0f);
    const absl::StatusOr<BufferId> imported =
        backend_->Import({reinterpret_cast<const std::byte*>(weight.data()), 4 * weight.size()});
    ASSERT_TRUE(imported.ok()) << imported.status();
    norm_.weight = {*imported, 0};
    Run({1}, true);
    Run({2}, true);
    Check(queue().BeginGraph());
    RunLayer(3);
    RunLayer(3);
    const Event event = queue().Record();
    ASSERT_EQ(cudaHostUnregister(weight.data()), cudaSuccess);
    const absl::Status status = queue().Wait(event);
    EXPECT_EQ(Counters().graph_launches, 2u);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(queue().Wait(event), status) << "it sticks";
    backend_.reset();
    EXPECT_FALSE(cuda_fake::TakeReports().empty());
  }
}

}  // namespace
}  // namespace sluice
