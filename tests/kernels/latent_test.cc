// Latent attention on every backend: HeadMatMul, LatentKvWrite, and Attention whose values lie within K rows.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "kernels/rope_table.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

struct Shape {
  KvType type;
  uint32_t heads, nope_dim, kv_rank, rope_dims;
  uint32_t Row() const { return kv_rank + rope_dims; }
};
// The last is DeepSeek's row.
const Shape kShapes[] = {
    {KvType::kF32, 5, 8, 24, 10}, {KvType::kQ8, 3, 16, 34, 14}, {KvType::kF16, 4, 4, 512, 64}};

BackendLimits LatentLimits() {
  BackendLimits limits = TestLimits();
  limits.head_dim = 576;
  return limits;
}

struct Inputs {
  std::vector<float> q, latent, absorbed, norm;  // absorbed: [positions, heads, kv_rank]
};

Inputs MakeInputs(const Shape& s, uint32_t positions) {
  Random random(60);
  Inputs inputs;
  inputs.q = random.Normals(uint64_t{positions} * s.heads * (s.nope_dim + s.rope_dims));
  inputs.latent = random.Normals(uint64_t{positions} * s.Row(), 2.0f);
  inputs.absorbed = random.Normals(uint64_t{positions} * s.heads * s.kv_rank, 0.3f);
  inputs.norm = random.Normals(s.kv_rank);
  return inputs;
}

std::vector<float> Slice(const std::vector<float>& from, uint64_t cols, uint32_t first, uint32_t rows) {
  return std::vector<float>(from.begin() + static_cast<int64_t>(first * cols),
                            from.begin() + static_cast<int64_t>((first + rows) * cols));
}

// The whole sequence in chunks; [positions, heads, kv_rank].
std::vector<float> RunInChunks(const BackendCase& which, const Shape& s, const Inputs& inputs,
                               uint32_t positions, uint32_t chunk) {
  OpBench bench(which, LatentLimits());
  std::vector<uint32_t> pages((positions + kPageTokens - 1) / kPageTokens);
  std::iota(pages.rbegin(), pages.rend(), 1u);
  KvView kv;
  kv.type = s.type;
  kv.page_stride = KvPairBytes(s.type, 1, s.Row(), s.kv_rank);
  kv.pages = static_cast<uint32_t>(pages.size()) + 1;
  kv.k = kv.v = bench.PutWritable(std::vector<float>(kv.pages * kv.page_stride / 4, std::nanf("")));
  kv.kv_heads = 1;
  kv.head_dim = s.Row();
  kv.value_dim = s.kv_rank;
  RopeConfig rope;
  rope.dimensions = s.rope_dims;
  const auto table = ComputeRopeTable(rope, positions);
  EXPECT_TRUE(table.ok()) << table.status();
  const BufferRef rope_table = bench.PutFloats(*table);
  const BufferRef norm = bench.PutFloats(inputs.norm);
  std::vector<float> out;
  for (uint32_t first = 0; first < positions; first += chunk) {
    const uint32_t rows = std::min(chunk, positions - first);
    const SequenceRows sequence{0, rows, first, pages};
    const uint64_t q_cols = uint64_t{s.heads} * s.Row();
    const Rows q_out = bench.NewRows(rows, q_cols);
    const std::vector<float> absorbed = Slice(inputs.absorbed, uint64_t{s.heads} * s.kv_rank, first, rows);
    for (uint64_t i = 0; i < uint64_t{rows} * s.heads; ++i) {
      EXPECT_TRUE(bench.queue()
                      .Upload(absorbed.data() + i * s.kv_rank, s.kv_rank * 4, q_out.base + i * s.Row() * 4)
                      .ok());
    }
    LatentKvWriteArgs write;
    const uint64_t q_in = uint64_t{s.heads} * (s.nope_dim + s.rope_dims);
    write.q = bench.PutRows(Slice(inputs.q, q_in, first, rows), q_in);
    write.nope_dim = s.nope_dim;
    write.latent = bench.PutRows(Slice(inputs.latent, s.Row(), first, rows), s.Row());
    write.q_out = q_out;
    write.tokens = rows;
    write.heads = s.heads;
    write.kv_rank = s.kv_rank;
    write.norm = {norm, 1e-6f};
    write.rope_table = rope_table;
    write.rope_positions = positions;
    write.rope_dims = s.rope_dims;
    write.rope_interleaved = true;
    write.sequences = {&sequence, 1};
    write.kv = kv;
    const absl::Status written = bench.queue().LatentKvWrite(write);
    EXPECT_TRUE(written.ok()) << written;
    const uint64_t cols = uint64_t{s.heads} * s.kv_rank;
    AttentionArgs args;
    args.q = q_out;
    args.tokens = rows;
    args.heads = s.heads;
    args.scale = 0.15f;
    args.sequences = {&sequence, 1};
    args.kv = kv;
    args.out = bench.NewRows(rows, cols);
    const absl::Status status = bench.queue().Attention(args);
    EXPECT_TRUE(status.ok()) << status;
    const std::vector<float> step = bench.GetRows(args.out, rows, cols);
    out.insert(out.end(), step.begin(), step.end());
  }
  return out;
}

// The cache row of a position before its rounding, with interleaved pairs rotated.
std::vector<double> RotatedRow(const float* x, uint32_t dims, uint32_t position) {
  std::vector<double> out(x, x + dims);
  for (uint32_t i = 0; i < dims / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / dims);
    out[2 * i] = x[2 * i] * std::cos(angle) - x[2 * i + 1] * std::sin(angle);
    out[2 * i + 1] = x[2 * i + 1] * std::cos(angle) + x[2 * i] * std::sin(angle);
  }
  return out;
}

std::vector<double> ExactRow(const Shape& s, const Inputs& inputs, uint32_t position) {
  const float* x = inputs.latent.data() + uint64_t{position} * s.Row();
  double square = 0;
  for (uint32_t i = 0; i < s.kv_rank; ++i) {
    square += double{x[i]} * x[i];
  }
  std::vector<double> row;
  for (uint32_t i = 0; i < s.kv_rank; ++i) {
    row.push_back(x[i] / std::sqrt(square / s.kv_rank + 1e-6) * inputs.norm[i]);
  }
  const std::vector<double> turned = RotatedRow(x + s.kv_rank, s.rope_dims, position);
  row.insert(row.end(), turned.begin(), turned.end());
  return row;
}

std::vector<double> ExactLatent(const Shape& s, const Inputs& inputs, uint32_t position, uint32_t head) {
  const float* absorbed = inputs.absorbed.data() + (uint64_t{position} * s.heads + head) * s.kv_rank;
  const uint32_t q_head = s.nope_dim + s.rope_dims;
  const std::vector<double> turned = RotatedRow(
      inputs.q.data() + (uint64_t{position} * s.heads + head) * q_head + s.nope_dim, s.rope_dims, position);
  double total = 0;
  std::vector<double> out(s.kv_rank);
  for (uint32_t p = 0; p <= position; ++p) {
    const std::vector<double> row = ExactRow(s, inputs, p);
    double score = std::inner_product(row.begin(), row.begin() + s.kv_rank, absorbed, 0.0);
    score = std::inner_product(turned.begin(), turned.end(), row.begin() + s.kv_rank, score);
    const double e = std::exp(0.15 * score);
    total += e;
    for (uint32_t d = 0; d < s.kv_rank; ++d) {
      out[d] += e * row[d];
    }
  }
  for (double& value : out) {
    value /= total;
  }
  return out;
}

constexpr uint32_t kPositions = 270;  // over a span's border

class LatentTest : public testing::TestWithParam<BackendCase> {
 protected:
  // The reference's outputs, computed once for all backends.
  static void SetUpTestSuite() {
    for (const Shape& s : kShapes) {
      expected_.push_back(RunInChunks(kReference, s, MakeInputs(s, kPositions), kPositions, 90));
    }
  }
  static void TearDownTestSuite() { expected_.clear(); }

  static std::vector<std::vector<float>> expected_;
};
std::vector<std::vector<float>> LatentTest::expected_;
INSTANTIATE_TEST_SUITE_P(Backends, LatentTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(LatentTest, AnyChunkingEqualsReferenceAndNearlyDouble) {
  CaseCounter cases(GetParam());
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    const Shape& s = kShapes[i];
    SCOPED_TRACE(s.kv_rank);
    const Inputs inputs = MakeInputs(s, kPositions);
    for (const uint32_t chunk : {1u, 37u, 90u}) {
      if (GetParam().reference && chunk != 37) {
        continue;
      }
      if (cases.LeavesOut()) {
        continue;
      }
      ASSERT_TRUE(BitEqual(RunInChunks(GetParam(), s, inputs, kPositions, chunk), expected_[i]))
          << "chunks of " << chunk;
    }
    const double step = s.type == KvType::kF32   ? 64 * kRoundoff
                        : s.type == KvType::kF16 ? 0x1p-12
                                                 : 1 / 254.0;
    for (const uint32_t position : {0u, 31u, 269u}) {
      for (const uint32_t head : {0u, s.heads - 1}) {
        const std::vector<double> exact = ExactLatent(s, inputs, position, head);
        for (uint32_t d = 0; d < s.kv_rank; ++d) {
          ASSERT_NEAR(expected_[i][(uint64_t{position} * s.heads + head) * s.kv_rank + d], exact[d],
                      40 * step)
              << "position " << position << " head " << head;
        }
      }
    }
  }
}

std::vector<float> RunHeads(OpBench& bench, const EncodedMatrix& w, const std::vector<float>& x,
                            uint32_t tokens, uint32_t heads) {
  const uint32_t rows = w.rows / heads;
  HeadMatMulArgs args;
  // Heads with gaps between them, like the nope part of q.
  args.x_head_stride = w.cols + 5;
  args.x = bench.PutRows(x, heads * args.x_head_stride);
  args.tokens = tokens;
  args.heads = heads;
  args.weights = bench.PutMatrix(w);
  args.y_head_stride = rows + 3;
  args.y = bench.NewRows(tokens, heads * args.y_head_stride);
  const absl::Status status = bench.queue().HeadMatMul(args);
  EXPECT_TRUE(status.ok()) << status;
  return bench.GetRows(args.y, tokens, heads * args.y_head_stride);
}

TEST_P(LatentTest, HeadMatMulIsAMatrixPerHeadBitForBit) {
  CaseCounter cases(GetParam());
  Random random(61);
  for (const EncodingDescriptor& d : AllEncodings()) {
    SCOPED_TRACE(EncodingLabel(d));
    for (const auto& [tokens, heads, rows, cols] :
         {std::array{1u, 5u, 70u, 128u}, std::array{19u, 3u, 9u, 48u}, std::array{40u, 2u, 130u, 64u}}) {
      if (cases.LeavesOut()) {
        continue;
      }
      const EncodedMatrix w = random.Matrix(d, heads * rows, cols, 2 * random.Below(9));
      const std::vector<float> x = random.Normals(tokens * heads * (cols + 5));
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      const std::vector<float> y = RunHeads(bench, w, x, tokens, heads);
      ASSERT_TRUE(BitEqual(y, RunHeads(oracle, w, x, tokens, heads)));
      // The same dots as MatMul's, of one head's rows and inputs alone.
      const uint32_t head = heads - 1;
      const uint32_t t = tokens / 2;
      WeightView part = bench.PutMatrix(w);
      part.base = part.base + head * rows * w.stride;
      part.rows = rows;
      const MatMulPart one{part, bench.NewRows(1, rows), {}};
      const std::vector<float> row = Slice(x, heads * (cols + 5), t, 1);
      const auto begin = row.begin() + head * (cols + 5);
      MatMulArgs args;
      args.x = bench.PutRows(std::vector<float>(begin, begin + cols), cols);
      args.tokens = 1;
      args.cols = cols;
      args.parts = {&one, 1};
      ASSERT_TRUE(bench.queue().MatMul(args).ok());
      const auto got = y.begin() + t * heads * (rows + 3) + head * (rows + 3);
      ASSERT_TRUE(BitEqual(bench.GetRows(one.y, 1, rows), std::vector<float>(got, got + rows)));
      // Floats between the heads are not changed.
      ASSERT_EQ(got[rows], kUntouched);
    }
  }
}

TEST_P(LatentTest, ArgumentsThatDoNotFitAreRefusedWithNumbers) {
  OpBench bench(GetParam());
  Random random(62);
  HeadMatMulArgs heads;
  heads.x = bench.NewRows(2, 64);
  heads.x_head_stride = 16;
  heads.tokens = 2;
  heads.heads = 4;
  heads.weights = bench.PutMatrix(random.Matrix(MakeDescriptor(Encoding::kBf16), 12, 16));
  heads.y = bench.NewRows(2, 12);
  heads.y_head_stride = 3;
  EXPECT_TRUE(bench.queue().HeadMatMul(heads).ok());
  const auto refused = [](const absl::Status& status, const std::string& words) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  heads.y_head_stride = 2;
  refused(bench.queue().HeadMatMul(heads), "strides of 16 and 2");
  heads.heads = 5;
  refused(bench.queue().HeadMatMul(heads), "12 rows do not divide over 5");

  const uint32_t page = 0;
  const SequenceRows sequence{0, 2, 0, {&page, 1}};
  LatentKvWriteArgs latent;
  latent.q = bench.NewRows(2, 2 * (4 + 8));
  latent.nope_dim = 4;
  latent.latent = bench.NewRows(2, 24);
  latent.q_out = bench.NewRows(2, 48);
  latent.tokens = 2;
  latent.heads = 2;
  latent.kv_rank = 16;
  latent.rope_table = bench.NewWords(2 * 8);
  latent.rope_positions = 2;
  latent.rope_dims = 8;
  latent.sequences = {&sequence, 1};
  latent.kv = {KvType::kF16, bench.NewWords(32 * 24 / 2), {}, 32 * 24 * 2, 1, 1, 24, 16};
  latent.kv.v = latent.kv.k;
  EXPECT_TRUE(bench.queue().LatentKvWrite(latent).ok());
  LatentKvWriteArgs bad = latent;
  bad.kv.value_dim = 18;
  refused(bench.queue().LatentKvWrite(bad), "values of 18");
  bad = latent;
  bad.kv_rank = 15;
  refused(bench.queue().LatentKvWrite(bad), "rank of 15");
  bad = latent;
  bad.q_out = {latent.q.base, 48};
  EXPECT_FALSE(bench.queue().LatentKvWrite(bad).ok());
  bad = latent;
  bad.rope_positions = 1;
  refused(bench.queue().LatentKvWrite(bad), "rope table's 1");
}

}  // namespace
}  // namespace sluice
