// GatedDelta on every backend: against transformers, and state carried over any chunking.
#include <algorithm>
#include <cmath>
#include <map>

#include "gtest/gtest.h"
#include "kernels/scalar_math.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class DeltaTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, DeltaTest, testing::ValuesIn(AllBackends()), CaseName);

// A layer's weights and the inputs of one sequence.
struct Layer {
  DeltaConfig shape;
  uint32_t positions = 0;
  std::vector<float> qkv, z, beta, decay, conv, a_log, dt_bias, norm;
  uint32_t ConvCols() const {
    return 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
  }
  uint32_t Values() const { return shape.value_heads * shape.value_dim; }
  uint32_t Decays() const { return shape.value_heads * (shape.channel_decay ? shape.key_dim : 1); }
  uint64_t StateFloats() const {
    return (shape.conv_kernel - 1) * ConvCols() + uint64_t{shape.key_dim} * Values();
  }
};

Layer RandomLayer(const DeltaConfig& shape, uint32_t positions, uint64_t seed) {
  Layer layer{.shape = shape, .positions = positions};
  Random random(70);  // weights do not depend on the sequence
  layer.conv = random.Normals(layer.ConvCols() * shape.conv_kernel, 0.5f);
  layer.a_log = random.Normals(shape.value_heads);
  layer.dt_bias = random.Normals(layer.Decays());
  layer.norm = random.Normals(shape.value_dim);
  Random inputs(seed);
  layer.qkv = inputs.Normals(positions * layer.ConvCols());
  layer.z = inputs.Normals(positions * layer.Values());
  layer.beta = inputs.Normals(positions * shape.value_heads, 2.0f);
  layer.decay = inputs.Normals(positions * layer.Decays(), 3.0f);
  return layer;
}

// Sequences of one layer on one backend, each with two slots that take turns.
class Runner {
 public:
  Runner(const BackendCase& which, const std::vector<Layer>& sequences)
      : bench_(which), sequences_(sequences), next_(sequences.size()), outputs_(sequences.size()) {
    const Layer& layer = sequences[0];
    conv_ = bench_.PutRows(layer.conv, layer.shape.conv_kernel);
    a_log_ = bench_.PutFloats(layer.a_log);
    dt_bias_ = bench_.PutFloats(layer.dt_bias);
    norm_ = bench_.PutFloats(layer.norm);
    state_.slot_stride = (layer.StateFloats() * 4 + 63) / 64 * 64;
    state_.slots = static_cast<uint32_t>(2 * sequences.size());
    // Old contents of a slot must not affect a sequence that begins.
    state_.base =
        bench_.PutWritable(std::vector<float>(state_.slots * state_.slot_stride / 4, std::nanf("")));
  }

  // Runs the next rows[i] positions of sequence order[i].
  void Step(const std::vector<uint32_t>& order, const std::vector<uint32_t>& rows, bool commit = true) {
    const Layer& layer = sequences_[0];
    std::vector<SequenceRows> batch;
    std::vector<uint32_t> from, to;
    std::vector<float> qkv, z, beta, decay;
    uint32_t tokens = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t s = order[i];
      batch.push_back({tokens, rows[i], next_[s], {}});
      // Slots 2 s and 2 s + 1 take turns as the new one.
      from.push_back(2 * s + turn_[s] % 2);
      to.push_back(2 * s + 1 - turn_[s] % 2);
      Append(sequences_[s].qkv, layer.ConvCols(), s, rows[i], &qkv);
      Append(sequences_[s].z, layer.Values(), s, rows[i], &z);
      Append(sequences_[s].beta, layer.shape.value_heads, s, rows[i], &beta);
      Append(sequences_[s].decay, layer.Decays(), s, rows[i], &decay);
      tokens += rows[i];
    }
    GatedDeltaArgs args;
    args.qkv = bench_.PutRows(qkv, layer.ConvCols());
    args.z = bench_.PutRows(z, layer.Values());
    args.beta = bench_.PutRows(beta, layer.shape.value_heads);
    args.decay = bench_.PutRows(decay, layer.Decays());
    args.tokens = tokens;
    args.shape = layer.shape;
    args.conv = conv_;
    args.a_log = a_log_;
    args.dt_bias = dt_bias_;
    args.norm = {norm_, 1e-6f};
    args.sequences = batch;
    args.from = from;
    args.to = to;
    args.state = state_;
    args.out = bench_.NewRows(tokens, layer.Values());
    const absl::Status status = bench_.queue().GatedDelta(args);
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<float> out = bench_.GetRows(args.out, tokens, layer.Values());
    for (size_t i = 0; commit && i < order.size(); ++i) {
      const auto first = out.begin() + int64_t{batch[i].first_row} * layer.Values();
      outputs_[order[i]].insert(outputs_[order[i]].end(), first, first + int64_t{rows[i]} * layer.Values());
      next_[order[i]] += rows[i];
      ++turn_[order[i]];
    }
  }

  void RunAlone(uint32_t s, uint32_t chunk) {
    while (next_[s] < sequences_[s].positions) {
      Step({s}, {std::min(chunk, sequences_[s].positions - next_[s])});
    }
  }

  const std::vector<float>& Output(uint32_t s) const { return outputs_[s]; }
  std::vector<float> State(uint32_t s) {
    return bench_.Floats(state_.base + (2 * s + turn_[s] % 2) * state_.slot_stride,
                         sequences_[s].StateFloats());
  }

 private:
  void Append(const std::vector<float>& from, uint64_t cols, uint32_t s, uint32_t rows,
              std::vector<float>* to) const {
    const auto first = from.begin() + static_cast<int64_t>(next_[s] * cols);
    to->insert(to->end(), first, first + static_cast<int64_t>(rows * cols));
  }

  OpBench bench_;
  const std::vector<Layer> sequences_;
  std::vector<uint32_t> next_;
  std::map<uint32_t, uint32_t> turn_;
  std::vector<std::vector<float>> outputs_;
  Rows conv_;
  BufferRef a_log_, dt_bias_, norm_;
  DeltaStateView state_;
};

TEST_P(DeltaTest, OutputsAreThoseOfTransformers) {
  const Goldens goldens;
  Layer layer;
  layer.shape = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 12, .conv_kernel = 4};
  layer.positions = 40;
  layer.qkv = goldens.Floats("delta.qkv");
  layer.z = goldens.Floats("delta.z");
  layer.beta = goldens.Floats("delta.beta");
  layer.decay = goldens.Floats("delta.decay");
  layer.conv = goldens.Floats("delta.conv");
  layer.a_log = goldens.Floats("delta.a_log");
  layer.dt_bias = goldens.Floats("delta.dt_bias");
  layer.norm = goldens.Floats("delta.norm");
  const std::vector<float>& expected = goldens.Floats("delta.out");
  Runner runner(GetParam(), {layer});
  runner.RunAlone(0, 17);
  ASSERT_EQ(runner.Output(0).size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    // Transformers uses the chunked form in float32, with other sums. The norm makes outputs of size 1.
    ASSERT_NEAR(runner.Output(0)[i], expected[i], 2e-5 * (1 + std::fabs(expected[i]))) << i;
  }
}

TEST_P(DeltaTest, AnyChunkingEqualsTheReferenceBitForBit) {
  CaseCounter cases(GetParam());
  const DeltaConfig shapes[] = {
      {.key_heads = 1, .value_heads = 1, .key_dim = 1, .value_dim = 1, .conv_kernel = 1},
      {.key_heads = 2, .value_heads = 6, .key_dim = 20, .value_dim = 37, .conv_kernel = 4},
      {.key_heads = 2, .value_heads = 2, .key_dim = 33, .value_dim = 128, .conv_kernel = 3},
      {.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 100, .conv_kernel = 7},
      {.key_heads = 3,
       .value_heads = 3,
       .key_dim = 40,
       .value_dim = 40,
       .conv_kernel = 4,
       .channel_decay = true,
       .sigmoid_gate = true},
      {.key_heads = 2,
       .value_heads = 2,
       .key_dim = 128,
       .value_dim = 64,
       .conv_kernel = 16,
       .channel_decay = true,
       .decay_floor = -5,
       .sigmoid_gate = true}};
  for (const DeltaConfig& shape : shapes) {
    SCOPED_TRACE(shape.value_dim);
    const std::vector<Layer> sequences = {RandomLayer(shape, 30, 71), RandomLayer(shape, 13, 72)};
    Runner oracle(kReference, sequences);
    oracle.RunAlone(0, 30);
    oracle.RunAlone(1, 13);
    for (const uint32_t chunk : {1u, 2u, 11u, 30u}) {
      if (cases.LeavesOut()) {
        continue;
      }
      Runner runner(GetParam(), sequences);
      runner.RunAlone(0, chunk);
      ASSERT_TRUE(BitEqual(runner.Output(0), oracle.Output(0))) << "chunks of " << chunk;
      ASSERT_TRUE(BitEqual(runner.State(0), oracle.State(0))) << "chunks of " << chunk;
    }
    Runner batched(GetParam(), sequences);
    batched.Step({1, 0}, {2, 9});
    batched.Step({0, 1}, {1, 1});
    batched.RunAlone(1, 5);
    batched.RunAlone(0, 7);
    for (const uint32_t s : {0u, 1u}) {
      ASSERT_TRUE(BitEqual(batched.Output(s), oracle.Output(s))) << "sequence " << s;
      ASSERT_TRUE(BitEqual(batched.State(s), oracle.State(s))) << "sequence " << s;
    }
  }
}

TEST_P(DeltaTest, AStepThatRunsAgainComputesTheSame) {
  const DeltaConfig shape{.key_heads = 1, .value_heads = 2, .key_dim = 16, .value_dim = 16, .conv_kernel = 4};
  const std::vector<Layer> sequences = {RandomLayer(shape, 12, 73)};
  Runner once(GetParam(), sequences);
  once.RunAlone(0, 5);
  Runner twice(GetParam(), sequences);
  for (const uint32_t rows : {5u, 5u, 2u}) {
    twice.Step({0}, {rows}, /*commit=*/false);
    twice.Step({0}, {rows});
  }
  EXPECT_TRUE(BitEqual(once.Output(0), twice.Output(0)));
  EXPECT_TRUE(BitEqual(once.State(0), twice.State(0)));
}

TEST_P(DeltaTest, ArgumentsThatDoNotFitAreRefusedWithNumbers) {
  const auto refused = [&](const std::string& words, auto&& change) {
    OpBench bench(GetParam());
    const SequenceRows sequences[] = {{0, 2, 3, {}}, {2, 1, 0, {}}};
    uint32_t from[] = {0, 9};
    uint32_t to[] = {1, 2};
    GatedDeltaArgs args;
    args.shape = {.key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 4, .conv_kernel = 4};
    args.qkv = bench.NewRows(3, 16);
    args.z = bench.NewRows(3, 8);
    args.beta = bench.NewRows(3, 2);
    args.decay = bench.NewRows(3, 2);
    args.tokens = 3;
    args.conv = bench.NewRows(16, 4);
    args.a_log = bench.NewWords(2);
    args.dt_bias = bench.NewWords(2);
    args.norm = {bench.NewWords(4), 1e-6f};
    args.sequences = sequences;
    args.from = from;
    args.to = to;
    args.state = {bench.PutWritable(std::vector<float>(3 * 80)), 320, 3};
    args.out = bench.NewRows(3, 8);
    const absl::Status fits = bench.queue().GatedDelta(args);
    ASSERT_TRUE(fits.ok()) << fits;
    change(args, from, to);
    const absl::Status status = bench.queue().GatedDelta(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  refused("from slot 0 to slot 3 of 3", [](GatedDeltaArgs&, uint32_t*, uint32_t* to) { to[0] = 3; });
  refused("from slot 4", [](GatedDeltaArgs&, uint32_t* from, uint32_t*) { from[0] = 4; });
  refused("slot 1 is written", [](GatedDeltaArgs&, uint32_t*, uint32_t* to) { to[1] = 1; });
  refused("slot 0 is written", [](GatedDeltaArgs&, uint32_t*, uint32_t* to) { to[1] = 0; });
  refused("for 2 sequences", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) { a.from = a.from.first(1); });
  refused("stride of 256", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) { a.state.slot_stride = 256; });
  refused("3 value heads do not divide over 2", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) {
    a.shape.value_heads = 3;
    a.shape.key_heads = 2;
  });
  refused("conv_kernel is 17", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) { a.shape.conv_kernel = 17; });
  refused("key_dim is 129", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) { a.shape.key_dim = 129; });
  refused("overlaps an input", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) { a.out = a.z; });
  refused("not an RMS norm", [](GatedDeltaArgs& a, uint32_t*, uint32_t*) { a.norm.kind = NormKind::kLayer; });
}

TEST(ScalarMathTest, LogSoftplusAndTemperatureMatchDouble) {
  for (double y = 1; y < 1e9; y = y * 1.013 + 1e-7) {
    ASSERT_NEAR(LogOf(y), std::log(y), 1e-13 * (1 + std::log(y))) << y;
  }
  for (float x = -80; x < 30; x += 0.37f) {
    const float e = std::exp(x);
    const double exact = std::log1p(std::exp(double{x}));
    ASSERT_NEAR(SoftplusOf(x, e), exact, exact * 4 * kRoundoff + 1e-44) << x;
  }
  EXPECT_TRUE(std::isnan(SoftplusOf(std::nanf(""), std::nanf(""))));
  EXPECT_EQ(TemperatureAt(62, 0.1f, 64, 1), 1.0f);
  EXPECT_EQ(TemperatureAt(63, 0.1f, 64, 1), static_cast<float>(1 + double{0.1f} * std::log(2.0)));
  EXPECT_EQ(TemperatureAt(63, 0.1f, 64, 0), 1.0f);
}

}  // namespace
}  // namespace sluice
