// Residual streams on every backend: StreamMix and StreamWrite; gated ones: StreamMean, StreamAdd,
// StreamMatch and the SiLU of their gates.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};
constexpr uint32_t kTokens = 5;

struct Shape {
  uint32_t streams, hidden, iterations;
};
// A mix at the end has no iterations; more columns than a tile has.
const Shape kShapes[] = {{4, 48, 20}, {2, 37, 1}, {3, 300, 3}, {4, 64, 0}};

BackendLimits StreamLimits() {
  BackendLimits limits = TestLimits();
  limits.max_cols = std::max(limits.max_cols, 2048u);
  return limits;
}

struct Inputs {
  std::vector<float> x, raw, scale, base, y;
};

uint32_t RawsOf(const Shape& s) { return s.iterations > 0 ? (2 + s.streams) * s.streams : s.streams; }

Inputs MakeInputs(const Shape& s) {
  Random random(50);
  return {random.Normals(uint64_t{kTokens} * s.streams * s.hidden, 3.0f),
          random.Normals(uint64_t{kTokens} * RawsOf(s), 4.0f), random.Normals(s.iterations > 0 ? 3 : 1),
          random.Normals(RawsOf(s)), random.Normals(uint64_t{kTokens} * s.hidden)};
}

struct Results {
  std::vector<float> y, factors, streams;
};

Results MixAndWrite(const BackendCase& which, const Shape& s, const Inputs& inputs, bool in_place) {
  OpBench bench(which, StreamLimits());
  const uint64_t cols = uint64_t{s.streams} * s.hidden;
  const uint64_t factors = uint64_t{1 + s.streams} * s.streams;
  StreamMixArgs mix;
  mix.x = {bench.PutWritable(inputs.x), cols};
  mix.raw = bench.PutRows(inputs.raw, RawsOf(s));
  mix.scale = bench.PutFloats(inputs.scale);
  mix.base = bench.PutFloats(inputs.base);
  mix.tokens = kTokens;
  mix.streams = s.streams;
  mix.hidden = s.hidden;
  mix.norm_epsilon = 1e-5f;
  mix.epsilon = 1e-6f;
  mix.iterations = s.iterations;
  mix.y = bench.NewRows(kTokens, s.hidden);
  if (s.iterations > 0) mix.factors = bench.NewRows(kTokens, factors);
  absl::Status status = bench.queue().StreamMix(mix);
  EXPECT_TRUE(status.ok()) << status;
  Results results;
  results.y = bench.GetRows(mix.y, kTokens, s.hidden);
  if (s.iterations == 0) return results;
  StreamWriteArgs write;
  write.x = mix.x;
  write.y = bench.PutRows(inputs.y, s.hidden);
  write.factors = mix.factors;
  write.tokens = kTokens;
  write.streams = s.streams;
  write.hidden = s.hidden;
  write.out = in_place ? mix.x : bench.NewRows(kTokens, cols);
  status = bench.queue().StreamWrite(write);
  EXPECT_TRUE(status.ok()) << status;
  results.factors = bench.GetRows(mix.factors, kTokens, factors);
  results.streams = bench.GetRows(write.out, kTokens, cols);
  return results;
}

class StreamTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, StreamTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(StreamTest, EqualsTheReferenceBitForBit) {
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    SCOPED_TRACE(testing::Message() << "shape " << i);
    const Inputs inputs = MakeInputs(kShapes[i]);
    const Results expected = MixAndWrite(kReference, kShapes[i], inputs, false);
    for (const bool in_place : {false, true}) {
      const Results got = MixAndWrite(GetParam(), kShapes[i], inputs, in_place);
      EXPECT_EQ(got.y, expected.y);
      EXPECT_EQ(got.factors, expected.factors);
      EXPECT_EQ(got.streams, expected.streams);
    }
  }
}

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

// Sinkhorn's iterations in double: the softmax of each row, then columns and rows in turn.
std::vector<double> Sinkhorn(std::vector<double> matrix, uint32_t m, uint32_t iterations, double epsilon) {
  for (uint32_t i = 0; i < m; ++i) {
    double sum = 0;
    for (uint32_t k = 0; k < m; ++k) sum += std::exp(matrix[i * m + k]);
    for (uint32_t k = 0; k < m; ++k) matrix[i * m + k] = std::exp(matrix[i * m + k]) / sum + epsilon;
  }
  for (uint32_t step = 0; step < 2 * iterations - 1; ++step) {
    std::vector<double> sums(m, epsilon);
    const auto line = [&](uint32_t i, uint32_t k) { return step % 2 == 0 ? k : i; };
    for (uint32_t i = 0; i < m; ++i) {
      for (uint32_t k = 0; k < m; ++k) sums[line(i, k)] += matrix[i * m + k];
    }
    for (uint32_t i = 0; i < m; ++i) {
      for (uint32_t k = 0; k < m; ++k) matrix[i * m + k] /= sums[line(i, k)];
    }
  }
  return matrix;
}

TEST(StreamReferenceTest, AgreesWithTheFormula) {
  const Shape& s = kShapes[0];
  const Inputs inputs = MakeInputs(s);
  const Results results = MixAndWrite(kReference, s, inputs, false);
  const uint32_t m = s.streams;
  for (uint32_t t = 0; t < kTokens; ++t) {
    const float* x = inputs.x.data() + uint64_t{t} * m * s.hidden;
    const float* raw = inputs.raw.data() + uint64_t{t} * RawsOf(s);
    double squares = 0;
    for (uint32_t k = 0; k < m * s.hidden; ++k) squares += double{x[k]} * x[k];
    const double r = 1 / std::sqrt(squares / (m * s.hidden) + 1e-5);
    std::vector<double> w;
    for (uint32_t k = 0; k < RawsOf(s); ++k) {
      w.push_back(raw[k] * r * inputs.scale[std::min(k / m, 2u)] + inputs.base[k]);
    }
    const std::vector<double> matrix = Sinkhorn({w.begin() + 2 * m, w.end()}, m, s.iterations, 1e-6);
    for (uint32_t c = 0; c < s.hidden; ++c) {
      double y = 0;
      for (uint32_t i = 0; i < m; ++i) y += (SigmoidOf(w[i]) + 1e-6) * x[i * s.hidden + c];
      EXPECT_NEAR(results.y[t * s.hidden + c], y, 1e-4);
      for (uint32_t j = 0; j < m; ++j) {
        double out = 2 * SigmoidOf(w[m + j]) * inputs.y[t * s.hidden + c];
        for (uint32_t i = 0; i < m; ++i) out += matrix[i * m + j] * x[i * s.hidden + c];
        EXPECT_NEAR(results.streams[(uint64_t{t} * m + j) * s.hidden + c], out, 1e-4);
      }
    }
  }
}

// Gated streams: the input of a block, its output added to all, and the match of streams with keys.

struct GatedInputs {
  std::vector<float> x, gates, y, factors;
};

GatedInputs MakeGatedInputs(const Shape& s) {
  Random random(51);
  const uint64_t all = uint64_t{kTokens} * s.streams * s.hidden;
  return {random.Normals(all, 2.0f), random.Normals(all, 3.0f), random.Normals(uint64_t{kTokens} * s.hidden),
          random.Normals(uint64_t{kTokens} * s.streams, 2.0f)};
}

struct GatedResults {
  std::vector<float> mean, added, alone, match, silu;
  bool operator==(const GatedResults&) const = default;
};

GatedResults RunGated(const BackendCase& which, const Shape& s, const GatedInputs& inputs) {
  OpBench bench(which, StreamLimits());
  const uint64_t cols = uint64_t{s.streams} * s.hidden;
  const Rows x = {bench.PutWritable(inputs.x), cols};
  const Rows gates = bench.PutRows(inputs.gates, cols);
  const Rows y = bench.PutRows(inputs.y, s.hidden);
  const Rows factors = bench.PutRows(inputs.factors, s.streams);
  const Rows mean = bench.NewRows(kTokens, s.hidden);
  const Rows alone = bench.NewRows(kTokens, cols);
  const Rows match = bench.NewRows(kTokens, s.streams);
  const auto expect_ok = [](const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; };
  Queue& queue = bench.queue();
  expect_ok(queue.StreamMean({x, gates, kTokens, s.streams, s.hidden, mean}));
  expect_ok(queue.StreamMatch({x, gates, kTokens, s.streams, s.hidden, match}));
  expect_ok(queue.StreamAdd({{}, y, factors, 0.5f, kTokens, s.streams, s.hidden, alone}));
  expect_ok(queue.StreamAdd({x, y, factors, 2.0f, kTokens, s.streams, s.hidden, x}));
  const Rows silu = {bench.PutWritable(inputs.y), s.hidden};
  expect_ok(queue.OutputGate({.x = silu, .tokens = kTokens, .cols = s.hidden}));
  return {bench.GetRows(mean, kTokens, s.hidden), bench.GetRows(x, kTokens, cols),
          bench.GetRows(alone, kTokens, cols), bench.GetRows(match, kTokens, s.streams),
          bench.GetRows(silu, kTokens, s.hidden)};
}

TEST_P(StreamTest, GatedStreamsEqualTheReference) {
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    SCOPED_TRACE(testing::Message() << "shape " << i);
    const GatedInputs inputs = MakeGatedInputs(kShapes[i]);
    EXPECT_EQ(RunGated(GetParam(), kShapes[i], inputs), RunGated(kReference, kShapes[i], inputs));
  }
}

TEST(StreamReferenceTest, GatedStreamsAgreeWithTheFormula) {
  const Shape& s = kShapes[0];
  const GatedInputs inputs = MakeGatedInputs(s);
  const GatedResults results = RunGated(kReference, s, inputs);
  for (uint32_t row = 0; row < kTokens * s.streams; ++row) {
    const float* x = inputs.x.data() + uint64_t{row} * s.hidden;
    const float* gates = inputs.gates.data() + uint64_t{row} * s.hidden;
    const double factor = SigmoidOf(inputs.factors[row]);
    double dot = 0;
    for (uint32_t c = 0; c < s.hidden; ++c) {
      const uint64_t k = uint64_t{row} * s.hidden + c;
      const float y = inputs.y[uint64_t{row / s.streams} * s.hidden + c];
      EXPECT_NEAR(results.added[k], x[c] + 2 * factor * y, 1e-5);
      EXPECT_NEAR(results.alone[k], 0.5 * factor * y, 1e-5);
      dot += double{x[c]} * gates[c];
    }
    const double a = dot / std::sqrt(1.0 * s.hidden);
    EXPECT_NEAR(results.match[row], std::copysign(std::sqrt(std::max(std::abs(a), 1e-6)), a), 1e-5);
  }
  for (uint32_t i = 0; i < kTokens * s.hidden; ++i) {
    const uint32_t t = i / s.hidden;
    double mean = 0;
    for (uint32_t j = 0; j < s.streams; ++j) {
      const uint64_t k = (uint64_t{t} * s.streams + j) * s.hidden + i % s.hidden;
      mean += inputs.x[k] * SigmoidOf(inputs.gates[k]) / s.streams;
    }
    EXPECT_NEAR(results.mean[i], mean, 1e-5);
    EXPECT_NEAR(results.silu[i], inputs.y[i] * SigmoidOf(inputs.y[i]), 1e-5);
  }
}

TEST_P(StreamTest, GatedContradictionsAreRefused) {
  OpBench bench(GetParam(), StreamLimits());
  const Rows x = bench.NewRows(1, 64);
  const Rows y = bench.NewRows(1, 16);
  const Rows gates = bench.NewRows(1, 4);
  Queue& queue = bench.queue();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(queue.StreamMean({x, x, 1, 17, 16, y}).code(), kInvalid) << "streams";
  EXPECT_EQ(queue.StreamMean({x, x, 1, 4, 16, x}).code(), kInvalid) << "overlap";
  EXPECT_EQ(queue.StreamAdd({x, x, gates, 1, 1, 4, 16, x}).code(), kInvalid) << "overlap of y";
  EXPECT_EQ(queue.StreamAdd({x, y, x, 1, 1, 4, 16, x}).code(), kInvalid) << "overlap of gates";
  EXPECT_EQ(queue.StreamMatch({x, x, 1, 4, 16, x}).code(), kInvalid) << "overlap of a match";
  EXPECT_EQ(queue.OutputGate({.x = x, .tokens = 1, .cols = 64, .width = 4}).code(), kInvalid) << "own gates";
}

TEST_P(StreamTest, ContradictionsAreRefused) {
  OpBench bench(GetParam(), StreamLimits());
  StreamMixArgs mix;
  mix.x = bench.NewRows(1, 64);
  mix.raw = bench.NewRows(1, 24);
  mix.scale = bench.PutFloats({1, 1, 1});
  mix.base = bench.PutFloats(std::vector<float>(24));
  mix.tokens = 1;
  mix.streams = 17;
  mix.hidden = 16;
  mix.iterations = 2;
  mix.y = bench.NewRows(1, 16);
  mix.factors = bench.NewRows(1, 20);
  EXPECT_EQ(bench.queue().StreamMix(mix).code(), absl::StatusCode::kInvalidArgument) << "streams";
  mix.streams = 4;
  mix.norm_epsilon = -1;
  EXPECT_EQ(bench.queue().StreamMix(mix).code(), absl::StatusCode::kInvalidArgument) << "epsilon";
  mix.norm_epsilon = 0;
  mix.y = mix.x;
  EXPECT_EQ(bench.queue().StreamMix(mix).code(), absl::StatusCode::kInvalidArgument) << "overlap";
}

}  // namespace
}  // namespace sluice
