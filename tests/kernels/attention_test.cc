// RopeKvWrite and Attention on every backend: paged cache, prefill chunks and decode rows mixed, every norm,
// window, chunk and sink.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/attention_testing.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

const AttentionShape kConfigs[] = {
    {.heads = 4, .kv_heads = 2, .head_dim = 32},
    {.heads = 6,
     .kv_heads = 3,
     .head_dim = 64,
     .type = KvType::kF32,
     .rope_dims = 64,
     .qk_norm = QkNorm::kPerHead},
    {.heads = 4, .kv_heads = 1, .head_dim = 128, .type = KvType::kQ8, .rope_dims = 128},
    {.heads = 6, .kv_heads = 1, .head_dim = 128, .window = 290, .rope_dims = 128, .sinks = true},
    {.heads = 2, .kv_heads = 2, .head_dim = 128, .type = KvType::kF32, .window = 37, .rope_dims = 128},
    {.heads = 3, .kv_heads = 3, .head_dim = 20, .window = 40, .rope_dims = 12, .interleaved = true},
    {.heads = 4,
     .kv_heads = 1,
     .head_dim = 18,
     .type = KvType::kQ8,
     .window = 7,
     .rope_dims = 18,
     .qk_norm = QkNorm::kPerHead},
    {.heads = 2, .kv_heads = 2, .head_dim = 48, .type = KvType::kF32, .window = 300, .rope_dims = 0},
    {.heads = 8, .kv_heads = 2, .head_dim = 34, .window = 128, .rope_dims = 34, .sinks = true},
    {.heads = 4,
     .kv_heads = 2,
     .type = KvType::kF32,
     .interleaved = true,
     .qk_norm = QkNorm::kPerHeadAfterRope,
     .chunk = 100},
    {.heads = 4, .kv_heads = 4, .qk_norm = QkNorm::kAcrossHeads, .clip = 1.5f},
    {.heads = 2,
     .kv_heads = 1,
     .head_dim = 96,
     .type = KvType::kF32,
     .rope_dims = 0,
     .temperature_scale = 0.1f,
     .temperature_floor = 64},
    {.heads = 2,
     .kv_heads = 1,
     .head_dim = 52,
     .type = KvType::kF32,
     .rope_dims = 52,
     .qk_norm = QkNorm::kWeightedAfterRope,
     .temperature_scale = 0.2f,
     .temperature_floor = 32,
     .temperature_offset = 0},
    {.heads = 4,
     .kv_heads = 2,
     .head_dim = 36,
     .type = KvType::kF32,
     .rope_dims = 36,
     .qk_norm = QkNorm::kPerHead,
     .clip = 1.25f,
     .value_norm = true,
     .value_is_key = true},
    {.heads = 3,
     .kv_heads = 1,
     .head_dim = 80,
     .type = KvType::kQ8,
     .window = 50,
     .rope_dims = 40,
     .chunk = 70,
     .sinks = true},
    {.heads = 4,
     .kv_heads = 2,
     .head_dim = 48,
     .rope_dims = 16,
     .clip = 2.0f,
     .sinks = true,
     .value_norm = true,
     .value_dim = 34},
    {.heads = 4, .kv_heads = 1, .head_dim = 96, .type = KvType::kQ8, .value_dim = 64},
    {.heads = 2, .kv_heads = 2, .head_dim = 128, .type = KvType::kF32, .window = 60, .value_dim = 90}};

std::string Label(const AttentionShape& c) {
  return std::to_string(c.heads) + " heads, " + std::to_string(c.kv_heads) + " kv heads of " +
         std::to_string(c.head_dim) + ", type " + std::to_string(static_cast<int>(c.type)) + ", window " +
         std::to_string(c.window) + ", chunk " + std::to_string(c.chunk);
}

class AttentionTest : public testing::TestWithParam<BackendCase> {
 protected:
  // The reference's outputs for the first test, computed once for all backends.
  static void SetUpTestSuite() {
    for (const AttentionShape& config : kConfigs) {
      AttentionCache oracle(kReference, config, {LongSequence(config)});
      oracle.RunAlone(0, 96);
      expected_.push_back(oracle.Output(0));
    }
  }
  static void TearDownTestSuite() { expected_.clear(); }
  // Over two span borders.
  static AttentionInputs LongSequence(const AttentionShape& config) { return MakeInputs(config, 560, 10); }

  static std::vector<std::vector<float>> expected_;
};
std::vector<std::vector<float>> AttentionTest::expected_;
INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(AttentionTest, AnyChunkingEqualsTheReferenceBitForBit) {
  CaseCounter cases(GetParam());
  for (size_t i = 0; i < std::size(kConfigs); ++i) {
    SCOPED_TRACE(Label(kConfigs[i]));
    for (const uint32_t chunk : {1u, 33u, 96u}) {
      if (GetParam().reference && chunk != 33) {
        continue;  // one other chunking is enough for the slow reference
      }
      if (cases.LeavesOut()) {
        continue;
      }
      AttentionCache cache(GetParam(), kConfigs[i], {LongSequence(kConfigs[i])});
      cache.RunAlone(0, chunk);
      ASSERT_TRUE(BitEqual(cache.Output(0), expected_[i])) << "chunks of " << chunk;
    }
  }
}

TEST_P(AttentionTest, SequencesInOneBatchEqualTheSequencesAlone) {
  CaseCounter cases(GetParam());
  for (const AttentionShape& config : kConfigs) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(Label(config));
    const std::vector<AttentionInputs> sequences = {MakeInputs(config, 300, 20), MakeInputs(config, 64, 21),
                                                    MakeInputs(config, 41, 22)};
    AttentionCache alone(GetParam(), config, sequences);
    for (uint32_t s = 0; s < 3; ++s) {
      alone.RunAlone(s, 50);
    }
    AttentionCache batched(GetParam(), config, sequences);
    batched.Step({2, 0}, {20, 60});
    batched.Step({1, 2, 0}, {60, 1, 30});
    for (int i = 0; i < 4; ++i) {
      batched.Step({0, 1, 2}, {10, 1, 5});
    }
    batched.RunAlone(0, 85);
    for (size_t s = 0; s < 2; ++s) {
      ASSERT_TRUE(BitEqual(batched.Output(s), alone.Output(s))) << "sequence " << s;
    }
    ASSERT_TRUE(BitEqual(batched.Output(2), alone.Output(2)));
  }
}

// x normed in double over its own mean square; without weights they are 1.
void NormExactly(std::vector<double>::iterator x, size_t n, const float* weights) {
  double square = 0;
  for (size_t i = 0; i < n; ++i) {
    square += x[static_cast<int64_t>(i)] * x[static_cast<int64_t>(i)];
  }
  for (size_t i = 0; i < n; ++i) {
    x[static_cast<int64_t>(i)] *=
        (weights == nullptr ? 1.0 : weights[i]) / std::sqrt(square / static_cast<double>(n) + 1e-6);
  }
}

void RotateExactly(const AttentionShape& c, uint32_t position, std::vector<double>::iterator x) {
  for (uint32_t i = 0; i < c.rope_dims / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / c.rope_dims);
    double& a = x[c.interleaved ? 2 * i : i];
    double& b = x[c.interleaved ? 2 * i + 1 : i + c.rope_dims / 2];
    const double turned = a * std::cos(angle) - b * std::sin(angle);
    b = b * std::cos(angle) + a * std::sin(angle);
    a = turned;
  }
}

// The heads of q or k of a position after norm and rope, in double.
std::vector<double> ExactHeads(const AttentionShape& c, const std::vector<float>& from, uint32_t count,
                               uint32_t position) {
  const auto first = from.begin() + int64_t{position} * count * c.head_dim;
  std::vector<double> row(first, first + int64_t{count} * c.head_dim);
  const std::vector<float> weights = c.NormWeights(count);
  if (c.qk_norm == QkNorm::kAcrossHeads) {
    NormExactly(row.begin(), row.size(), weights.data());
  }
  for (uint32_t h = 0; h < count; ++h) {
    const auto head = row.begin() + int64_t{h} * c.head_dim;
    if (c.qk_norm == QkNorm::kPerHead) {
      NormExactly(head, c.head_dim, weights.data());
    }
    for (uint32_t d = 0; d < c.head_dim && c.clip > 0; ++d) {
      head[d] = std::clamp(head[d], -double{c.clip}, double{c.clip});
    }
    RotateExactly(c, position, head);
    if (c.qk_norm == QkNorm::kPerHeadAfterRope || c.qk_norm == QkNorm::kWeightedAfterRope) {
      NormExactly(head, c.head_dim, c.HasWeights() ? weights.data() : nullptr);
    }
  }
  return row;
}

// Attention in double from the inputs: rope with double angles, no rounding of the cache.
std::vector<double> ExactAttention(const AttentionShape& c, const AttentionInputs& s, uint32_t position,
                                   uint32_t head) {
  const uint32_t kv_head = head / (c.heads / c.kv_heads);
  const std::vector<double> q = ExactHeads(c, s.q, c.heads, position);
  double scale = 1 / std::sqrt(double{static_cast<double>(c.head_dim)});
  if (c.temperature_scale != 0) {
    scale *=
        1 + c.temperature_scale * std::log(1.0 + (position + c.temperature_offset) / c.temperature_floor);
  }
  uint32_t first = c.window == 0 || position < c.window ? 0 : position - c.window + 1;
  first = c.chunk == 0 ? first : std::max(first, position / c.chunk * c.chunk);
  std::vector<double> scores;
  for (uint32_t p = first; p <= position; ++p) {
    const std::vector<double> k = ExactHeads(c, s.k, c.kv_heads, p);
    scores.push_back(scale * std::inner_product(q.begin() + int64_t{head} * c.head_dim,
                                                q.begin() + int64_t{head + 1} * c.head_dim,
                                                k.begin() + int64_t{kv_head} * c.head_dim, 0.0));
  }
  double total = c.sinks ? std::exp(double{c.Sinks()[head]}) : 0;
  std::vector<double> out(c.ValueDim());
  for (uint32_t p = first; p <= position; ++p) {
    const double e = std::exp(scores[p - first]);
    total += e;
    const auto values = s.v.begin() + (int64_t{p} * c.kv_heads + kv_head) * c.ValueDim();
    std::vector<double> value(values, values + c.ValueDim());
    if (c.value_norm) {
      NormExactly(value.begin(), c.ValueDim(), nullptr);
    }
    for (uint32_t d = 0; d < c.ValueDim(); ++d) {
      const double v = value[d];
      out[d] += e * (c.clip > 0 ? std::clamp(v, -double{c.clip}, double{c.clip}) : v);
    }
  }
  for (double& value : out) {
    value /= total;
  }
  return out;
}

TEST_P(AttentionTest, OutputIsSoftmaxAttentionWithinRounding) {
  CaseCounter cases(GetParam());
  for (const AttentionShape& config : kConfigs) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(Label(config));
    const std::vector<AttentionInputs> sequences = {MakeInputs(config, 290, 30)};
    AttentionCache cache(GetParam(), config, sequences);
    cache.RunAlone(0, 64);
    // |k| <= 4 sigma = 8, scores change by |q| |dk| / sqrt(d) ~ 2 * sqrt(d) * step * 8 / sqrt(d): with a step
    // of 2^-11 (f16) or 1/254 (q8) of the value, and the output by twice that (|v| about 1) plus v's own
    // step.
    const double step = config.type == KvType::kF32   ? 64 * kRoundoff
                        : config.type == KvType::kF16 ? 0x1p-12
                                                      : 1 / 254.0;
    const double tolerance = step * 40;
    for (const uint32_t position : {0u, 1u, 31u, 32u, 100u, 255u, 256u, 289u}) {
      for (uint32_t head = 0; head < config.heads; ++head) {
        const std::vector<double> exact = ExactAttention(config, sequences[0], position, head);
        for (uint32_t d = 0; d < config.ValueDim(); ++d) {
          ASSERT_NEAR(cache.Output(0)[(uint64_t{position} * config.heads + head) * config.ValueDim() + d],
                      exact[d], tolerance)
              << "position " << position << " head " << head;
        }
      }
    }
  }
}

TEST_P(AttentionTest, BadArgumentsAreRefusedWithNumbers) {
  OpBench bench(GetParam());
  AttentionArgs args;
  args.q = bench.NewRows(4, 64);
  args.out = bench.NewRows(4, 64);
  args.tokens = 4;
  args.heads = 2;
  args.scale = 1;
  const uint64_t page_bytes = KvPageBytes(KvType::kF16, 1, 32);
  args.kv = {
      KvType::kF16, bench.NewWords(page_bytes / 2), bench.NewWords(page_bytes / 2), page_bytes, 2, 1, 32};
  const uint32_t pages[] = {0, 5};
  SequenceRows sequence{0, 4, 0, {pages, 1}};
  args.sequences = {&sequence, 1};
  EXPECT_TRUE(bench.queue().Attention(args).ok());
  sequence.first_position = 30;
  EXPECT_EQ(bench.queue().Attention(args).code(), absl::StatusCode::kInvalidArgument);  // a page short
  sequence.pages = pages;
  const absl::Status status = bench.queue().Attention(args);  // page 5 of 2
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("5 of 2"), std::string::npos) << status;
  sequence = {2, 4, 0, pages};
  EXPECT_EQ(bench.queue().Attention(args).code(),
            absl::StatusCode::kInvalidArgument);  // rows beyond the batch
  sequence = {0, 4, 0, pages};
  args.kv.kv_heads = 3;
  EXPECT_FALSE(bench.queue().Attention(args).ok());
  args.kv.kv_heads = 1;
  args.kv.value_dim = 34;  // more than K rows hold
  EXPECT_EQ(bench.queue().Attention(args).code(), absl::StatusCode::kInvalidArgument);
}

// Index keys have no V: here the keys are read as their own values.
TEST_P(AttentionTest, KeysAloneAreWritten) {
  const auto run = [](const BackendCase& which, KvType type) {
    OpBench bench(which);
    const std::vector<uint32_t> pages = {1, 0};
    const SequenceRows sequence{0, 40, 0, pages};
    KvView kv = {
        .type = type, .page_stride = KvPageBytes(type, 1, 34), .pages = 2, .kv_heads = 1, .head_dim = 34};
    kv.k = kv.v = bench.PutWritable(std::vector<float>(2 * kv.page_stride / 4, std::nanf("")));
    Random random(79);
    const Rows q = {bench.PutWritable(random.Normals(40 * 2 * 34)), 2 * 34};
    RopeKvWriteArgs write;
    write.q = q;
    write.k = bench.PutRows(random.Normals(40 * 34), 34);
    write.tokens = 40;
    write.heads = 2;
    write.sequences = {&sequence, 1};
    write.kv = kv;
    EXPECT_TRUE(bench.queue().RopeKvWrite(write).ok());
    AttentionArgs args;
    args.q = q;
    args.tokens = 40;
    args.heads = 2;
    args.scale = 0.2f;
    args.sequences = {&sequence, 1};
    args.kv = kv;
    args.out = bench.NewRows(40, 2 * 34);
    EXPECT_TRUE(bench.queue().Attention(args).ok());
    return bench.GetRows(args.out, 40, 2 * 34);
  };
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8}) {
    EXPECT_EQ(run(GetParam(), type), run(kReference, type));
  }
}

TEST_P(AttentionTest, BadArgumentsOfTheWriteAreRefusedByName) {
  const auto refused = [&](const std::string& words, auto&& change) {
    OpBench bench(GetParam());
    const uint64_t page_bytes = KvPageBytes(KvType::kF16, 1, 32);
    const uint32_t page = 0;
    const SequenceRows sequence{0, 4, 0, {&page, 1}};
    RopeKvWriteArgs args;
    args.q = bench.NewRows(4, 64);
    args.k = bench.NewRows(4, 32);
    args.v = bench.NewRows(4, 32);
    args.tokens = 4;
    args.heads = 2;
    args.sequences = {&sequence, 1};
    args.kv = {
        KvType::kF16, bench.NewWords(page_bytes / 4), bench.NewWords(page_bytes / 4), page_bytes, 1, 1, 32};
    ASSERT_TRUE(bench.queue().RopeKvWrite(args).ok());
    change(bench, args);
    const absl::Status status = bench.queue().RopeKvWrite(args);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  refused("no weights", [](OpBench&, RopeKvWriteArgs& a) { a.qk_norm = QkNorm::kPerHead; });
  refused("q norm weight", [](OpBench& bench, RopeKvWriteArgs& a) {
    a.qk_norm = QkNorm::kAcrossHeads;
    a.q_norm.weight = bench.PutFloats(std::vector<float>(63));  // one short
    a.k_norm.weight = bench.PutFloats(std::vector<float>(32));
  });
  refused("after rope has no weights", [](OpBench& bench, RopeKvWriteArgs& a) {
    a.qk_norm = QkNorm::kPerHeadAfterRope;
    a.q_norm.weight = bench.PutFloats(std::vector<float>(32));
  });
  refused("layer norm", [](OpBench& bench, RopeKvWriteArgs& a) {
    a.qk_norm = QkNorm::kPerHead;
    a.q_norm = {bench.PutFloats(std::vector<float>(32)), 1e-5f, NormKind::kLayer, {}};
    a.k_norm = a.q_norm;
  });
  refused("clipping at -1", [](OpBench&, RopeKvWriteArgs& a) { a.clip = -1; });
  refused("floor of 0", [](OpBench&, RopeKvWriteArgs& a) { a.temperature_scale = 0.5f; });
  refused("34 of 32", [](OpBench&, RopeKvWriteArgs& a) { a.rope_dims = 34; });
  refused("beyond the rope table's 2", [](OpBench& bench, RopeKvWriteArgs& a) {
    a.rope_dims = 4;
    a.rope_positions = 2;
    a.rope_table = bench.NewWords(8);
  });
  refused("keys alone", [](OpBench&, RopeKvWriteArgs& a) { a.v = {}; });
  refused("within K rows", [](OpBench&, RopeKvWriteArgs& a) {
    a.kv.v = a.kv.k;
    a.kv.value_dim = 16;
  });
}

}  // namespace
}  // namespace sluice
