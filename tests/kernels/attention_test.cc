// RopeKvWrite and Attention on every backend: paged cache, prefill chunks and decode rows mixed.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/kv_layout.h"
#include "kernels/rope_table.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

struct Config {
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 32;
  KvType type = KvType::kF16;
  uint32_t window = 0;
  uint32_t rope_dims = 32;
  bool interleaved = false;
  bool qk_norm = false;
};

// One sequence: its inputs for every position, made from its seed, so that any chunking sees the same.
struct Sequence {
  uint32_t positions = 0;
  std::vector<float> q, k, v;  // [positions, heads or kv_heads, head_dim]
};

Sequence MakeSequence(const Config& c, uint32_t positions, uint64_t seed) {
  Random random(seed);
  Sequence s;
  s.positions = positions;
  s.q = random.Normals(uint64_t{positions} * c.heads * c.head_dim, 2.0f);
  s.k = random.Normals(uint64_t{positions} * c.kv_heads * c.head_dim, 2.0f);
  s.v = random.Normals(uint64_t{positions} * c.kv_heads * c.head_dim);
  return s;
}

// Runs sequences through one cache. Step() computes one batch of chunks and files the outputs by position.
class Cache {
 public:
  Cache(const BackendCase& which, const Config& config, const std::vector<Sequence>& sequences)
      : bench_(which),
        config_(config),
        sequences_(sequences),
        outputs_(sequences.size()),
        next_(sequences.size()) {
    uint32_t pages = 1;  // page 0 belongs to nobody
    for (const Sequence& s : sequences) {
      pages_.emplace_back();
      for (uint32_t p = 0; p < s.positions; p += kPageTokens) {
        pages_.back().push_back(pages++);
      }
      // Pages out of order, as a pool hands them out.
      std::reverse(pages_.back().begin(), pages_.back().end());
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      outputs_[s].resize(uint64_t{sequences[s].positions} * config.heads * config.head_dim);
    }
    const uint64_t page_bytes = KvPageBytes(config.type, config.kv_heads, config.head_dim);
    kv_.type = config.type;
    kv_.page_stride = page_bytes;
    kv_.pages = pages;
    kv_.kv_heads = config.kv_heads;
    kv_.head_dim = config.head_dim;
    // Old contents are NaN: a position that is not visible must not be read into the sums.
    const std::vector<float> nan(pages * page_bytes / 4, std::nanf(""));
    kv_.k = bench_.PutWritable(nan);
    kv_.v = bench_.PutWritable(nan);
    RopeConfig rope;
    rope.dimensions = config.rope_dims;
    rope.kind = config.rope_dims == 0 ? RopeKind::kNone : RopeKind::kDefault;
    const auto table = ComputeRopeTable(rope, 1024);
    EXPECT_TRUE(table.ok()) << table.status();
    if (config.rope_dims > 0) {
      rope_table_ = bench_.PutFloats(*table);
    }
    Random random(77);
    q_norm_ = bench_.PutFloats(random.Normals(config.head_dim));
    k_norm_ = bench_.PutFloats(random.Normals(config.head_dim));
  }

  // Computes the next `rows[i]` positions of sequence order[i], in this order of batch rows.
  void Step(const std::vector<uint32_t>& order, const std::vector<uint32_t>& rows) {
    std::vector<SequenceRows> batch;
    std::vector<float> q, k, v;
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t s = order[i];
      SequenceRows entry;
      entry.first_row = static_cast<uint32_t>(q.size() / QCols());
      entry.rows = rows[i];
      entry.first_position = next_[s];
      entry.pages = pages_[s];
      batch.push_back(entry);
      Append(sequences_[s].q, QCols(), next_[s], rows[i], &q);
      Append(sequences_[s].k, KvCols(), next_[s], rows[i], &k);
      Append(sequences_[s].v, KvCols(), next_[s], rows[i], &v);
    }
    const uint32_t tokens = static_cast<uint32_t>(q.size() / QCols());
    const Rows q_rows{bench_.PutWritable(q), QCols()};
    RopeKvArgs write;
    write.q = q_rows;
    write.k = bench_.PutRows(k, KvCols());
    write.v = bench_.PutRows(v, KvCols());
    write.tokens = tokens;
    write.heads = config_.heads;
    if (config_.qk_norm) {
      write.q_norm = {q_norm_, 1e-6f};
      write.k_norm = {k_norm_, 1e-6f};
    }
    write.rope_table = rope_table_;
    write.rope_positions = 1024;
    write.rope_dims = config_.rope_dims;
    write.rope_interleaved = config_.interleaved;
    write.sequences = batch;
    write.kv = kv_;
    ASSERT_TRUE(bench_.queue().RopeKvWrite(write).ok());
    AttentionArgs args;
    args.q = q_rows;
    args.tokens = tokens;
    args.heads = config_.heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    args.sliding_window = config_.window;
    args.sequences = batch;
    args.kv = kv_;
    args.out = bench_.NewRows(tokens, QCols());
    const absl::Status status = bench_.queue().Attention(args);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> out = bench_.GetRows(args.out, tokens, QCols());
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t s = order[i];
      std::copy_n(out.begin() + static_cast<int64_t>(uint64_t{batch[i].first_row} * QCols()),
                  rows[i] * QCols(),
                  outputs_[s].begin() + static_cast<int64_t>(uint64_t{next_[s]} * QCols()));
      next_[s] += rows[i];
    }
  }

  // Runs one sequence to its end in chunks.
  void RunAlone(uint32_t s, uint32_t chunk) {
    while (next_[s] < sequences_[s].positions) {
      Step({s}, {std::min(chunk, sequences_[s].positions - next_[s])});
    }
  }

  const std::vector<float>& Output(size_t s) const { return outputs_[s]; }

 private:
  uint64_t QCols() const { return uint64_t{config_.heads} * config_.head_dim; }
  uint64_t KvCols() const { return uint64_t{config_.kv_heads} * config_.head_dim; }
  static void Append(const std::vector<float>& from, uint64_t cols, uint32_t first, uint32_t rows,
                     std::vector<float>* to) {
    to->insert(to->end(), from.begin() + static_cast<int64_t>(first * cols),
               from.begin() + static_cast<int64_t>((first + rows) * cols));
  }

  OpBench bench_;
  const Config config_;
  const std::vector<Sequence> sequences_;
  std::vector<std::vector<float>> outputs_;
  std::vector<uint32_t> next_;
  std::vector<std::vector<uint32_t>> pages_;
  KvView kv_;
  BufferRef rope_table_, q_norm_, k_norm_;
};

const Config kConfigs[] = {
    {4, 2, 32, KvType::kF16, 0, 32, false, false},  {6, 3, 64, KvType::kF32, 0, 64, false, true},
    {4, 1, 128, KvType::kQ8, 0, 128, false, false}, {3, 3, 20, KvType::kF16, 40, 12, true, false},
    {4, 1, 18, KvType::kQ8, 7, 18, false, true},    {2, 2, 48, KvType::kF32, 300, 0, false, false}};

std::string Label(const Config& c) {
  return std::to_string(c.heads) + " heads, " + std::to_string(c.kv_heads) + " kv heads of " +
         std::to_string(c.head_dim) + ", type " + std::to_string(static_cast<int>(c.type)) + ", window " +
         std::to_string(c.window);
}

class AttentionTest : public testing::TestWithParam<BackendCase> {
 protected:
  // The reference's outputs for the first test, computed once for all backends.
  static void SetUpTestSuite() {
    for (const Config& config : kConfigs) {
      Cache oracle(kReference, config, {LongSequence(config)});
      oracle.RunAlone(0, 96);
      expected_.push_back(oracle.Output(0));
    }
  }
  static void TearDownTestSuite() { expected_.clear(); }
  // Over two span borders.
  static Sequence LongSequence(const Config& config) { return MakeSequence(config, 560, 10); }

  static std::vector<std::vector<float>> expected_;
};
std::vector<std::vector<float>> AttentionTest::expected_;
INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(AttentionTest, AnyChunkingEqualsTheReferenceBitForBit) {
  for (size_t i = 0; i < std::size(kConfigs); ++i) {
    SCOPED_TRACE(Label(kConfigs[i]));
    for (const uint32_t chunk : {1u, 33u, 96u}) {
      if (GetParam().reference && chunk != 33) {
        continue;  // one other chunking of the slow one is enough
      }
      Cache cache(GetParam(), kConfigs[i], {LongSequence(kConfigs[i])});
      cache.RunAlone(0, chunk);
      ASSERT_TRUE(BitEqual(cache.Output(0), expected_[i])) << "chunks of " << chunk;
    }
  }
}

TEST_P(AttentionTest, SequencesInOneBatchEqualTheSequencesAlone) {
  for (const Config& config : kConfigs) {
    SCOPED_TRACE(Label(config));
    const std::vector<Sequence> sequences = {MakeSequence(config, 300, 20), MakeSequence(config, 64, 21),
                                             MakeSequence(config, 41, 22)};
    Cache alone(GetParam(), config, sequences);
    for (uint32_t s = 0; s < 3; ++s) {
      alone.RunAlone(s, 50);
    }
    Cache batched(GetParam(), config, sequences);
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

// Attention in double from the inputs: rope with double angles, no rounding of the cache.
std::vector<double> ExactAttention(const Config& c, const Sequence& s, uint32_t position, uint32_t head) {
  const auto rotated = [&](const std::vector<float>& from, uint32_t count, uint32_t p, uint32_t h) {
    const float* x = from.data() + (uint64_t{p} * count + h) * c.head_dim;
    std::vector<double> out(x, x + c.head_dim);
    for (uint32_t i = 0; i < c.rope_dims / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / c.rope_dims);
      const uint32_t a = c.interleaved ? 2 * i : i;
      const uint32_t b = c.interleaved ? 2 * i + 1 : i + c.rope_dims / 2;
      out[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      out[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
    }
    return out;
  };
  const uint32_t kv_head = head / (c.heads / c.kv_heads);
  const std::vector<double> q = rotated(s.q, c.heads, position, head);
  const uint32_t first = c.window == 0 || position < c.window ? 0 : position - c.window + 1;
  std::vector<double> scores;
  for (uint32_t p = first; p <= position; ++p) {
    const std::vector<double> k = rotated(s.k, c.kv_heads, p, kv_head);
    scores.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(c.head_dim));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  std::vector<double> out(c.head_dim);
  for (uint32_t p = first; p <= position; ++p) {
    const double e = std::exp(scores[p - first] - largest);
    total += e;
    for (uint32_t d = 0; d < c.head_dim; ++d) {
      out[d] += e * s.v[(uint64_t{p} * c.kv_heads + kv_head) * c.head_dim + d];
    }
  }
  for (double& value : out) {
    value /= total;
  }
  return out;
}

TEST_P(AttentionTest, OutputIsSoftmaxAttentionWithinTheCachesRounding) {
  for (const Config& config : kConfigs) {
    if (config.qk_norm) {
      continue;  // compared with the reference above; the norm itself has its own test
    }
    SCOPED_TRACE(Label(config));
    const std::vector<Sequence> sequences = {MakeSequence(config, 290, 30)};
    Cache cache(GetParam(), config, sequences);
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
        for (uint32_t d = 0; d < config.head_dim; ++d) {
          ASSERT_NEAR(cache.Output(0)[(uint64_t{position} * config.heads + head) * config.head_dim + d],
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
}

}  // namespace
}  // namespace sluice
