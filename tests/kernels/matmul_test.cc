// MatMul, Embed and Norm on every backend.
#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class MatMulTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, MatMulTest, testing::ValuesIn(AllBackends()), CaseName);

struct Shape {
  uint32_t tokens;
  uint32_t rows;
  uint32_t cols;
};

// Remainders of every tile: rows 1..70, columns off 16, 32 and the groups, tokens around the tile widths.
const Shape kShapes[] = {{1, 1, 1},     {1, 3, 15},    {1, 5, 16},  {2, 7, 17},   {1, 130, 128},
                         {3, 70, 100},  {4, 9, 257},   {5, 33, 64}, {6, 16, 192}, {7, 40, 130},
                         {13, 65, 513}, {29, 50, 320}, {64, 37, 96}};

std::vector<float> RunMatMul(OpBench& bench, const std::vector<float>& x, const EncodedMatrix& w,
                             uint32_t tokens) {
  const WeightView view = bench.PutMatrix(w);
  MatMulArgs args;
  args.x = bench.PutRows(x, w.cols);
  args.tokens = tokens;
  args.cols = w.cols;
  const MatMulPart part{view, bench.NewRows(tokens, w.rows, w.rows + 3), {}};
  args.parts = {&part, 1};
  const absl::Status status = bench.queue().MatMul(args);
  EXPECT_TRUE(status.ok()) << status;
  return bench.GetRows(part.y, tokens, w.rows);
}

// The error bound of one dot product. Float rows: n/16 additions in a lane and 5 in the tree and closing, on
// the sum of magnitudes. Quantized rows: also half a step of the rounded activations, and the rounding of
// S, X * zero and their difference (three roundings of magnitudes up to 255 * 127 * group).
double DotTolerance(const EncodedMatrix& w, uint32_t row, const float* x) {
  double magnitude = 0;
  double steps = 0;
  const uint32_t group = w.encoding.group == 0 ? w.cols : w.encoding.group;
  const bool quantized = IsQuantized(w.encoding.encoding);
  const double levels = quantized ? (1u << BitsOf(w.encoding.encoding)) - 1 : 1;
  const double scale = 6.0 / std::sqrt(double{static_cast<double>(w.cols)}) / levels * 1.5;
  for (uint32_t first = 0; first < w.cols; first += group) {
    const uint32_t end = std::min(w.cols, first + group);
    double largest = 0;
    for (uint32_t k = first; k < end; ++k) {
      largest = std::max(largest, std::fabs(double{x[k]}));
      magnitude += std::fabs(x[k] * w.At(row, k));
    }
    for (uint32_t k = first; k < end && w.encoding.group != 0; ++k) {
      // Half a step each (and a little for the float product), plus float roundings on |code| + |zero|, at
      // most 1.5 levels and 8, times the scale; the 8-bit ones are up to half as large again.
      steps += largest / 127 * 0.51 * std::fabs(w.At(row, k));
      steps += largest * (1.5 * levels + 8) * scale * 4 * kRoundoff;
    }
  }
  return (w.cols / 16 + 8) * kRoundoff * magnitude + steps + 1e-30;
}

TEST_P(MatMulTest, EqualsReferenceAndDoubleWithinTheBound) {
  CaseCounter cases(GetParam());
  Random random(1);
  for (const EncodingDescriptor& d : AllEncodings()) {
    for (const Shape& shape : kShapes) {
      if (cases.LeavesOut()) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " tokens " << shape.tokens << " rows "
                                      << shape.rows << " cols " << shape.cols);
      const EncodedMatrix w = random.Matrix(d, shape.rows, shape.cols, 2 * random.Below(20));
      const std::vector<float> x = random.Normals(uint64_t{shape.tokens} * shape.cols);
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      const std::vector<float> y = RunMatMul(bench, x, w, shape.tokens);
      ASSERT_TRUE(BitEqual(y, RunMatMul(oracle, x, w, shape.tokens)));
      for (uint32_t t = 0; t < shape.tokens; ++t) {
        for (uint32_t r = 0; r < shape.rows; ++r) {
          double exact = 0;
          for (uint32_t k = 0; k < shape.cols; ++k) {
            exact += w.At(r, k) * x[uint64_t{t} * shape.cols + k];
          }
          ASSERT_NEAR(y[uint64_t{t} * shape.rows + r], exact,
                      DotTolerance(w, r, x.data() + uint64_t{t} * shape.cols))
              << "token " << t << " row " << r;
        }
      }
    }
  }
}

// Sums as large as they get, in rows of whole runs of eight groups with and without a rest: every code the
// largest or the smallest, every activation the group's largest with one sign, with both, or with random ones
// between.
TEST_P(MatMulTest, ExtremeCodesAndActivationsEqualTheReference) {
  CaseCounter cases(GetParam());
  Random random(9);
  const auto check = [&](const EncodingDescriptor& d, uint8_t largest, uint8_t smallest) {
    OpBench bench(GetParam());
    OpBench oracle(kReference);
    for (const uint32_t cols : {8u * d.group, 8u * d.group + 16u, 1088u}) {
      if (cases.LeavesOut()) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " cols " << cols);
      EncodedMatrix w = random.Matrix(d, 7, cols, 2 * random.Below(20));
      for (uint32_t r = 0; r < 6; ++r) {
        std::fill_n(w.bytes.begin() + static_cast<int64_t>(r * w.stride), CodeBytes(w.encoding, cols),
                    r < 4 ? largest : smallest);
      }
      std::vector<float> x(4 * cols, 1.0f);
      std::fill_n(x.begin() + cols, cols, -3.0f);
      for (uint32_t k = 0; k < cols; ++k) {
        x[2 * cols + k] = k % 3 == 0 ? 2.0f : -2.0f;
        x[3 * cols + k] = k % 64 == 0 ? -1.0f : random.Uniform(-1.0f, 1.0f);
      }
      x.insert(x.begin(), x.begin(), x.begin() + 3 * cols);
      for (const uint32_t tokens : {1u, 2u, 4u, 7u}) {
        const std::vector<float> rows(x.end() - static_cast<int64_t>(tokens * cols), x.end());
        ASSERT_TRUE(BitEqual(RunMatMul(bench, rows, w, tokens), RunMatMul(oracle, rows, w, tokens)));
      }
    }
  };
  for (const Encoding encoding : {Encoding::kQ8, Encoding::kQ4, Encoding::kQ3, Encoding::kQ2}) {
    for (uint16_t group = 16; group <= 128; group += 16) {
      check(MakeDescriptor(encoding, group), 0xff, 0x00);
    }
  }
  check(MakeDescriptor(Encoding::kMxfp4), 0x77, 0xff);
  for (const Encoding encoding : BlockEncodings()) {
    check(MakeDescriptor(encoding), 0xff, 0x00);
  }
}

// Rows of whole blocks of 256 values, which have kernels of their own for one token: fewer numbers of
// super-groups than are converted at once, exactly as many, more, and rows too long for it. Codes are any,
// then the largest and the smallest, with activations that are all large.
TEST_P(MatMulTest, WholeSuperGroupsEqualTheReference) {
  CaseCounter cases(GetParam());
  BackendLimits limits = TestLimits();
  limits.max_cols = 16640;
  Random random(12);
  std::vector<Encoding> encodings = {blocks::kQ4_K, blocks::kQ5_K, blocks::kQ6_K};
  if (GetParam().capability == 0) {  // device cuda refuses the others
    const std::vector<Encoding> file_blocks = FileBlockEncodings();
    encodings.insert(encodings.end(), file_blocks.begin(), file_blocks.end());
  }
  for (const Encoding encoding : encodings) {
    const EncodingDescriptor d = MakeDescriptor(encoding);
    for (const uint32_t cols : {256u, 768u, 2048u, 2304u, 16640u}) {
      if (cases.LeavesOut()) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " cols " << cols);
      EncodedMatrix w = random.Matrix(d, 6, cols, 2 * random.Below(20));
      for (uint32_t r = 2; r < 4 && !IsFileBlock(encoding); ++r) {
        std::fill_n(w.bytes.begin() + static_cast<int64_t>(r * w.stride), CodeBytes(d, cols),
                    r == 2 ? uint8_t{0xff} : uint8_t{0});
      }
      for (const float least : {-1.0f, 0.99f}) {
        std::vector<float> x(cols);
        for (float& value : x) {
          value = random.Uniform(least, 1.0f);
        }
        OpBench bench(GetParam(), limits);
        OpBench oracle(kReference, limits);
        ASSERT_TRUE(BitEqual(RunMatMul(bench, x, w, 1), RunMatMul(oracle, x, w, 1)));
      }
    }
  }
}

TEST_P(MatMulTest, RowAloneEqualsTheRowInAnyBatch) {
  CaseCounter cases(GetParam());
  Random random(2);
  const uint32_t tokens = 31;
  const uint32_t cols = 144;
  for (const EncodingDescriptor& d : AllEncodings()) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(EncodingLabel(d));
    const EncodedMatrix w = random.Matrix(d, 45, cols);
    const std::vector<float> x = random.Normals(tokens * cols);
    OpBench bench(GetParam());
    const std::vector<float> all = RunMatMul(bench, x, w, tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      const std::vector<float> row(x.begin() + t * cols, x.begin() + (t + 1) * cols);
      ASSERT_TRUE(BitEqual(RunMatMul(bench, row, w, 1),
                           std::vector<float>(all.begin() + t * 45, all.begin() + (t + 1) * 45)));
    }
    std::vector<float> reversed;
    for (uint32_t t = tokens; t-- > 0;) {
      reversed.insert(reversed.end(), x.begin() + t * cols, x.begin() + (t + 1) * cols);
    }
    const std::vector<float> backwards = RunMatMul(bench, reversed, w, tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      ASSERT_TRUE(std::equal(all.begin() + t * 45, all.begin() + (t + 1) * 45,
                             backwards.begin() + (tokens - 1 - t) * 45));
    }
  }
}

struct FullResult {
  std::vector<float> q, k, v, o, picked;
};

// Norm in front, three parts of mixed encodings, bias; then residual in place; then picked rows.
FullResult RunFull(OpBench& bench, uint32_t tokens, uint64_t seed) {
  Random random(seed);
  const uint32_t cols = 208;
  const EncodedMatrix wq = random.Matrix(MakeDescriptor(Encoding::kBf16), 48, cols);
  const EncodedMatrix wk = random.Matrix(MakeDescriptor(Encoding::kQ8, 64), 24, cols);
  const EncodedMatrix wv = random.Matrix(MakeDescriptor(Encoding::kQ8, 32), 25, cols);
  const Rows x = bench.PutRows(random.Normals(tokens * cols, 3.0f), cols);
  const BufferRef norm = bench.PutFloats(random.Normals(cols));
  const BufferRef bias = bench.PutFloats(random.Normals(25));
  MatMulPart parts[3] = {{bench.PutMatrix(wq), bench.NewRows(tokens, 48), {}},
                         {bench.PutMatrix(wk), bench.NewRows(tokens, 24), {}},
                         {bench.PutMatrix(wv), bench.NewRows(tokens, 25), bias, -1.5f}};
  MatMulArgs args;
  args.x = x;
  args.tokens = tokens;
  args.cols = cols;
  args.norm = {norm, 1e-6f};
  args.parts = parts;
  EXPECT_TRUE(bench.queue().MatMul(args).ok());

  MatMulArgs out;
  const EncodedMatrix wo = random.Matrix(MakeDescriptor(Encoding::kF16), cols, 48);
  MatMulPart part{bench.PutMatrix(wo), {bench.PutWritable(random.Normals(tokens * cols)), cols}, {}, 0.37f};
  out.x = parts[0].y;
  out.tokens = tokens;
  out.cols = 48;
  out.parts = {&part, 1};
  out.residual = part.y;
  EXPECT_TRUE(bench.queue().MatMul(out).ok());

  const std::vector<uint32_t> ids = {tokens - 1, 0, tokens / 2};
  MatMulArgs pick = args;
  MatMulPart picked{parts[1].weights, bench.NewRows(3, 24), {}};
  pick.tokens = 3;
  pick.row_ids = ids;
  pick.parts = {&picked, 1};
  EXPECT_TRUE(bench.queue().MatMul(pick).ok());
  return {bench.GetRows(parts[0].y, tokens, 48), bench.GetRows(parts[1].y, tokens, 24),
          bench.GetRows(parts[2].y, tokens, 25), bench.GetRows(part.y, tokens, cols),
          bench.GetRows(picked.y, 3, 24)};
}

TEST_P(MatMulTest, NormBiasResidualAndPickedRowsEqualReference) {
  for (const uint32_t tokens : {1u, 2u, 5u, 40u}) {
    OpBench bench(GetParam());
    OpBench oracle(kReference);
    const FullResult a = RunFull(bench, tokens, 3);
    const FullResult b = RunFull(oracle, tokens, 3);
    EXPECT_TRUE(BitEqual(a.q, b.q));
    EXPECT_TRUE(BitEqual(a.k, b.k));
    EXPECT_TRUE(BitEqual(a.v, b.v));
    EXPECT_TRUE(BitEqual(a.o, b.o));
    EXPECT_TRUE(BitEqual(a.picked, b.picked));
    EXPECT_TRUE(BitEqual(a.picked, [&] {
      std::vector<float> rows;
      for (const uint32_t t : {tokens - 1, 0u, tokens / 2}) {
        rows.insert(rows.end(), a.k.begin() + t * 24, a.k.begin() + (t + 1) * 24);
      }
      return rows;
    }()));
  }
}

TEST_P(MatMulTest, RmsNormEqualsTheReferenceAndDouble) {
  Random random(4);
  for (const uint32_t cols : {1u, 16u, 47u, 640u, 1000u}) {
    const uint32_t tokens = 19;
    const std::vector<float> x = random.Normals(tokens * cols, 5.0f);
    const std::vector<float> weight = random.Normals(cols);
    std::vector<float> results[2];
    for (int i = 0; i < 2; ++i) {
      OpBench bench(i == 0 ? GetParam() : kReference);
      NormArgs args;
      args.x = bench.PutRows(x, cols);
      args.tokens = tokens;
      args.cols = cols;
      args.norm = {bench.PutFloats(weight), 1e-5f};
      args.y = bench.NewRows(tokens, cols);
      ASSERT_TRUE(bench.queue().Norm(args).ok());
      results[i] = bench.GetRows(args.y, tokens, cols);
    }
    ASSERT_TRUE(BitEqual(results[0], results[1]));
    for (uint32_t t = 0; t < tokens; ++t) {
      double square = 0;
      for (uint32_t k = 0; k < cols; ++k) {
        square += double{x[t * cols + k]} * x[t * cols + k];
      }
      const double r = 1 / std::sqrt(square / cols + double{1e-5f});
      for (uint32_t k = 0; k < cols; ++k) {
        const double exact = x[t * cols + k] * r * weight[k];
        // Half of the relative error of the sum (square root), then five roundings.
        ASSERT_NEAR(results[0][t * cols + k], exact,
                    std::fabs(exact) * kRoundoff * ((cols / 16 + 6) / 2.0 + 6) + 1e-37);
      }
    }
  }
}

TEST_P(MatMulTest, LayerNormEqualsReferenceAloneAndInMatMul) {
  Random random(14);
  for (const bool biased : {true, false}) {
    for (const uint32_t cols : {1u, 16u, 47u, 640u}) {
      const uint32_t tokens = 19;
      std::vector<float> x = random.Normals(tokens * cols, 5.0f);
      for (float& value : x) {
        value += 3.0f;  // a mean to take away
      }
      const std::vector<float> weight = random.Normals(cols);
      const std::vector<float> bias = random.Normals(cols);
      const EncodedMatrix w = random.Matrix(MakeDescriptor(Encoding::kF32), 5, cols);
      std::vector<float> results[2];
      for (int i = 0; i < 2; ++i) {
        OpBench bench(i == 0 ? GetParam() : kReference);
        NormArgs args;
        args.x = bench.PutRows(x, cols);
        args.tokens = tokens;
        args.cols = cols;
        args.norm = {bench.PutFloats(weight), 1e-5f, NormKind::kLayer,
                     biased ? bench.PutFloats(bias) : BufferRef{}};
        args.y = bench.NewRows(tokens, cols);
        ASSERT_TRUE(bench.queue().Norm(args).ok());
        results[i] = bench.GetRows(args.y, tokens, cols);
        const WeightView view = bench.PutMatrix(w);
        const MatMulPart fused{view, bench.NewRows(tokens, 5), {}};
        const MatMulPart apart{view, bench.NewRows(tokens, 5), {}};
        ASSERT_TRUE(bench.queue().MatMul({args.x, tokens, cols, {}, args.norm, {&fused, 1}, {}}).ok());
        ASSERT_TRUE(bench.queue().MatMul({args.y, tokens, cols, {}, {}, {&apart, 1}, {}}).ok());
        ASSERT_TRUE(BitEqual(bench.GetRows(fused.y, tokens, 5), bench.GetRows(apart.y, tokens, 5)));
      }
      ASSERT_TRUE(BitEqual(results[0], results[1]));
      for (uint32_t t = 0; t < tokens; ++t) {
        const float* row = x.data() + t * cols;
        double mean = 0;
        for (uint32_t k = 0; k < cols; ++k) {
          mean += double{row[k]} / cols;
        }
        double square = 0;
        for (uint32_t k = 0; k < cols; ++k) {
          square += (row[k] - mean) * (row[k] - mean);
        }
        const double r = 1 / std::sqrt(square / cols + double{1e-5f});
        for (uint32_t k = 0; k < cols; ++k) {
          // The mean's error is one of the largest value's; it comes through with r and the weight.
          const double tolerance = (std::fabs(row[k] - mean) * 40 + 25 * 40) * r * std::fabs(weight[k]);
          const double exact = (row[k] - mean) * r * weight[k] + (biased ? double{bias[k]} : 0.0);
          ASSERT_NEAR(results[0][t * cols + k], exact, (tolerance + std::fabs(exact) + 1) * kRoundoff);
        }
      }
    }
  }
  OpBench bench(GetParam());
  const Rows x = bench.NewRows(1, 8);
  const NormSpec rms{bench.NewWords(8), 1e-5f, NormKind::kRms, bench.NewWords(8)};
  EXPECT_EQ(bench.queue().Norm({x, 1, 8, rms, x}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(MatMulTest, EmbedGivesTheDecodedRows) {
  CaseCounter cases(GetParam());
  Random random(5);
  const std::vector<int32_t> ids = {3, 0, 99, 3, 57};
  for (const EncodingDescriptor& d : AllEncodings()) {
    SCOPED_TRACE(EncodingLabel(d));
    for (const uint32_t cols : {16u, 75u, 256u}) {
      if (cases.LeavesOut()) {
        continue;
      }
      const EncodedMatrix table = random.Matrix(d, 100, cols, 6);
      OpBench bench(GetParam());
      EmbedArgs args;
      args.ids = ids;
      args.table = bench.PutMatrix(table);
      args.scale = 2.0f;
      args.y = bench.NewRows(ids.size(), cols);
      ASSERT_TRUE(bench.queue().Embed(args).ok());
      const std::vector<float> y = bench.GetRows(args.y, ids.size(), cols);
      for (size_t t = 0; t < ids.size(); ++t) {
        for (uint32_t k = 0; k < cols; ++k) {
          const double exact = 2 * table.At(static_cast<uint32_t>(ids[t]), k);
          // Plain rows are exact; code - zero, scale and factor round once each.
          ASSERT_NEAR(y[t * cols + k], exact,
                      IsQuantized(d.encoding) ? std::fabs(exact) * 3 * kRoundoff : 0.0);
        }
      }
    }
  }
}

// Rows of file blocks of any bits: products and rows alone, of whole blocks and with a part of one.
TEST_P(MatMulTest, FileBlocksEqualTheReference) {
  Random random(11);
  const std::vector<int32_t> ids = {3, 0, 36};
  for (const Encoding encoding : FileBlockEncodings()) {
    const EncodingDescriptor d = MakeDescriptor(encoding);
    for (const uint32_t cols : {512u, 1024u, 304u}) {
      SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " cols " << cols);
      const EncodedMatrix w = random.Matrix(d, 37, cols, 2 * random.Below(20));
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      EmbedArgs embed;
      embed.ids = ids;
      embed.table = bench.PutMatrix(w);
      embed.scale = 2.0f;
      embed.y = bench.NewRows(ids.size(), cols);
      const absl::Status embedded = bench.queue().Embed(embed);
      if (GetParam().capability != 0) {
        EXPECT_EQ(embedded.code(), absl::StatusCode::kUnimplemented) << embedded;
        EXPECT_NE(std::string(embedded.message()).find(EncodingName(encoding)), std::string::npos);
        continue;
      }
      ASSERT_TRUE(embedded.ok()) << embedded;
      const std::vector<float> rows = bench.GetRows(embed.y, ids.size(), cols);
      for (size_t i = 0; i < rows.size(); ++i) {
        const double exact = 2 * w.At(static_cast<uint32_t>(ids[i / cols]), static_cast<uint32_t>(i % cols));
        ASSERT_NEAR(rows[i], exact, std::fabs(exact) * 3 * kRoundoff) << i;
      }
      for (const uint32_t tokens : {1u, 3u, 9u, 40u}) {
        const std::vector<float> x = random.Normals(uint64_t{tokens} * cols);
        const std::vector<float> y = RunMatMul(bench, x, w, tokens);
        ASSERT_TRUE(BitEqual(y, RunMatMul(oracle, x, w, tokens))) << tokens;
        for (uint32_t r = 0; r < w.rows; ++r) {
          double exact = 0;
          for (uint32_t k = 0; k < cols; ++k) exact += w.At(r, k) * x[k];
          ASSERT_NEAR(y[r], exact, DotTolerance(w, r, x.data())) << "row " << r;
        }
      }
    }
  }
}

TEST_P(MatMulTest, TimeInOperationsIsCountedHoweverSmallTheyAre) {
  OpBench bench(GetParam());
  const Rows x = bench.NewRows(1, 8);
  const NormSpec rms{bench.NewWords(8), 1e-5f, NormKind::kRms, {}};
  EXPECT_EQ(bench.backend().Counters().kernel_seconds, 0);
  EXPECT_FALSE(bench.queue().Norm({x, 0, 8, rms, x}).ok());
  EXPECT_EQ(bench.backend().Counters().kernel_seconds, 0);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(bench.queue().Norm({x, 1, 8, rms, x}).ok());
  }
  ASSERT_TRUE(bench.queue().Wait(bench.queue().Record()).ok());
  const BackendCounters counters = bench.backend().Counters();
  EXPECT_GT(counters.kernel_seconds, 0);
  EXPECT_EQ(counters.region_seconds, 0);  // nothing was worth sharing out
}

}  // namespace
}  // namespace sluice
