// Mamba, ShortConv and SelectiveScan on every backend: against sums over the whole sequence in double, and
// state carried over any chunking.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "gtest/gtest.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class StateTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, StateTest, testing::ValuesIn(AllBackends()), CaseName);

// Slots of sequences that take turns, and their next positions; old contents of slots are NaN.
class Sequences {
 public:
  Sequences(OpBench* bench, uint32_t count, uint64_t floats) : bench_(bench), floats_(floats), next_(count) {
    state_.slot_stride = (floats * 4 + 63) / 64 * 64;
    state_.slots = 2 * count;
    state_.base =
        bench_->PutWritable(std::vector<float>(state_.slots * state_.slot_stride / 4, std::nanf("")));
  }

  // Runs the next rows[i] positions of sequence order[i]: calls run(tokens, sequences, from, to) and, with
  // `commit`, goes on from there.
  template <class Run>
  void Step(const std::vector<uint32_t>& order, const std::vector<uint32_t>& rows, bool commit,
            const Run& run) {
    std::vector<SequenceRows> batch;
    std::vector<uint32_t> from, to;
    uint32_t tokens = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      const uint32_t s = order[i];
      batch.push_back({tokens, rows[i], next_[s], {}});
      from.push_back(2 * s + turn_[s] % 2);
      to.push_back(2 * s + 1 - turn_[s] % 2);
      tokens += rows[i];
    }
    run(tokens, batch, from, to);
    for (size_t i = 0; commit && i < order.size(); ++i) {
      next_[order[i]] += rows[i];
      ++turn_[order[i]];
    }
  }
  uint32_t next(uint32_t s) const { return next_[s]; }
  const DeltaStateView& view() const { return state_; }
  std::vector<float> State(uint32_t s) {
    return bench_->Floats(state_.base + (2 * s + turn_[s] % 2) * state_.slot_stride, floats_);
  }

 private:
  OpBench* const bench_;
  const uint64_t floats_;
  std::vector<uint32_t> next_;
  std::map<uint32_t, uint32_t> turn_;
  DeltaStateView state_;
};

// Rows [first, first + rows) of each sequence of a batch, one after the other.
std::vector<float> Gather(const std::vector<std::vector<float>>& of, const std::vector<uint32_t>& order,
                          const std::vector<SequenceRows>& batch, uint64_t cols) {
  std::vector<float> out;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto first = of[order[i]].begin() + static_cast<int64_t>(batch[i].first_position * cols);
    out.insert(out.end(), first, first + static_cast<int64_t>(batch[i].rows * cols));
  }
  return out;
}

// One kind of layer: its inputs by sequence, and how a batch of them runs.
struct MambaLayer {
  MambaConfig shape;
  std::vector<float> conv, conv_bias, a_log, dt_bias, skip, norm;
  std::vector<std::vector<float>> z, xbc, dt;  // by sequence

  uint32_t Values() const { return shape.heads * shape.head_dim; }
  uint32_t ConvCols() const { return Values() + 2 * shape.groups * shape.state; }
  uint32_t OutCols() const { return Values(); }
  uint64_t StateFloats() const {
    return uint64_t{shape.conv_kernel - 1} * ConvCols() + uint64_t{shape.state} * Values();
  }

  static MambaLayer Random(const MambaConfig& shape, const std::vector<uint32_t>& positions) {
    MambaLayer layer{.shape = shape};
    class Random random(80);
    layer.conv = random.Normals(shape.conv_kernel * layer.ConvCols(), 0.5f);
    layer.conv_bias = random.Normals(layer.ConvCols());
    layer.a_log = random.Normals(shape.heads);
    layer.dt_bias = random.Normals(shape.heads);
    layer.skip = random.Normals(shape.heads);
    layer.norm = random.Normals(layer.Values());
    for (const uint32_t count : positions) {
      layer.z.push_back(random.Normals(count * layer.Values()));
      layer.xbc.push_back(random.Normals(count * layer.ConvCols()));
      layer.dt.push_back(random.Normals(count * shape.heads, 2.0f));
    }
    return layer;
  }

  Rows Run(OpBench* bench, uint32_t tokens, const std::vector<uint32_t>& order,
           const std::vector<SequenceRows>& batch, const std::vector<uint32_t>& from,
           const std::vector<uint32_t>& to, const DeltaStateView& state) const {
    MambaArgs args;
    args.z = bench->PutRows(Gather(z, order, batch, Values()), Values());
    args.xbc = bench->PutRows(Gather(xbc, order, batch, ConvCols()), ConvCols());
    args.dt = bench->PutRows(Gather(dt, order, batch, shape.heads), shape.heads);
    args.tokens = tokens;
    args.shape = shape;
    args.conv = bench->PutRows(conv, ConvCols());
    args.conv_bias = bench->PutFloats(conv_bias);
    args.a_log = bench->PutFloats(a_log);
    args.dt_bias = bench->PutFloats(dt_bias);
    args.skip = bench->PutFloats(skip);
    args.norm = {bench->PutFloats(norm), 1e-6f};
    args.sequences = batch;
    args.from = from;
    args.to = to;
    args.state = state;
    args.out = bench->NewRows(tokens, Values());
    const absl::Status status = bench->queue().Mamba(args);
    EXPECT_TRUE(status.ok()) << status;
    return args.out;
  }
};

struct ConvLayer {
  ShortConvConfig shape;
  bool gated = true;
  uint32_t dilation = 1;
  std::vector<float> conv, bias;
  std::vector<std::vector<float>> bcx;  // by sequence

  uint32_t InCols() const { return (gated ? 3 : 1) * shape.width; }

  uint32_t OutCols() const { return shape.width; }
  uint64_t StateFloats() const { return uint64_t{shape.kernel - 1} * dilation * shape.width; }

  static ConvLayer Random(const ShortConvConfig& shape, const std::vector<uint32_t>& positions,
                          bool gated = true, uint32_t dilation = 1) {
    ConvLayer layer{.shape = shape, .gated = gated, .dilation = dilation};
    class Random random(81);
    layer.conv = random.Normals(shape.kernel * shape.width);
    if (shape.bias) layer.bias = random.Normals(shape.width);
    for (const uint32_t count : positions) layer.bcx.push_back(random.Normals(count * layer.InCols()));
    return layer;
  }

  Rows Run(OpBench* bench, uint32_t tokens, const std::vector<uint32_t>& order,
           const std::vector<SequenceRows>& batch, const std::vector<uint32_t>& from,
           const std::vector<uint32_t>& to, const DeltaStateView& state) const {
    ShortConvArgs args;
    args.bcx = bench->PutRows(Gather(bcx, order, batch, InCols()), InCols());
    args.tokens = tokens;
    args.shape = shape;
    args.gated = gated;
    args.dilation = dilation;
    args.conv = bench->PutRows(conv, shape.width);
    if (!bias.empty()) args.bias = bench->PutFloats(bias);
    args.sequences = batch;
    args.from = from;
    args.to = to;
    args.state = state;
    args.out = bench->NewRows(tokens, shape.width);
    const absl::Status status = bench->queue().ShortConv(args);
    EXPECT_TRUE(status.ok()) << status;
    return args.out;
  }
};

struct ScanLayer {
  uint32_t channels = 0;
  uint32_t state_size = 0;
  std::vector<float> a_log, skip;
  std::vector<std::vector<float>> x, z, step, b, c;  // by sequence

  uint32_t OutCols() const { return channels; }
  uint64_t StateFloats() const { return uint64_t{state_size} * channels; }

  static ScanLayer Random(uint32_t channels, uint32_t state_size, const std::vector<uint32_t>& positions) {
    ScanLayer layer{.channels = channels, .state_size = state_size};
    class Random random(82);
    layer.a_log = random.Normals(state_size * channels);
    layer.skip = random.Normals(channels);
    for (const uint32_t count : positions) {
      layer.x.push_back(random.Normals(count * channels));
      layer.z.push_back(random.Normals(count * channels));
      layer.step.push_back(random.Normals(count * channels, 2.0f));
      layer.b.push_back(random.Normals(count * state_size));
      layer.c.push_back(random.Normals(count * state_size));
    }
    return layer;
  }

  Rows Run(OpBench* bench, uint32_t tokens, const std::vector<uint32_t>& order,
           const std::vector<SequenceRows>& batch, const std::vector<uint32_t>& from,
           const std::vector<uint32_t>& to, const DeltaStateView& state) const {
    const auto rows = [&](const std::vector<std::vector<float>>& of, uint32_t cols) {
      return bench->PutRows(Gather(of, order, batch, cols), cols);
    };
    SelectiveScanArgs args;
    args.x = rows(x, channels);
    args.z = rows(z, channels);
    args.step = rows(step, channels);
    args.b = rows(b, state_size);
    args.c = rows(c, state_size);
    args.tokens = tokens;
    args.channels = channels;
    args.state_size = state_size;
    args.a_log = bench->PutRows(a_log, channels);
    args.skip = bench->PutFloats(skip);
    args.sequences = batch;
    args.from = from;
    args.to = to;
    args.state = state;
    args.out = bench->NewRows(tokens, channels);
    const absl::Status status = bench->queue().SelectiveScan(args);
    EXPECT_TRUE(status.ok()) << status;
    return args.out;
  }
};

// Sequences of one layer on one backend.
template <class Layer>
class Runner {
 public:
  Runner(const BackendCase& which, const Layer& layer, uint32_t count)
      : bench_(which), layer_(layer), sequences_(&bench_, count, layer.StateFloats()), outputs_(count) {}

  void Step(const std::vector<uint32_t>& order, const std::vector<uint32_t>& rows, bool commit = true) {
    sequences_.Step(order, rows, commit,
                    [&](uint32_t tokens, const std::vector<SequenceRows>& batch,
                        const std::vector<uint32_t>& from, const std::vector<uint32_t>& to) {
                      const Rows out = layer_.Run(&bench_, tokens, order, batch, from, to, sequences_.view());
                      const std::vector<float> values = bench_.GetRows(out, tokens, layer_.OutCols());
                      for (size_t i = 0; commit && i < order.size(); ++i) {
                        const auto first = values.begin() + int64_t{batch[i].first_row} * layer_.OutCols();
                        std::vector<float>& to_end = outputs_[order[i]];
                        to_end.insert(to_end.end(), first, first + int64_t{rows[i]} * layer_.OutCols());
                      }
                    });
  }
  void RunAlone(uint32_t s, uint32_t positions, uint32_t chunk) {
    while (sequences_.next(s) < positions) {
      Step({s}, {std::min(chunk, positions - sequences_.next(s))});
    }
  }
  const std::vector<float>& Output(uint32_t s) const { return outputs_[s]; }
  std::vector<float> State(uint32_t s) { return sequences_.State(s); }

 private:
  OpBench bench_;
  const Layer layer_;
  Sequences sequences_;
  std::vector<std::vector<float>> outputs_;
};

constexpr uint32_t kLong = 30;
constexpr uint32_t kShort = 13;

template <class Layer>
void ExpectAnyChunking(const BackendCase& which, const Layer& layer) {
  Runner<Layer> oracle(kReference, layer, 2);
  oracle.RunAlone(0, kLong, kLong);
  oracle.RunAlone(1, kShort, kShort);
  for (const uint32_t chunk : {1u, 2u, 11u, 30u}) {
    Runner<Layer> runner(which, layer, 2);
    runner.RunAlone(0, kLong, chunk);
    ASSERT_TRUE(BitEqual(runner.Output(0), oracle.Output(0))) << "chunks of " << chunk;
    ASSERT_TRUE(BitEqual(runner.State(0), oracle.State(0))) << "chunks of " << chunk;
  }
  Runner<Layer> batched(which, layer, 2);
  batched.Step({1, 0}, {2, 9});
  batched.Step({0, 1}, {1, 1}, /*commit=*/false);  // a step that runs again
  batched.Step({0, 1}, {1, 1});
  batched.RunAlone(1, kShort, 5);
  batched.RunAlone(0, kLong, 7);
  for (const uint32_t s : {0u, 1u}) {
    ASSERT_TRUE(BitEqual(batched.Output(s), oracle.Output(s))) << "sequence " << s;
    ASSERT_TRUE(BitEqual(batched.State(s), oracle.State(s))) << "sequence " << s;
  }
}

constexpr MambaConfig kMambaShapes[] = {
    {.heads = 1, .head_dim = 1, .groups = 1, .state = 1, .conv_kernel = 2},
    {.heads = 6, .head_dim = 37, .groups = 2, .state = 20, .conv_kernel = 4},
    {.heads = 2, .head_dim = 128, .groups = 2, .state = 33, .conv_kernel = 3, .min_step = 0.5f},
    {.heads = 4, .head_dim = 64, .groups = 1, .state = 100, .conv_kernel = 7, .max_step = 1.5f}};

TEST_P(StateTest, MambaOfAnyChunkingEqualsTheReferenceBitForBit) {
  for (const MambaConfig& shape : kMambaShapes) {
    SCOPED_TRACE(shape.head_dim);
    ExpectAnyChunking(GetParam(), MambaLayer::Random(shape, {kLong, kShort}));
  }
}

TEST_P(StateTest, ShortConvOfAnyChunkingEqualsTheReference) {
  for (const ShortConvConfig shape :
       {ShortConvConfig{1, 2}, ShortConvConfig{64, 3}, ShortConvConfig{200, 4}, ShortConvConfig{131, 16}}) {
    SCOPED_TRACE(shape.width);
    ExpectAnyChunking(GetParam(), ConvLayer::Random(shape, {kLong, kShort}));
  }
}

TEST_P(StateTest, ConvolutionsWithBiasEqualTheReference) {
  for (const bool gated : {true, false}) {
    for (const ShortConvConfig shape : {ShortConvConfig{200, 4, true}, ShortConvConfig{33, 2, false}}) {
      SCOPED_TRACE(shape.width);
      ExpectAnyChunking(GetParam(), ConvLayer::Random(shape, {kLong, kShort}, gated));
    }
  }
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

TEST_P(StateTest, DilatedConvolutionsEqualTheReference) {
  for (const auto& [kernel, dilation] : {std::pair{4u, 3u}, std::pair{2u, 15u}, std::pair{3u, 2u}}) {
    SCOPED_TRACE(kernel);
    for (const bool gated : {true, false}) {
      ExpectAnyChunking(GetParam(), ConvLayer::Random({150, kernel}, {kLong, kShort}, gated, dilation));
    }
  }
}

TEST_P(StateTest, DilationReadsEveryOtherRow) {
  const ConvLayer layer = ConvLayer::Random({20, 3}, {kLong}, false, 4);
  Runner<ConvLayer> runner(GetParam(), layer, 1);
  runner.RunAlone(0, kLong, 4);
  for (uint32_t i = 0; i < kLong * 20; ++i) {
    double sum = 0;
    for (uint32_t j = 0; j < 3 && 4 * j <= i / 20; ++j) {
      sum += double{layer.bcx[0][i - 80 * j]} * layer.conv[(2 - j) * 20 + i % 20];
    }
    ASSERT_NEAR(runner.Output(0)[i], Silu(sum), 1e-5) << i;
  }
}

TEST_P(StateTest, ScanOfAnyChunkingEqualsTheReference) {
  for (const auto& [channels, state_size] :
       {std::pair{1u, 1u}, std::pair{150u, 16u}, std::pair{64u, 7u}, std::pair{301u, 33u}}) {
    SCOPED_TRACE(channels);
    ExpectAnyChunking(GetParam(), ScanLayer::Random(channels, state_size, {kLong, kShort}));
  }
}

// The convolved inputs of every position in double, [positions][cols].
std::vector<std::vector<double>> Convolved(const std::vector<float>& rows, const std::vector<float>& weights,
                                           uint32_t kernel_size, uint32_t cols) {
  std::vector<std::vector<double>> out(rows.size() / cols, std::vector<double>(cols));
  for (size_t t = 0; t < out.size(); ++t) {
    for (uint32_t j = 0; j < kernel_size && j <= t; ++j) {  // j rows back
      for (uint32_t c = 0; c < cols; ++c) {
        out[t][c] += double{rows[(t - j) * cols + c]} * weights[(kernel_size - 1 - j) * cols + c];
      }
    }
  }
  return out;
}

// Mamba-2 in its other form: every output is a sum over all inputs before it, each decayed by the steps
// between.
std::vector<double> MambaInDouble(const MambaLayer& layer, uint32_t s) {
  const MambaConfig& m = layer.shape;
  const uint32_t cols = layer.ConvCols();
  const size_t positions = layer.dt[s].size() / m.heads;
  std::vector<std::vector<double>> in = Convolved(layer.xbc[s], layer.conv, m.conv_kernel, cols);
  for (std::vector<double>& row : in) {
    for (uint32_t c = 0; c < cols; ++c) row[c] = Silu(row[c] + layer.conv_bias[c]);
  }
  std::vector<double> out;
  for (size_t t = 0; t < positions; ++t) {
    std::vector<double> row(layer.Values());
    for (uint32_t h = 0; h < m.heads; ++h) {
      const uint32_t group = h / (m.heads / m.groups);
      double between = 0;  // the exponents of the steps after u
      for (size_t u = t + 1; u-- > 0;) {
        double step = std::log1p(std::exp(double{layer.dt[s][u * m.heads + h]} + layer.dt_bias[h]));
        step = std::max(step, double{m.min_step});
        if (m.max_step > 0) step = std::min(step, double{m.max_step});
        double match = 0;
        for (uint32_t n = 0; n < m.state; ++n) {
          match += in[t][layer.Values() + (m.groups + group) * m.state + n] *
                   in[u][layer.Values() + group * m.state + n];
        }
        for (uint32_t p = 0; p < m.head_dim; ++p) {
          row[h * m.head_dim + p] += std::exp(between) * step * match * in[u][h * m.head_dim + p];
        }
        between -= step * std::exp(double{layer.a_log[h]});
      }
      for (uint32_t p = 0; p < m.head_dim; ++p) {
        const uint32_t c = h * m.head_dim + p;
        row[c] = (row[c] + layer.skip[h] * in[t][c]) * Silu(layer.z[s][t * layer.Values() + c]);
      }
    }
    const uint32_t width = layer.Values() / m.groups;
    for (uint32_t first = 0; first < layer.Values(); first += width) {
      double square = 0;
      for (uint32_t c = first; c < first + width; ++c) square += row[c] * row[c];
      for (uint32_t c = first; c < first + width; ++c) {
        out.push_back(row[c] / std::sqrt(square / width + 1e-6) * layer.norm[c]);
      }
    }
  }
  return out;
}

TEST_P(StateTest, MambaIsTheDecayedSumOverTheText) {
  for (const MambaConfig& shape : kMambaShapes) {
    if (shape.head_dim == 1) continue;  // the norm of a single value is a sign
    SCOPED_TRACE(shape.head_dim);
    const MambaLayer layer = MambaLayer::Random(shape, {kLong});
    Runner<MambaLayer> runner(GetParam(), layer, 1);
    runner.RunAlone(0, kLong, 8);
    const std::vector<double> expected = MambaInDouble(layer, 0);
    ASSERT_EQ(runner.Output(0).size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(runner.Output(0)[i], expected[i], 5e-5 * (1 + std::fabs(expected[i]))) << i;
    }
  }
}

TEST_P(StateTest, ShortConvIsTheGatedConvolution) {
  const ConvLayer layer = ConvLayer::Random({150, 3}, {kLong});
  Runner<ConvLayer> runner(GetParam(), layer, 1);
  runner.RunAlone(0, kLong, 4);
  std::vector<float> inputs;
  for (uint32_t t = 0; t < kLong; ++t) {
    const float* row = layer.bcx[0].data() + t * 450;
    for (uint32_t c = 0; c < 150; ++c) inputs.push_back(row[c] * row[300 + c]);
  }
  const std::vector<std::vector<double>> convolved = Convolved(inputs, layer.conv, 3, 150);
  for (uint32_t i = 0; i < kLong * 150; ++i) {
    const double expected = convolved[i / 150][i % 150] * layer.bcx[0][i / 150 * 450 + 150 + i % 150];
    ASSERT_NEAR(runner.Output(0)[i], expected, 1e-5) << i;
  }
}

// Mamba-1 as the sum over all inputs before a token, each decayed by the steps between.
TEST_P(StateTest, ScanIsTheDecayedSumOverTheText) {
  const ScanLayer layer = ScanLayer::Random(70, 9, {kLong});
  Runner<ScanLayer> runner(GetParam(), layer, 1);
  runner.RunAlone(0, kLong, 8);
  const auto step = [&](uint32_t t, uint32_t c) {
    return std::log1p(std::exp(double{layer.step[0][t * 70 + c]}));
  };
  for (uint32_t t = 0; t < kLong; ++t) {
    for (uint32_t c = 0; c < 70; ++c) {
      double y = layer.skip[c] * double{layer.x[0][t * 70 + c]};
      for (uint32_t n = 0; n < 9; ++n) {
        const double a = std::exp(double{layer.a_log[n * 70 + c]});
        double between = 0;
        for (uint32_t u = t + 1; u-- > 0;) {
          y += layer.c[0][t * 9 + n] * std::exp(between) * step(u, c) * layer.b[0][u * 9 + n] *
               layer.x[0][u * 70 + c];
          between -= step(u, c) * a;
        }
      }
      const double expected = y * Silu(layer.z[0][t * 70 + c]);
      ASSERT_NEAR(runner.Output(0)[t * 70 + c], expected, 1e-4 * (1 + std::fabs(expected))) << t << " " << c;
    }
  }
}

TEST_P(StateTest, BadScanArgumentsAreRefusedWithNumbers) {
  OpBench bench(GetParam());
  const SequenceRows sequence{0, 2, 0, {}};
  const uint32_t slot = 0;
  const SelectiveScanArgs fits = {.x = bench.NewRows(2, 8),
                                  .z = bench.NewRows(2, 8),
                                  .step = bench.NewRows(2, 8),
                                  .b = bench.NewRows(2, 4),
                                  .c = bench.NewRows(2, 4),
                                  .tokens = 2,
                                  .channels = 8,
                                  .state_size = 4,
                                  .a_log = bench.NewRows(4, 8),
                                  .skip = bench.NewWords(8),
                                  .sequences = {&sequence, 1},
                                  .from = {&slot, 1},
                                  .to = {&slot, 1},
                                  .state = {bench.PutWritable(std::vector<float>(32)), 128, 1},
                                  .out = bench.NewRows(2, 8)};
  EXPECT_TRUE(bench.queue().SelectiveScan(fits).ok());
  const auto refused = [&](const std::string& words, auto&& change) {
    SelectiveScanArgs args = fits;
    change(args);
    const absl::Status status = bench.queue().SelectiveScan(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  refused("state is 0", [](SelectiveScanArgs& a) { a.state_size = 0; });
  refused("overlaps an input", [](SelectiveScanArgs& a) { a.out = a.z; });
  refused("stride of 64", [](SelectiveScanArgs& a) { a.state.slot_stride = 64; });
  refused("slots from 0", [](SelectiveScanArgs& a) { a.from = {}; });
}

TEST_P(StateTest, BadMambaArgumentsAreRefusedWithNumbers) {
  const auto refused = [&](const std::string& words, auto&& change) {
    OpBench bench(GetParam());
    const SequenceRows sequences[] = {{0, 2, 3, {}}, {2, 1, 0, {}}};
    uint32_t from[] = {0, 9};
    uint32_t to[] = {1, 2};
    MambaArgs args;
    args.shape = {.heads = 2, .head_dim = 4, .groups = 1, .state = 4, .conv_kernel = 4};
    args.z = bench.NewRows(3, 8);
    args.xbc = bench.NewRows(3, 16);
    args.dt = bench.NewRows(3, 2);
    args.tokens = 3;
    args.conv = bench.NewRows(4, 16);
    args.conv_bias = bench.NewWords(16);
    args.a_log = args.dt_bias = args.skip = bench.NewWords(2);
    args.norm = {bench.NewWords(8), 1e-6f};
    args.sequences = sequences;
    args.from = from;
    args.to = to;
    args.state = {bench.PutWritable(std::vector<float>(3 * 80)), 320, 3};
    args.out = bench.NewRows(3, 8);
    const absl::Status fits = bench.queue().Mamba(args);
    ASSERT_TRUE(fits.ok()) << fits;
    change(args, to);
    const absl::Status status = bench.queue().Mamba(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  refused("slot 1 is written", [](MambaArgs&, uint32_t* to) { to[1] = 1; });
  refused("stride of 256", [](MambaArgs& a, uint32_t*) { a.state.slot_stride = 256; });
  refused("3 heads in 2 groups", [](MambaArgs& a, uint32_t*) {
    a.shape.heads = 3;
    a.shape.groups = 2;
  });
  refused("conv_kernel is 17", [](MambaArgs& a, uint32_t*) { a.shape.conv_kernel = 17; });
  refused("state is 129", [](MambaArgs& a, uint32_t*) { a.shape.state = 129; });
  refused("time steps from -1", [](MambaArgs& a, uint32_t*) { a.shape.min_step = -1; });
  refused("overlaps an input", [](MambaArgs& a, uint32_t*) { a.out = a.z; });
  refused("not an RMS norm", [](MambaArgs& a, uint32_t*) { a.norm.kind = NormKind::kLayer; });
}

TEST_P(StateTest, BadShortConvArgumentsAreRefusedWithNumbers) {
  OpBench bench(GetParam());
  const SequenceRows sequence{0, 2, 0, {}};
  const uint32_t slot = 0;
  const ShortConvArgs fits = {.bcx = bench.NewRows(2, 24),
                              .tokens = 2,
                              .shape = {.width = 8, .kernel = 3},
                              .conv = bench.NewRows(3, 8),
                              .sequences = {&sequence, 1},
                              .from = {&slot, 1},
                              .to = {&slot, 1},
                              .state = {bench.PutWritable(std::vector<float>(16)), 64, 1},
                              .out = bench.NewRows(2, 8)};
  EXPECT_TRUE(bench.queue().ShortConv(fits).ok());
  const auto refused = [&](const std::string& words, auto&& change) {
    ShortConvArgs args = fits;
    change(args);
    const absl::Status status = bench.queue().ShortConv(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  refused("over one row", [](ShortConvArgs& a) { a.shape.kernel = 1; });
  refused("kernel is 17", [](ShortConvArgs& a) { a.shape.kernel = 17; });
  refused("overlaps bcx", [](ShortConvArgs& a) { a.out = a.bcx; });
  refused("slots from 0", [](ShortConvArgs& a) { a.from = {}; });
}

}  // namespace
}  // namespace sluice
