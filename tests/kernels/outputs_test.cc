// Experts whose down part is stored by outputs, on every backend.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "pack/row_layout.h"
#include "tests/kernels/expert_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class OutputsTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, OutputsTest, testing::ValuesIn(AllBackends()), CaseName);

// Experts whose parts are in `d`, and every second one in two others too.
Case MakeCase(Random& random, size_t encoding, uint32_t tokens, uint32_t experts, uint32_t width,
              uint32_t hidden) {
  const std::vector<EncodingDescriptor> all = AllEncodings();
  Case c;
  c.tokens = tokens;
  c.hidden = hidden;
  c.down_by_outputs = true;
  for (uint32_t e = 0; e < experts; ++e) {
    const auto other = [&](size_t step) { return all[(encoding + (e % 2) * step * e) % all.size()]; };
    c.experts.push_back(
        MakeOutputExpert(random, {other(0), other(5), other(7)}, width, hidden, /*biases=*/e % 3 == 1));
  }
  c.x = random.Normals(uint64_t{tokens} * hidden, 2.0f);
  AssignAll(&c);
  return c;
}

struct Shape {
  uint32_t tokens, experts, width, hidden;
};
// Few tokens and many, widths beside blocks of neurons and of codes, outputs beside tiles.
const Shape kShapes[] = {
    {1, 4, 64, 64}, {2, 3, 200, 130}, {5, 2, 129, 33}, {30, 2, 70, 160}, {11, 3, 256, 96}};

TEST_P(OutputsTest, ExpertsEqualTheReference) {
  CaseCounter cases(GetParam());
  Random random(1);
  for (size_t i = 0; i < AllEncodings().size(); ++i) {
    for (size_t shape = i % 2; shape < std::size(kShapes); shape += 2) {
      const Shape& s = kShapes[shape];
      if (cases.LeavesOut()) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << EncodingLabel(AllEncodings()[i]) << " tokens " << s.tokens
                                      << " width " << s.width << " hidden " << s.hidden);
      Case c = MakeCase(random, i, s.tokens, s.experts, s.width, s.hidden);
      c.order = shape % 2 == 0 ? SparsityOrder::kNone : kOrders[i % std::size(kOrders)];
      c.threshold = 0.3f;
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      const Result result = RunCase(bench, c);
      const Result expected = RunCase(oracle, c);
      ASSERT_TRUE(BitEqual(result.y, expected.y));
      ASSERT_EQ(result.active, expected.active);
    }
  }
}

TEST_P(OutputsTest, TokenAloneEqualsTheTokenInABatch) {
  CaseCounter cases(GetParam());
  Random random(2);
  for (size_t i = 0; i < AllEncodings().size(); ++i) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(EncodingLabel(AllEncodings()[i]));
    const Case all = MakeCase(random, i, 33, 2, 150, 100);
    OpBench bench(GetParam());
    const std::vector<float> y = RunCase(bench, all).y;
    for (const uint32_t t : {0u, 17u, 32u}) {
      Case alone = all;
      alone.tokens = 1;
      alone.x.assign(all.x.begin() + t * 100, all.x.begin() + (t + 1) * 100);
      AssignAll(&alone);
      ASSERT_TRUE(BitEqual(RunCase(bench, alone).y,
                           std::vector<float>(y.begin() + t * 200, y.begin() + (t + 1) * 200)));
    }
  }
}

TEST_P(OutputsTest, ExpertIsTheGatedSumWithinItsBound) {
  CaseCounter cases(GetParam());
  Random random(3);
  const uint32_t hidden = 96;
  const uint32_t width = 130;
  for (const EncodingDescriptor& d : AllEncodings()) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(EncodingLabel(d));
    const EncodingDescriptor f32 = MakeDescriptor(Encoding::kF32);
    Case c;
    c.experts.push_back(MakeOutputExpert(random, {f32, f32, d}, width, hidden, /*biases=*/true));
    c.tokens = 1;
    c.hidden = hidden;
    c.x = random.Normals(hidden);
    c.down_by_outputs = true;
    AssignAll(&c);
    OpBench bench(GetParam());
    const std::vector<float> y = RunCase(bench, c).y;
    const Expert& e = c.experts[0];
    std::vector<double> coefficients(width);
    double largest = 0;
    for (uint32_t j = 0; j < width; ++j) {
      double g = e.gate_bias[j];
      double u = e.up_bias[j];
      for (uint32_t k = 0; k < hidden; ++k) {
        g += e.gate.At(j, k) * c.x[k];
        u += e.up.At(j, k) * c.x[k];
      }
      coefficients[j] = g / (1 + std::exp(-g)) * u;
      largest = std::max(largest, std::fabs(coefficients[j]));
    }
    for (uint32_t h = 0; h < hidden; ++h) {
      double exact = e.down_bias[h];
      double magnitude = std::fabs(exact);
      double weights = 0;
      for (uint32_t j = 0; j < width; ++j) {
        exact += coefficients[j] * e.down.At(h, j);
        magnitude += std::fabs(coefficients[j] * e.down.At(h, j));
        weights += std::fabs(e.down.At(h, j));
      }
      // Coefficients and sums in float32; those of quantized rows rounded to 127 steps of their largest.
      const double rounding = IsQuantized(d.encoding) ? largest / 127 * weights : 0;
      ASSERT_NEAR(y[h], exact, rounding + 300 * kRoundoff * (magnitude + largest * weights));
    }
  }
}

TEST_P(OutputsTest, RoutedExpertsEqualNamedOnes) {
  Random random(4);
  Case c = MakeCase(random, 4, 5, 4, 130, 96);
  c.order = SparsityOrder::kGate;
  c.threshold = 0.2f;
  OpBench bench(GetParam());
  const Result named = RunCase(bench, c);
  std::vector<int32_t> ids;
  std::vector<ExpertWork> work;
  for (uint32_t pair = 0; pair < c.slot_count; ++pair) {
    ids.push_back(static_cast<int32_t>(pair % 4));
  }
  for (const Expert& e : c.experts) {
    work.push_back(PutExpert(bench, e));
    work.back().sparsity = c.order;
    work.back().threshold = c.threshold;
  }
  RoutedExpertsArgs args;
  args.x = bench.PutRows(c.x, c.hidden);
  args.tokens = c.tokens;
  args.hidden = c.hidden;
  args.ids = bench.NewWords(ids.size());
  args.ranks = 4;
  args.experts = work;
  args.y = bench.NewRows(c.slot_count, c.hidden);
  args.active = bench.NewWords(c.slot_count);
  args.down_by_outputs = true;
  ASSERT_TRUE(bench.queue().Upload(ids.data(), ids.size() * 4, args.ids).ok());
  const absl::Status status = bench.queue().RoutedExperts(args);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(BitEqual(bench.GetRows(args.y, c.slot_count, c.hidden), named.y));
  EXPECT_EQ(bench.Ints(args.active, c.slot_count), named.active);
}

TEST_P(OutputsTest, PartsOfExpertsAreRefused) {
  Random random(5);
  Case c = MakeCase(random, 0, 1, 1, 128, 64);
  OpBench bench(GetParam());
  ExpertWork work = PutExpert(bench, c.experts[0]);
  work.rows = c.rows[0];
  work.slots = c.slots[0];
  MoeExpertsArgs args;
  args.x = bench.PutRows(c.x, c.hidden);
  args.tokens = 1;
  args.hidden = c.hidden;
  args.y = bench.NewRows(1, c.hidden);
  args.slots = 1;
  args.experts = {&work, 1};
  args.down_by_outputs = true;
  const auto refusal = [&](const std::string& word) {
    const absl::Status status = bench.queue().MoeExperts(args);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status;
  };
  work.neuron_end = 64;
  refusal("whole");
  work.neuron_end = 0;
  std::vector<int32_t> positions(128);
  std::iota(positions.begin(), positions.end(), 0);
  work.up.positions = bench.PutInts(positions);
  refusal("up");
  work.up.positions = {};
  args.down_by_outputs = false;
  refusal("down [64, 128]");
}

}  // namespace
}  // namespace sluice
