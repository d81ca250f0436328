// A layer of the forward pass on device cuda: how many kernels it is.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/kv_layout.h"
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
constexpr uint32_t kContext = 512;

// One layer's weights and cache, and rows to run it on.
class LayerTest : public testing::Test {
 protected:
  void Start(uint64_t seed) {
    cuda_fake::ResetFake({.seed = seed});
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
  Rows NewRows(uint32_t cols, uint32_t rows = 1) {
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
    const std::vector<float> x = cuda_fake::RandomFloats(kHidden, 1);
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
    y_ = NewRows(kHidden, kTopK);
    qkv_ = {{Matrix(kCols, kHidden, 2), q_, {}},
            {Matrix(kKvCols, kHidden, 3), k_, {}},
            {Matrix(kKvCols, kHidden, 4), v_, {}}};
    o_ = {{Matrix(kHidden, kCols, 5), x_, {}}};
    router_ = {{Matrix(kExperts, kHidden, 6), logits_, {}}};
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
    for (uint32_t page = 0; page < kv_.pages; ++page) {
      pages_.push_back(page);
    }
  }
  // What the forward pass asks for, in its order, of a token at `position`.
  void RunLayer(uint32_t position) {
    const SequenceRows sequence = {0, 1, position, pages_};
    const absl::Span<const SequenceRows> sequences = {&sequence, 1};
    Check(queue().MatMul({.x = x_, .tokens = 1, .cols = kHidden, .norm = norm_, .parts = qkv_}));
    Check(queue().RopeKvWrite(
        {.q = q_, .k = k_, .v = v_, .tokens = 1, .heads = kHeads, .sequences = sequences, .kv = kv_}));
    Check(queue().Attention({.q = q_,
                             .tokens = 1,
                             .heads = kHeads,
                             .scale = 0.2f,
                             .sequences = sequences,
                             .kv = kv_,
                             .out = attended_}));
    Check(queue().MatMul({.x = attended_, .tokens = 1, .cols = kCols, .parts = o_, .residual = x_}));
    Check(queue().Norm({.x = x_, .tokens = 1, .cols = kHidden, .norm = norm_, .y = normed_}));
    Check(queue().MatMul({.x = normed_, .tokens = 1, .cols = kHidden, .parts = router_}));
    Check(queue().Router({.logits = logits_,
                          .tokens = 1,
                          .experts = kExperts,
                          .top_k = kTopK,
                          .ids = ids_,
                          .weights = weights_}));
    Check(queue().RoutedExperts({.x = normed_,
                                 .tokens = 1,
                                 .hidden = kHidden,
                                 .ids = ids_,
                                 .weights = weights_,
                                 .ranks = kTopK,
                                 .experts = experts_,
                                 .y = y_}));
    Check(queue().Combine({.y = y_,
                           .weights = weights_,
                           .tokens = 1,
                           .top_k = kTopK,
                           .hidden = kHidden,
                           .residual = x_,
                           .out = x_}));
  }
  std::vector<float> Residual() {
    std::vector<float> values(kHidden);
    Check(queue().Download(x_.base, 4 * kHidden, values.data()));
    Check(queue().Wait(queue().Record()));
    return values;
  }
  static void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  std::unique_ptr<Backend> backend_;
  Rows x_, q_, k_, v_, attended_, normed_, logits_, y_;
  NormSpec norm_;
  BufferRef ids_, weights_;
  std::vector<MatMulPart> qkv_, o_, router_;
  std::vector<ExpertWork> experts_;
  KvView kv_;
  std::vector<uint32_t> pages_;
};

TEST_F(LayerTest, ATokenOfAResidentLayerTakesAtMostTwelveKernels) {
  Start(0);
  RunLayer(300);  // two spans of attention
  Residual();
  const uint64_t before = cuda_fake::CountersOfFake().launches;
  RunLayer(301);
  Residual();
  const uint64_t kernels = cuda_fake::CountersOfFake().launches - before;
  EXPECT_LE(kernels, 12u);
  EXPECT_GE(kernels, 9u) << "every operation is a kernel";
}

}  // namespace
}  // namespace sluice
