// Tests MoeExperts in every form that the families and the papers need: activations, biases, widths that
// differ within a call, sparsity orders, tiles, index lists, many and few tokens.
#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "kernels/reference/scalar.h"
#include "pack/row_layout.h"
#include "tests/kernels/expert_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class ExpertTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertTest, testing::ValuesIn(AllBackends()), CaseName);

constexpr ActivationSpec kActivations[] = {{Activation::kSilu},
                                           {Activation::kGeluTanh},
                                           {Activation::kGelu},
                                           {Activation::kClampedSwiglu, 1.702f, 0.75f},
                                           {Activation::kRelu2},
                                           {Activation::kClampedSilu, 1.0f, 0.75f},
                                           {Activation::kLimitedSilu, 1.0f, 0.75f}};

const EncodingDescriptor kBf16 = MakeDescriptor(Encoding::kBf16);
const EncodingDescriptor kF16 = MakeDescriptor(Encoding::kF16);
const EncodingDescriptor kQ8 = MakeDescriptor(Encoding::kQ8, 32);

TEST_P(ExpertTest, ActivationsBiasesAndWidthsEqualReference) {
  CaseCounter cases(GetParam());
  Random random(1);
  OpBench bench(GetParam());
  OpBench oracle(kReference);
  for (const ActivationSpec& activation : kActivations) {
    for (const uint32_t tokens : {1u, 3u, 19u}) {
      if (cases.LeavesOut()) {
        continue;
      }
      Case c;
      c.tokens = tokens;
      c.hidden = 72;
      c.activation = activation;
      // A routed expert, a shared one without biases and a dense one, of three widths.
      c.experts.push_back(MakeExpert(random, {kBf16, kBf16, kQ8}, 100, c.hidden, true));
      c.experts.push_back(MakeExpert(random, {kQ8, kQ8, kBf16}, 31, c.hidden, false));
      c.experts.push_back(MakeExpert(random, {kBf16, kBf16, kBf16}, 192, c.hidden, true));
      AssignAll(&c);
      c.x = random.Normals(uint64_t{tokens} * c.hidden, 3.0f);
      const Result expected = RunCase(oracle, c);
      Result result = RunCase(bench, c);
      ASSERT_TRUE(BitEqual(result.y, expected.y)) << static_cast<int>(activation.kind) << " " << tokens;
      ASSERT_EQ(result.active, expected.active);
      for (size_t i = 0; i < result.active.size(); ++i) {
        ASSERT_EQ(result.active[i], static_cast<int32_t>(c.experts[i % 3].up.rows));
      }
      c.tile = 64;
      result = RunCase(bench, c);
      ASSERT_TRUE(BitEqual(result.y, expected.y));
      ASSERT_EQ(result.active, expected.active);
    }
  }
}

// Block sums as large as they get: every code of down the largest, or the smallest, every coefficient the
// same, with either sign and with both; blocks of fewer neurons than are added at a time, and hidden sizes
// off every block; one token, and as many as share unpacked codes.
TEST_P(ExpertTest, ExtremeDownCodesEqualTheReference) {
  CaseCounter cases(GetParam());
  Random random(11);
  const EncodingDescriptor f32 = MakeDescriptor(Encoding::kF32);
  OpBench bench(GetParam());
  OpBench oracle(kReference);
  const auto check = [&](const EncodingDescriptor& d, uint32_t width, uint8_t code, uint32_t tokens) {
    if (cases.LeavesOut()) {
      return;
    }
    Case c;
    c.tokens = tokens;
    c.hidden = 256 + 16 * random.Below(24) + random.Below(16);
    SCOPED_TRACE(testing::Message() << EncodingLabel(d) << " width " << width << " hidden " << c.hidden
                                    << " code " << int{code} << " tokens " << tokens);
    Expert e = MakeExpert(random, {f32, f32, d}, width, c.hidden, true);
    std::fill(e.gate.bytes.begin(), e.gate.bytes.end(), uint8_t{0});
    std::fill(e.up.bytes.begin(), e.up.bytes.end(), uint8_t{0});
    std::fill(e.gate_bias.begin(), e.gate_bias.end(), 5.0f);
    // Scales and zeros of the first row, so that all coefficients of a group are the same.
    for (uint32_t j = 0; j < width; ++j) {
      const auto row = e.down.bytes.begin() + static_cast<int64_t>(j * e.down.stride);
      std::copy_n(e.down.bytes.begin(), RowBytes(e.down.encoding, c.hidden), row);
      std::fill_n(row, CodeBytes(e.down.encoding, c.hidden), code);
    }
    c.x = random.Normals(uint64_t{tokens} * c.hidden);
    for (const int signs : {0, 1, 2}) {
      for (uint32_t j = 0; j < width; ++j) {
        e.up_bias[j] = signs == 0 || (signs == 2 && j % 3 == 0) ? 2.0f : -2.0f;
      }
      c.experts = {e};
      AssignAll(&c);
      ASSERT_TRUE(BitEqual(RunCase(bench, c).y, RunCase(oracle, c).y)) << signs;
    }
  };
  const auto check_all = [&](const EncodingDescriptor& d, uint8_t largest, uint8_t smallest) {
    for (const uint32_t width : {128u, 81u, 7u}) {
      check(d, width, largest, 1);
    }
    check(d, 67, largest, 9);
    check(d, 67, smallest, 9);
  };
  for (const Encoding encoding : {Encoding::kQ8, Encoding::kQ4, Encoding::kQ3, Encoding::kQ2}) {
    for (uint16_t group = 16; group <= 128; group += 16) {
      check_all(MakeDescriptor(encoding, group), 0xff, 0x00);
    }
  }
  check_all(MakeDescriptor(Encoding::kMxfp4), 0x77, 0xff);
}

double GateInDouble(const ActivationSpec& a, double g) {
  switch (a.kind) {
    case Activation::kSilu:
      return g / (1 + std::exp(-g));
    case Activation::kGeluTanh:
      return g / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
    case Activation::kGelu:
      return g / 2 * std::erfc(-g / std::sqrt(2.0));
    case Activation::kRelu2:
      return std::max(g, 0.0);
    case Activation::kClampedSilu:
      return std::min<double>(g / (1 + std::exp(-g)), a.limit);
    case Activation::kLimitedSilu: {
      const double limited = std::min<double>(g, a.limit);
      return limited / (1 + std::exp(-limited));
    }
    case Activation::kClampedSwiglu:
      break;
  }
  const double m = std::min<double>(g, a.limit);
  return m / (1 + std::exp(-a.alpha * m));
}

double UpInDouble(const ActivationSpec& a, double u) {
  const double clamped = std::clamp<double>(u, -a.limit, a.limit);
  const bool clamps = a.kind == Activation::kClampedSilu || a.kind == Activation::kLimitedSilu;
  return a.kind == Activation::kClampedSwiglu ? 1 + clamped : clamps ? clamped : u;
}

TEST_P(ExpertTest, CoefficientIsTheActivationsDefinition) {
  // One neuron whose rows pick x[0] as gate and x[1] as up; down is 1 and its bias 8.
  OpBench bench(GetParam());
  Case c;
  c.hidden = 2;
  const EncodingDescriptor f32 = MakeDescriptor(Encoding::kF32);
  Random random(2);
  Expert e = MakeExpert(random, {f32, f32, f32}, 1, 2, false);
  const auto set = [](EncodedMatrix* m, float a, float b) {
    const float values[] = {a, b};
    m->bytes.assign(reinterpret_cast<const uint8_t*>(values),
                    reinterpret_cast<const uint8_t*>(values) + sizeof values);
    m->stride = sizeof values;
  };
  set(&e.gate, 1, 0);
  set(&e.up, 0, 1);
  set(&e.down, 1, 1);
  e.gate_bias = {0.25f};
  e.up_bias = {-0.5f};
  e.down_bias = {8, 0};
  c.experts = {e};
  for (float g = -12; g <= 12; g += 0.3125f) {
    for (const float u : {-3.0f, 0.75f, 5.0f}) {
      c.x.insert(c.x.end(), {g, u});
    }
  }
  c.x.resize(2 * 96);
  c.tokens = 96;
  AssignAll(&c);
  for (const ActivationSpec& activation : kActivations) {
    c.activation = activation;
    const Result result = RunCase(bench, c);
    for (uint32_t t = 0; t < c.tokens; ++t) {
      const double exact =
          GateInDouble(activation, c.x[2 * t] + 0.25) * UpInDouble(activation, c.x[2 * t + 1] - 0.5);
      ASSERT_NEAR(result.y[2 * t + 1], exact, 1e-6 * (std::fabs(exact) + 0.5))
          << static_cast<int>(activation.kind) << " of " << c.x[2 * t];
      ASSERT_NEAR(result.y[2 * t], exact + 8, 2e-6 * (std::fabs(exact) + 8));
    }
  }
}

// Lead values of one token by the reference, in the words of ARITHMETIC.md 3.
std::vector<float> LeadValues(const Expert& e, const ActivationSpec& a, SparsityOrder order, const float* x) {
  std::vector<float> lead(e.up.rows);
  for (uint32_t j = 0; j < e.up.rows; ++j) {
    const auto dot = [&](const EncodedMatrix& m, const std::vector<float>& bias) {
      const float value = reference::Dot(m.encoding, m.bytes.data() + j * m.stride, x, m.cols);
      return bias.empty() ? value : value + bias[j];
    };
    const float up = reference::UpFactor(a, dot(e.up, e.up_bias));
    const float gate = reference::GateFactor(a, dot(e.gate, e.gate_bias));
    lead[j] = order == SparsityOrder::kUp ? up : order == SparsityOrder::kGate ? gate : gate * up;
  }
  return lead;
}

// Returns the threshold that leaves out about `share` of the neurons.
float ThresholdFor(std::vector<float> lead, double share) {
  for (float& value : lead) {
    value = std::fabs(value);
  }
  const size_t place = static_cast<size_t>(share * static_cast<double>(lead.size()));
  std::nth_element(lead.begin(), lead.begin() + static_cast<int64_t>(place), lead.end());
  return lead[place];
}

// Returns one expert's result for each token alone, with every masked neuron absent.
Result WithoutMasked(const BackendCase& which, const Case& c) {
  Result out;
  for (uint32_t t = 0; t < c.tokens; ++t) {
    Case alone;
    alone.experts = c.experts;
    alone.tokens = 1;
    alone.hidden = c.hidden;
    alone.activation = c.activation;
    alone.x.assign(c.x.begin() + t * c.hidden, c.x.begin() + (t + 1) * c.hidden);
    Expert& e = alone.experts[0];
    const std::vector<float> lead = LeadValues(e, c.activation, c.order, alone.x.data());
    e.positions.resize(lead.size());
    for (size_t j = 0; j < lead.size(); ++j) {
      e.positions[j] = std::fabs(lead[j]) < c.threshold ? -1 : static_cast<int32_t>(j);
    }
    AssignAll(&alone);
    OpBench bench(which);
    const Result result = RunCase(bench, alone);
    out.y.insert(out.y.end(), result.y.begin(), result.y.end());
    out.active.push_back(result.active[0]);
  }
  return out;
}

TEST_P(ExpertTest, SparseEqualsDenseWithoutMaskedNeurons) {
  CaseCounter cases(GetParam());
  Random random(3);
  const Parts kinds[] = {{kBf16, kBf16, kBf16}, {kQ8, kQ8, kQ8}, {kQ8, kF16, kF16}};
  for (const Parts& parts : kinds) {
    for (const SparsityOrder order : kOrders) {
      for (const double share : {0.3, 0.8, 0.97}) {
        for (const uint32_t tokens : {1u, 2u, 7u}) {
          if (cases.LeavesOut()) {
            continue;
          }
          Case c;
          c.tokens = tokens;
          c.hidden = 88;
          c.order = order;
          c.activation = kActivations[random.Below(4)];
          c.experts.push_back(MakeExpert(random, parts, 150, c.hidden, random.Below(2) == 1));
          c.x = random.Normals(uint64_t{tokens} * c.hidden, 2.0f);
          AssignAll(&c);
          c.threshold = ThresholdFor(LeadValues(c.experts[0], c.activation, order, c.x.data()), share);
          SCOPED_TRACE(testing::Message() << EncodingLabel(parts[0]) << " order " << static_cast<int>(order)
                                          << " share " << share << " tokens " << tokens << " activation "
                                          << static_cast<int>(c.activation.kind));
          const Result expected = WithoutMasked(kReference, c);
          OpBench bench(GetParam());
          Result result = RunCase(bench, c);
          ASSERT_TRUE(BitEqual(result.y, expected.y));
          ASSERT_EQ(result.active, expected.active);
          c.tile = 64;
          result = RunCase(bench, c);
          ASSERT_TRUE(BitEqual(result.y, expected.y));
          ASSERT_EQ(result.active, expected.active);
        }
      }
    }
  }
}

// One token's masks of whole blocks are made while the lead is read: few and many kept neurons, rows long
// enough that many are not fetched ahead, blocks cut short.
TEST_P(ExpertTest, OneTokenOfLongSparseRowsEqualsTheReference) {
  CaseCounter cases(GetParam());
  Random random(12);
  OpBench bench(GetParam());
  OpBench oracle(kReference);
  for (const Encoding encoding : {Encoding::kQ8, Encoding::kQ4, Encoding::kQ3, Encoding::kQ2}) {
    const EncodingDescriptor d = MakeDescriptor(encoding, 16);
    Case c;
    c.tokens = 1;
    c.hidden = 640;
    c.experts = {MakeExpert(random, {d, MakeDescriptor(encoding, 64), d}, 215, c.hidden, true),
                 MakeExpert(random, {d, d, MakeDescriptor(Encoding::kQ4, 64)}, 64, c.hidden, false)};
    AssignAll(&c);
    c.x = random.Normals(c.hidden, 2.0f);
    for (const SparsityOrder order : kOrders) {
      for (const float threshold : {0.0f, 0.1f, 0.8f, 3.0f, 1e9f}) {
        if (cases.LeavesOut()) {
          continue;
        }
        c.order = order;
        c.threshold = threshold;
        const Result expected = RunCase(oracle, c);
        const Result result = RunCase(bench, c);
        ASSERT_TRUE(BitEqual(result.y, expected.y)) << static_cast<int>(order) << " " << threshold;
        ASSERT_EQ(result.active, expected.active);
      }
    }
  }
}

TEST_P(ExpertTest, BadActivationsAndThresholdsAreRefused) {
  Random random(4);
  OpBench bench(GetParam());
  ExpertWork work = PutExpert(bench, MakeExpert(random, {kBf16, kBf16, kBf16}, 8, 16, true));
  const std::vector<uint32_t> zero = {0};
  work.rows = zero;
  work.slots = zero;
  MoeExpertsArgs args;
  args.x = bench.NewRows(1, 16);
  args.tokens = 1;
  args.hidden = 16;
  args.y = bench.NewRows(1, 16);
  args.slots = 1;
  args.experts = {&work, 1};
  ASSERT_TRUE(bench.queue().MoeExperts(args).ok());
  args.activation = {Activation::kClampedSwiglu, 1.7f, 0.0f};
  EXPECT_EQ(bench.queue().MoeExperts(args).code(), absl::StatusCode::kInvalidArgument);
  args.activation = {Activation::kClampedSilu, 1.0f, 0.0f};
  EXPECT_EQ(bench.queue().MoeExperts(args).code(), absl::StatusCode::kInvalidArgument);
  args.activation = {static_cast<Activation>(77)};
  EXPECT_EQ(bench.queue().MoeExperts(args).code(), absl::StatusCode::kUnimplemented);
  args.activation = {};
  for (const float threshold : {-1.0f, std::nanf("")}) {
    work.sparsity = SparsityOrder::kUp;
    work.threshold = threshold;
    EXPECT_EQ(bench.queue().MoeExperts(args).code(), absl::StatusCode::kInvalidArgument);
  }
  work.sparsity = static_cast<SparsityOrder>(9);
  work.threshold = 0;
  EXPECT_EQ(bench.queue().MoeExperts(args).code(), absl::StatusCode::kUnimplemented);
}

TEST_P(ExpertTest, ExpertWithoutAGateUsesItsUpAsGate) {
  Random random(6);
  OpBench bench(GetParam());
  const Expert e = MakeExpert(random, {kQ8, kQ8, kBf16}, 100, 72, true);
  const std::vector<float> x = random.Normals(3 * 72, 2.0f);
  const uint32_t rows[] = {0, 1, 2};
  std::vector<float> y[2];
  for (const bool gated : {false, true}) {
    ExpertWork work = PutExpert(bench, e);
    work.rows = work.slots = rows;
    work.gate = gated ? work.up : WeightView{};
    work.gate_bias = gated ? work.up_bias : BufferRef{};
    MoeExpertsArgs args;
    args.x = bench.PutRows(x, 72);
    args.tokens = args.slots = 3;
    args.hidden = 72;
    args.activation = {Activation::kRelu2};
    args.experts = {&work, 1};
    args.y = bench.NewRows(3, 72);
    const absl::Status status = bench.queue().MoeExperts(args);
    ASSERT_TRUE(status.ok()) << status;
    y[gated ? 1 : 0] = bench.GetRows(args.y, 3, 72);
  }
  EXPECT_TRUE(BitEqual(y[0], y[1]));
  ExpertWork work = PutExpert(bench, e);
  work.rows = work.slots = rows;
  work.gate = {};
  MoeExpertsArgs args{.x = bench.NewRows(3, 72),
                      .tokens = 3,
                      .hidden = 72,
                      .activation = {Activation::kRelu2},
                      .experts = {&work, 1},
                      .y = bench.NewRows(3, 72),
                      .slots = 3};
  EXPECT_EQ(bench.queue().MoeExperts(args).code(), absl::StatusCode::kInvalidArgument);  // a gate's bias
}

TEST_P(ExpertTest, CombineWithGainAndNoResidualIsTheirProduct) {
  Random random(7);
  const uint32_t hidden = 45;
  const std::vector<float> y = random.Normals(2 * 3 * hidden);
  const std::vector<float> residual = random.Normals(2 * hidden);
  const std::vector<float> weights = random.Normals(6);
  for (const bool with_residual : {false, true}) {
    const auto run = [&](const BackendCase& which) {
      OpBench bench(which);
      CombineArgs args{.y = bench.PutRows(y, hidden),
                       .weights = bench.PutFloats(weights),
                       .tokens = 2,
                       .top_k = 3,
                       .hidden = hidden,
                       .out = bench.NewRows(2, hidden),
                       .scale = 0.5f,
                       .gain = bench.PutFloats({1.75f})};
      if (with_residual) {
        args.residual = bench.PutRows(residual, hidden);
      }
      const absl::Status status = bench.queue().Combine(args);
      EXPECT_TRUE(status.ok()) << status;
      return bench.GetRows(args.out, 2, hidden);
    };
    const std::vector<float> out = run(GetParam());
    ASSERT_TRUE(BitEqual(out, run(kReference)));
    for (uint32_t i = 0; i < 2 * hidden; ++i) {
      const uint32_t t = i / hidden;
      double sum = 0;
      for (uint32_t r = 0; r < 3; ++r) {
        sum += double{weights[3 * t + r]} * y[(3 * t + r) * hidden + i % hidden];
      }
      ASSERT_NEAR(out[i], 1.75 * ((with_residual ? residual[i] : 0) + 0.5 * sum), 4e-6);
    }
  }
}

TEST_P(ExpertTest, CombineScalesTheSumAndDefaultsWeightsToOne) {
  Random random(5);
  const uint32_t hidden = 37;
  const std::vector<float> y = random.Normals(3 * 2 * hidden);
  const std::vector<float> residual = random.Normals(3 * hidden);
  const std::vector<float> ones(6, 1.0f);
  for (const float scale : {1.0f, 0.22f}) {
    const auto run = [&](const BackendCase& which, bool weights) {
      OpBench bench(which);
      CombineArgs args;
      args.y = bench.PutRows(y, hidden);
      if (weights) {
        args.weights = bench.PutFloats(ones);
      }
      args.tokens = 3;
      args.top_k = 2;
      args.hidden = hidden;
      args.residual = bench.PutRows(residual, hidden);
      args.out = bench.NewRows(3, hidden);
      args.scale = scale;
      EXPECT_TRUE(bench.queue().Combine(args).ok());
      return bench.GetRows(args.out, 3, hidden);
    };
    const std::vector<float> out = run(GetParam(), false);
    ASSERT_TRUE(BitEqual(out, run(kReference, false)));
    ASSERT_TRUE(BitEqual(out, run(GetParam(), true)));
    for (uint32_t i = 0; i < 3 * hidden; ++i) {
      const uint32_t t = i / hidden;
      const double sum = double{y[(2 * t) * hidden + i % hidden]} + y[(2 * t + 1) * hidden + i % hidden];
      ASSERT_NEAR(out[i], residual[i] + double{scale} * sum, 2e-6);
    }
  }
}

}  // namespace
}  // namespace sluice
