// Tests that the step loop of the host backend allocates nothing: operator new is counted while whole layers
// run.
#include <atomic>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace {

std::atomic<uint64_t> allocations{0};

void* CountedAllocate(std::size_t bytes) {
  allocations.fetch_add(1);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return CountedAllocate(bytes); }
void* operator new[](std::size_t bytes) { return CountedAllocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace sluice {
namespace {

constexpr uint32_t kHidden = 128;
constexpr uint32_t kWidth = 96;
constexpr uint32_t kExperts = 8;
constexpr uint32_t kTopK = 2;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kHeadDim = 32;
constexpr uint32_t kMaxTokens = 96;

// A layer with everything it needs, in buffers made once.
class Layer {
 public:
  Layer(const BackendCase& which, const EncodingDescriptor& d) : bench_(which) {
    Random random(1);
    for (uint32_t part = 0; part < 3; ++part) {
      const uint32_t rows = part == 0 ? kHeads * kHeadDim : 2 * kHeadDim;
      qkv_[part] = {bench_.PutMatrix(random.Matrix(d, rows, kHidden)), bench_.NewRows(kMaxTokens, rows), {}};
    }
    x_ = {bench_.PutWritable(random.Normals(kMaxTokens * kHidden)), kHidden};
    normed_ = bench_.NewRows(kMaxTokens, kHidden);
    attention_ = bench_.NewRows(kMaxTokens, kHeads * kHeadDim);
    out_ = {bench_.PutMatrix(random.Matrix(d, kHidden, kHeads * kHeadDim)), x_, {}};
    norm_ = {bench_.PutFloats(random.Normals(kHidden)), 1e-5f};
    router_ = {bench_.PutMatrix(random.Matrix(MakeDescriptor(Encoding::kBf16), kExperts, kHidden)),
               bench_.NewRows(kMaxTokens, kExperts),
               {}};
    ids_ = bench_.NewWords(kMaxTokens * kTopK);
    weights_ = bench_.NewWords(kMaxTokens * kTopK);
    slots_ = bench_.NewRows(kMaxTokens * kTopK, kHidden);
    best_ = bench_.NewWords(kMaxTokens * 4);
    values_ = bench_.NewWords(kMaxTokens * 4);
    const uint64_t page_bytes = KvPageBytes(KvType::kF16, 2, kHeadDim);
    kv_ = {KvType::kF16,
           bench_.NewWords(16 * page_bytes / 4),
           bench_.NewWords(16 * page_bytes / 4),
           page_bytes,
           16,
           2,
           kHeadDim};
    for (uint32_t e = 0; e < kExperts; ++e) {
      work_[e].up = bench_.PutMatrix(random.Matrix(d, kWidth, kHidden));
      work_[e].gate = bench_.PutMatrix(random.Matrix(d, kWidth, kHidden));
      work_[e].down = bench_.PutMatrix(random.Matrix(d, kWidth, kHidden));
    }
  }

  // One layer over `tokens` rows of one sequence, spread evenly over the experts.
  absl::Status Step(uint32_t tokens, uint32_t position) {
    Queue& queue = bench_.queue();
    bench_.backend().BeginStep();
    MatMulArgs qkv{x_, tokens, kHidden, {}, norm_, qkv_, {}};
    absl::Status status = queue.MatMul(qkv);
    const SequenceRows sequence{0, tokens, position, pages_};
    RopeKvWriteArgs rope{.q = qkv_[0].y,
                         .k = qkv_[1].y,
                         .v = qkv_[2].y,
                         .tokens = tokens,
                         .heads = kHeads,
                         .sequences = {&sequence, 1},
                         .kv = kv_};
    status.Update(queue.RopeKvWrite(rope));
    status.Update(queue.Attention({.q = qkv_[0].y,
                                   .tokens = tokens,
                                   .heads = kHeads,
                                   .scale = 0.2f,
                                   .sequences = {&sequence, 1},
                                   .kv = kv_,
                                   .out = attention_}));
    MatMulArgs out{attention_, tokens, kHeads * kHeadDim, {}, {}, {&out_, 1}, x_};
    status.Update(queue.MatMul(out));
    status.Update(queue.Norm({x_, tokens, kHidden, norm_, normed_}));
    status.Update(queue.MatMul({normed_, tokens, kHidden, {}, {}, {&router_, 1}, {}}));
    status.Update(queue.Router({.logits = router_.y,
                                .tokens = tokens,
                                .experts = kExperts,
                                .top_k = kTopK,
                                .ids = ids_,
                                .weights = weights_}));
    uint32_t used = 0;
    for (uint32_t e = 0; e < kExperts; ++e) {
      uint32_t n = 0;
      for (uint32_t t = 0; t < tokens; ++t) {
        if (t % (kExperts / kTopK) == e / kTopK) {
          rows_[e][n] = t;
          slot_[e][n++] = t * kTopK + e % kTopK;
        }
      }
      if (n > 0) {
        work_[used] = work_[e];
        work_[used].rows = {rows_[e], n};
        work_[used].slots = {slot_[e], n};
        ++used;
      }
    }
    status.Update(queue.MoeExperts({.x = normed_,
                                    .tokens = tokens,
                                    .hidden = kHidden,
                                    .experts = {work_, used},
                                    .y = slots_,
                                    .slots = kMaxTokens * kTopK}));
    status.Update(queue.Combine({slots_, weights_, tokens, kTopK, kHidden, x_, x_}));
    status.Update(queue.TopLogits({x_, tokens, kHidden, 4, best_, values_, {}}));
    bench_.backend().EndStep();
    return status;
  }

 private:
  OpBench bench_;
  MatMulPart qkv_[3];
  MatMulPart out_, router_;
  Rows x_, normed_, attention_, slots_;
  NormSpec norm_;
  BufferRef ids_, weights_, best_, values_;
  KvView kv_;
  ExpertWork work_[kExperts];
  uint32_t rows_[kExperts][kMaxTokens];
  uint32_t slot_[kExperts][kMaxTokens];
  const uint32_t pages_[16] = {3, 1, 2, 0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};

// The operations that only some families need, in buffers made once.
class FamilyOps {
 public:
  FamilyOps(const BackendCase& which, const EncodingDescriptor& d) : bench_(which) {
    Random random(2);
    rows_ = {bench_.PutWritable(random.Normals(kMaxTokens * kCols)), kCols};
    latent_ = {bench_.PutWritable(random.Normals(kMaxTokens * kCols)), kCols};
    out_ = bench_.NewRows(2 * kMaxTokens, kCols);
    more_ = bench_.NewRows(kMaxTokens, kCols);
    floats_ = bench_.PutFloats(random.Normals(4 * kCols));
    ids_ = bench_.NewWords(kMaxTokens * 3);
    weights_ = bench_.NewWords(kMaxTokens * 3);
    heads_ = bench_.PutMatrix(random.Matrix(d, kHeads * 24, 16));
    const uint64_t page_bytes = KvPairBytes(KvType::kF16, 1, kHeadDim, 24);
    const BufferRef pages = bench_.NewWords(4 * page_bytes / 4);
    kv_ = {KvType::kF16, pages, pages, page_bytes, 4, 1, kHeadDim, 24};
    const uint64_t entry_bytes = EntryPageBytes(KvType::kF16, kHeadDim, 4);
    entries_ = {KvType::kF16, bench_.NewWords(4 * entry_bytes / 4), entry_bytes, 4, kHeadDim, 4};
    state_.slot_stride = 64 * 64;
    state_.slots = 2;
    state_.base = bench_.PutWritable(std::vector<float>(2 * 64 * 16));
  }

  absl::Status Step(uint32_t tokens, uint32_t position) {
    Queue& queue = bench_.queue();
    bench_.backend().BeginStep();
    const SequenceRows sequence{0, tokens, position, pages_};
    absl::Status status =
        queue.Norm({rows_, tokens, kCols, {floats_, 1e-5f, NormKind::kLayer, floats_}, more_});
    status.Update(queue.OutputGate({more_, rows_, tokens, kCols}));
    status.Update(queue.OutputGate({more_, rows_, tokens, kCols, kHeadDim, GateActivation::kSoftplus}));
    status.Update(queue.ScaleRows({rows_, floats_, tokens, 2, kCols, out_}));
    status.Update(queue.HeadMatMul({rows_, 16, tokens, kHeads, heads_, out_, kHeadDim}));
    status.Update(queue.LatentKvWrite({.q = rows_,
                                       .nope_dim = 16,
                                       .latent = latent_,
                                       .q_out = out_,
                                       .tokens = tokens,
                                       .heads = kHeads,
                                       .kv_rank = 24,
                                       .norm = {floats_},
                                       .rope_table = floats_,
                                       .rope_positions = 64,
                                       .rope_dims = 8,
                                       .sequences = {&sequence, 1},
                                       .kv = kv_}));
    status.Update(queue.Attention({.q = out_,
                                   .tokens = tokens,
                                   .heads = kHeads,
                                   .scale = 0.2f,
                                   .chunk = 40,
                                   .sinks = floats_,
                                   .sequences = {&sequence, 1},
                                   .kv = kv_,
                                   .out = more_}));
    KvView keys = kv_;
    keys.value_dim = 0;
    const ChosenBlocks chosen = {ids_, 1, 2, 1};
    status.Update(queue.IndexSelect({.q = rows_,
                                     .weights = latent_,
                                     .tokens = tokens,
                                     .heads = 2,
                                     .sequences = {&sequence, 1},
                                     .keys = keys,
                                     .chosen = chosen}));
    status.Update(queue.Attention({.q = out_,
                                   .tokens = tokens,
                                   .heads = kHeads,
                                   .scale = 0.2f,
                                   .chosen = chosen,
                                   .sequences = {&sequence, 1},
                                   .kv = kv_,
                                   .out = more_}));
    for (const RouterKind kind :
         {RouterKind::kSoftmaxTopK, RouterKind::kTopKSoftmax, RouterKind::kSigmoidTopK,
          RouterKind::kSparseMixer, RouterKind::kSigmoidInput}) {
      const bool scored = kind == RouterKind::kSoftmaxTopK || kind == RouterKind::kSigmoidTopK;
      status.Update(queue.Router({.logits = rows_,
                                  .tokens = tokens,
                                  .experts = 32,
                                  .kind = kind,
                                  .top_k = 2,
                                  .correction = scored ? floats_ : BufferRef{},
                                  .jitter = 0.01f,
                                  .groups = scored ? 4u : 0u,
                                  .top_groups = 2,
                                  .shared = true,
                                  .shared_logits = rows_,
                                  .ids = ids_,
                                  .weights = weights_}));
    }
    const uint32_t from = position % 2;
    const uint32_t to = 1 - from;
    status.Update(queue.GatedDelta(
        {.qkv = rows_,
         .z = rows_,
         .beta = rows_,
         .decay = rows_,
         .tokens = tokens,
         .shape = {.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 16, .conv_kernel = 4},
         .conv = {floats_, 4},
         .a_log = floats_,
         .dt_bias = floats_,
         .norm = {floats_},
         .sequences = {&sequence, 1},
         .from = {&from, 1},
         .to = {&to, 1},
         .state = state_,
         .out = more_}));
    status.Update(
        queue.Mamba({.z = rows_,
                     .xbc = rows_,
                     .dt = rows_,
                     .tokens = tokens,
                     .shape = {.heads = 2, .head_dim = 16, .groups = 1, .state = 16, .conv_kernel = 4},
                     .conv = {floats_, 64},
                     .conv_bias = floats_,
                     .a_log = floats_,
                     .dt_bias = floats_,
                     .skip = floats_,
                     .norm = {floats_},
                     .sequences = {&sequence, 1},
                     .from = {&from, 1},
                     .to = {&to, 1},
                     .state = state_,
                     .out = more_}));
    status.Update(queue.ShortConv({.bcx = rows_,
                                   .tokens = tokens,
                                   .shape = {.width = 16, .kernel = 3},
                                   .conv = {floats_, 16},
                                   .sequences = {&sequence, 1},
                                   .from = {&from, 1},
                                   .to = {&to, 1},
                                   .state = state_,
                                   .out = more_}));
    status.Update(queue.SelectiveScan({.x = rows_,
                                       .z = rows_,
                                       .step = rows_,
                                       .b = rows_,
                                       .c = rows_,
                                       .tokens = tokens,
                                       .channels = 32,
                                       .state_size = 8,
                                       .a_log = {floats_, 32},
                                       .skip = floats_,
                                       .sequences = {&sequence, 1},
                                       .from = {&from, 1},
                                       .to = {&to, 1},
                                       .state = state_,
                                       .out = more_}));
    status.Update(queue.SoftCap({more_, tokens, kCols, 30.0f}));
    status.Update(Compressed(sequence, from, to));
    bench_.backend().EndStep();
    return status;
  }

  // Residual streams and compressed entries.
  absl::Status Compressed(const SequenceRows& sequence, const uint32_t& from, const uint32_t& to) {
    Queue& queue = bench_.queue();
    const uint32_t tokens = sequence.rows;
    absl::Status status = queue.StreamMix({.x = rows_,
                                           .raw = latent_,
                                           .scale = floats_,
                                           .base = floats_,
                                           .tokens = tokens,
                                           .streams = 4,
                                           .hidden = kCols / 4,
                                           .iterations = 3,
                                           .y = more_,
                                           .factors = out_});
    status.Update(queue.StreamWrite({latent_, rows_, out_, tokens, 4, kCols / 4, more_}));
    status.Update(queue.RopeHeads({.x = more_,
                                   .tokens = tokens,
                                   .heads = kHeads,
                                   .head_dim = kHeadDim,
                                   .rope_table = floats_,
                                   .rope_positions = 64,
                                   .rope_dims = 8,
                                   .back = true,
                                   .sequences = {&sequence, 1}}));
    status.Update(queue.Compress({.values = rows_,
                                  .gates = latent_,
                                  .bias = {floats_, kHeadDim},
                                  .tokens = tokens,
                                  .sequences = {&sequence, 1},
                                  .from = {&from, 1},
                                  .to = {&to, 1},
                                  .state = state_,
                                  .entries = entries_}));
    const ChosenBlocks chosen = {ids_, 1, 3, 4, true};
    status.Update(queue.IndexSelect({.q = rows_,
                                     .weights = latent_,
                                     .tokens = tokens,
                                     .heads = 2,
                                     .sequences = {&sequence, 1},
                                     .entries = entries_,
                                     .chosen = chosen}));
    KvView keys = kv_;
    keys.value_dim = 0;
    status.Update(queue.CompressedAttention({.q = rows_,
                                             .tokens = tokens,
                                             .heads = kHeads,
                                             .scale = 0.2f,
                                             .sliding_window = 9,
                                             .sinks = floats_,
                                             .chosen = chosen,
                                             .sequences = {&sequence, 1},
                                             .kv = keys,
                                             .entries = entries_,
                                             .out = more_}));
    return status;
  }

 private:
  static constexpr uint32_t kCols = kHeads * kHeadDim;
  OpBench bench_;
  Rows rows_, latent_, out_, more_;
  BufferRef floats_, ids_, weights_;
  WeightView heads_;
  KvView kv_;
  EntryView entries_;
  DeltaStateView state_;
  const uint32_t pages_[4] = {3, 1, 2, 0};
};

class AllocationTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, AllocationTest, testing::ValuesIn([] {
                           std::vector<BackendCase> cases = AllBackends();
                           cases.erase(cases.begin());  // the reference may allocate
                           return cases;
                         }()),
                         CaseName);

TEST_P(AllocationTest, StepsOfDecodeAndPrefillAllocateNothing) {
  for (const EncodingDescriptor& d : {MakeDescriptor(Encoding::kBf16), MakeDescriptor(Encoding::kQ8)}) {
    Layer layer(GetParam(), d);
    const uint64_t before = allocations.load();
    absl::Status status;
    for (const uint32_t tokens : {96u, 1u, 40u, 3u, 1u}) {
      status.Update(layer.Step(tokens, 0));
    }
    status.Update(layer.Step(1, 400));  // two spans
    EXPECT_EQ(allocations.load() - before, 0u);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(AllocationTest, OperationsOfOtherFamiliesAllocateNothing) {
  for (const EncodingDescriptor& d : {MakeDescriptor(Encoding::kBf16), MakeDescriptor(Encoding::kQ8, 16)}) {
    FamilyOps ops(GetParam(), d);
    const uint64_t before = allocations.load();
    absl::Status status;
    for (const uint32_t tokens : {64u, 1u, 40u}) {
      status.Update(ops.Step(tokens, 0));
    }
    status.Update(ops.Step(1, 63));
    EXPECT_EQ(allocations.load() - before, 0u);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(AllocationCounterTest, CountsWhatIsAllocated) {
  const uint64_t before = allocations.load();
  const std::vector<int> values(100);
  EXPECT_EQ(allocations.load() - before, 1u) << values.size();
}

}  // namespace
}  // namespace sluice
