// MoeExperts, Combine and TopLogits on every backend.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "pack/pack_format.h"
#include "pack/row_layout.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class MoeTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, MoeTest, testing::ValuesIn(AllBackends()), CaseName);

struct Expert {
  EncodedMatrix up, gate, down;
};

// An expert's parts of one width; down may have another encoding.
Expert MakeExpert(Random& random, const EncodingDescriptor& d, const EncodingDescriptor& down, uint32_t width,
                  uint32_t hidden) {
  return {random.Matrix(d, width, hidden, 2 * random.Below(9)), random.Matrix(d, width, hidden),
          random.Matrix(DownEncoding(down), width, hidden, 2 * random.Below(9))};
}

// The tokens of each expert: rows[e], slots[e].
struct Assignment {
  std::vector<std::vector<uint32_t>> rows, slots;
};

Assignment RandomAssignment(Random& random, uint32_t tokens, uint32_t experts, uint32_t top_k) {
  Assignment a;
  a.rows.resize(experts);
  a.slots.resize(experts);
  for (uint32_t t = 0; t < tokens; ++t) {
    std::vector<uint32_t> order(experts);
    std::iota(order.begin(), order.end(), 0u);
    for (uint32_t k = 0; k < top_k; ++k) {
      std::swap(order[k], order[k + random.Below(experts - k)]);
      a.rows[order[k]].push_back(t);
      a.slots[order[k]].push_back(t * top_k + k);
    }
  }
  return a;
}

std::vector<float> RunExperts(OpBench& bench, const std::vector<Expert>& experts,
                              const Assignment& assignment, const std::vector<float>& x, uint32_t tokens,
                              uint32_t hidden, uint32_t slots, uint32_t tile = 0) {
  MoeExpertsArgs args;
  args.x = bench.PutRows(x, hidden);
  args.tokens = tokens;
  args.hidden = hidden;
  args.y = bench.NewRows(slots, hidden);
  args.slots = slots;
  std::vector<ExpertWork> work;
  for (size_t e = 0; e < experts.size(); ++e) {
    if (assignment.rows[e].empty()) {
      continue;
    }
    ExpertWork w;
    w.up = bench.PutMatrix(experts[e].up);
    w.gate = bench.PutMatrix(experts[e].gate);
    w.down = bench.PutMatrix(experts[e].down);
    w.rows = assignment.rows[e];
    w.slots = assignment.slots[e];
    work.push_back(w);
  }
  const uint32_t width = experts[0].up.rows;
  for (uint32_t begin = 0; begin < width; begin += tile == 0 ? width : tile) {
    for (ExpertWork& w : work) {
      w.neuron_begin = begin;
      w.neuron_end = tile == 0 ? 0 : std::min(width, begin + tile);
    }
    args.experts = work;
    const absl::Status status = bench.queue().MoeExperts(args);
    EXPECT_TRUE(status.ok()) << status;
  }
  return bench.GetRows(args.y, slots, hidden);
}

struct Shape {
  uint32_t tokens, experts, top_k, width, hidden;
};
const Shape kShapes[] = {{1, 4, 2, 64, 64},   {1, 8, 8, 100, 96},   {2, 3, 2, 200, 130}, {7, 5, 3, 129, 33},
                         {40, 4, 2, 70, 160}, {96, 2, 1, 257, 144}, {25, 1, 1, 65, 280}, {21, 1, 1, 66, 296}};

// Experts of every encoding, and of three different ones.
TEST_P(MoeTest, ExpertsEqualTheReferenceBitForBit) {
  CaseCounter cases(GetParam());
  Random random(1);
  const std::vector<EncodingDescriptor> all = AllEncodings();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t shape = i % 2; shape < std::size(kShapes); shape += 2) {
      const Shape& s = kShapes[shape];
      if (cases.LeavesOut()) {
        continue;
      }
      SCOPED_TRACE(testing::Message() << EncodingLabel(all[i]) << " tokens " << s.tokens << " experts "
                                      << s.experts << " width " << s.width << " hidden " << s.hidden);
      std::vector<Expert> experts;
      for (uint32_t e = 0; e < s.experts; ++e) {
        experts.push_back(MakeExpert(random, all[i], all[i], s.width, s.hidden));
        if (e % 2 == 1) {
          experts.back().gate = random.Matrix(all[(i + 5 * e) % all.size()], s.width, s.hidden);
          experts.back().down = random.Matrix(DownEncoding(all[(i + 7 * e) % all.size()]), s.width, s.hidden);
        }
      }
      const std::vector<float> x = random.Normals(uint64_t{s.tokens} * s.hidden, 2.0f);
      const Assignment a = RandomAssignment(random, s.tokens, s.experts, s.top_k);
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      const uint32_t slots = s.tokens * s.top_k;
      const std::vector<float> y = RunExperts(bench, experts, a, x, s.tokens, s.hidden, slots);
      ASSERT_TRUE(BitEqual(y, RunExperts(oracle, experts, a, x, s.tokens, s.hidden, slots)));
      // Tile by tile, as the expert arrives.
      ASSERT_TRUE(BitEqual(y, RunExperts(bench, experts, a, x, s.tokens, s.hidden, slots, 64)));
    }
  }
}

// Up and gate in file blocks, of two types; down in another encoding.
TEST_P(MoeTest, ExpertsOfFileBlocksEqualTheReference) {
  if (GetParam().capability != 0) {
    GTEST_SKIP() << "device cuda refuses these rows (matmul_test)";
  }
  Random random(12);
  const std::vector<Encoding> all = FileBlockEncodings();
  for (size_t i = 0; i < all.size(); ++i) {
    for (const uint32_t tokens : {1u, 30u}) {
      SCOPED_TRACE(testing::Message() << EncodingName(all[i]) << " tokens " << tokens);
      std::vector<Expert> experts;
      for (uint32_t e = 0; e < 3; ++e) {
        const EncodingDescriptor d = MakeDescriptor(all[(i + e) % all.size()]);
        experts.push_back(MakeExpert(random, d, d, 70, 512));
        experts.back().down = random.Matrix(DownEncoding(d), 70, 512);
      }
      const std::vector<float> x = random.Normals(uint64_t{tokens} * 512, 2.0f);
      const Assignment a = RandomAssignment(random, tokens, 3, 2);
      OpBench bench(GetParam());
      OpBench oracle(kReference);
      const std::vector<float> y = RunExperts(bench, experts, a, x, tokens, 512, tokens * 2);
      ASSERT_TRUE(BitEqual(y, RunExperts(oracle, experts, a, x, tokens, 512, tokens * 2)));
    }
  }
}

TEST_P(MoeTest, TokenAloneEqualsTheTokenInABatch) {
  CaseCounter cases(GetParam());
  Random random(2);
  const uint32_t hidden = 112;
  for (const EncodingDescriptor& d : AllEncodings()) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(EncodingLabel(d));
    std::vector<Expert> experts;
    for (int e = 0; e < 3; ++e) {
      experts.push_back(MakeExpert(random, d, d, 150, hidden));
    }
    const uint32_t tokens = 90;
    const std::vector<float> x = random.Normals(tokens * hidden);
    const Assignment a = RandomAssignment(random, tokens, 3, 2);
    OpBench bench(GetParam());
    const std::vector<float> all = RunExperts(bench, experts, a, x, tokens, hidden, tokens * 2);
    for (const uint32_t t : {0u, 1u, 43u, 89u}) {
      Assignment alone;
      alone.rows.resize(3);
      alone.slots.resize(3);
      for (size_t e = 0; e < 3; ++e) {
        for (size_t i = 0; i < a.rows[e].size(); ++i) {
          if (a.rows[e][i] == t) {
            alone.rows[e] = {0};
            alone.slots[e] = {a.slots[e][i] % 2};
          }
        }
      }
      const std::vector<float> row(x.begin() + t * hidden, x.begin() + (t + 1) * hidden);
      ASSERT_TRUE(
          BitEqual(RunExperts(bench, experts, alone, row, 1, hidden, 2),
                   std::vector<float>(all.begin() + t * 2 * hidden, all.begin() + (t + 1) * 2 * hidden)));
    }
  }
}

TEST_P(MoeTest, ExpertIsTheGatedSumWithinTheEncodingsBound) {
  CaseCounter cases(GetParam());
  Random random(3);
  const uint32_t hidden = 192;
  const uint32_t width = 130;
  for (const EncodingDescriptor& d : AllEncodings()) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(EncodingLabel(d));
    const std::vector<Expert> experts = {MakeExpert(random, d, d, width, hidden)};
    const std::vector<float> x = random.Normals(hidden, 2.0f);
    OpBench bench(GetParam());
    const std::vector<float> y = RunExperts(bench, experts, {{{0}}, {{0}}}, x, 1, hidden, 1);
    std::vector<double> exact(hidden);
    double magnitude = 0;
    for (uint32_t j = 0; j < width; ++j) {
      double g = 0;
      double u = 0;
      for (uint32_t k = 0; k < hidden; ++k) {
        g += experts[0].gate.At(j, k) * x[k];
        u += experts[0].up.At(j, k) * x[k];
      }
      const double c = g / (1 + std::exp(-g)) * u;
      magnitude += std::fabs(c) * 0.3;  // |w| <= about 4 sigma = 0.29
      for (uint32_t h = 0; h < hidden; ++h) {
        exact[h] += c * experts[0].down.At(j, h);
      }
    }
    // Float rows: about 64 + 3 roundings in a block and the coefficients' own; quantized rows: steps of 2^-7
    // in x and again in the coefficients, over magnitudes a few times larger than the typical.
    const double relative = IsQuantized(d.encoding) ? 8 * 0x1p-7 : 128 * kRoundoff;
    for (uint32_t h = 0; h < hidden; ++h) {
      ASSERT_NEAR(y[h], exact[h], relative * magnitude);
    }
  }
}

TEST_P(MoeTest, AbsentNeuronCountsAsCoefficientZero) {
  CaseCounter cases(GetParam());
  Random random(4);
  const uint32_t hidden = 80;
  const uint32_t width = 140;
  for (const EncodingDescriptor& d : AllEncodings()) {
    if (cases.LeavesOut()) {
      continue;
    }
    SCOPED_TRACE(EncodingLabel(d));
    const Expert full = MakeExpert(random, d, d, width, hidden);
    // Every third neuron is absent; the others are stored in another order.
    std::vector<int32_t> positions(width, -1);
    std::vector<uint32_t> stored;
    for (uint32_t j = 0; j < width; ++j) {
      if (j % 3 != 1) {
        stored.insert(stored.begin() + (stored.size() % 7), j);
      }
    }
    for (size_t i = 0; i < stored.size(); ++i) {
      positions[stored[i]] = static_cast<int32_t>(i);
    }
    const auto compact = [&](const EncodedMatrix& m) {
      EncodedMatrix out = m;
      out.bytes.clear();
      for (const uint32_t j : stored) {
        out.bytes.insert(
            out.bytes.end(), m.bytes.begin() + static_cast<int64_t>(j * m.stride),
            m.bytes.begin() + static_cast<int64_t>(std::min<uint64_t>((j + 1) * m.stride, m.bytes.size())));
        out.bytes.resize((out.bytes.size() + m.stride - 1) / m.stride * m.stride);
      }
      return out;
    };
    // The dense baseline: absent neurons have up rows of zeros.
    Expert zeroed = full;
    for (uint32_t j = 1; j < width; j += 3) {
      std::fill_n(zeroed.up.bytes.begin() + static_cast<int64_t>(j * full.up.stride),
                  RowBytes(full.up.encoding, hidden), uint8_t{0});
    }
    for (const uint32_t tokens : {1u, 30u}) {
      const std::vector<float> x = random.Normals(tokens * hidden);
      std::vector<uint32_t> rows(tokens);
      std::iota(rows.begin(), rows.end(), 0u);
      OpBench bench(GetParam());
      const std::vector<float> expected =
          RunExperts(bench, {zeroed}, {{rows}, {rows}}, x, tokens, hidden, tokens);
      MoeExpertsArgs args;
      args.x = bench.PutRows(x, hidden);
      args.tokens = tokens;
      args.hidden = hidden;
      args.y = bench.NewRows(tokens, hidden);
      args.slots = tokens;
      ExpertWork work;
      work.up = bench.PutMatrix(compact(full.up));
      work.gate = bench.PutMatrix(compact(full.gate));
      work.down = bench.PutMatrix(compact(full.down));
      work.up.positions = work.gate.positions = work.down.positions = bench.PutInts(positions);
      work.rows = rows;
      work.slots = rows;
      args.experts = {&work, 1};
      const absl::Status status = bench.queue().MoeExperts(args);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(BitEqual(bench.GetRows(args.y, tokens, hidden), expected));
    }
  }
}

TEST_P(MoeTest, ImpossibleEncodingsAreRefusedByName) {
  OpBench bench(GetParam());
  WeightView q4;
  q4.encoding = {Encoding::kQ4, 16, 20, 0};
  q4.base = bench.NewWords(1000);
  q4.stride = 64;
  q4.rows = 2;
  q4.cols = 64;
  const MatMulPart part{q4, bench.NewRows(1, 2), {}};
  MatMulArgs multiply;
  multiply.x = bench.NewRows(1, 64);
  multiply.tokens = 1;
  multiply.cols = 64;
  multiply.parts = {&part, 1};
  const absl::Status status = bench.queue().MatMul(multiply);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("MatMul"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("q4"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("20"), std::string::npos) << status;
}

TEST_P(MoeTest, CombineSumsInRankOrderAndLeavesOutZeroWeights) {
  Random random(6);
  for (const uint32_t hidden : {1u, 33u, 640u}) {
    const uint32_t tokens = 17;
    const uint32_t top_k = 3;
    std::vector<float> y = random.Normals(tokens * top_k * hidden);
    std::vector<float> weights(tokens * top_k);
    for (uint32_t i = 0; i < weights.size(); ++i) {
      weights[i] = i % 5 == 2 ? 0.0f : random.Uniform(0.1f, 1.0f);
      if (weights[i] == 0.0f) {
        std::fill_n(y.begin() + i * hidden, hidden, std::nanf(""));  // never read
      }
    }
    const std::vector<float> residual = random.Normals(tokens * hidden);
    std::vector<float> results[2];
    for (int i = 0; i < 2; ++i) {
      OpBench bench(i == 0 ? GetParam() : kReference);
      CombineArgs args;
      args.y = bench.PutRows(y, hidden);
      args.weights = bench.PutFloats(weights);
      args.tokens = tokens;
      args.top_k = top_k;
      args.hidden = hidden;
      args.residual = {bench.PutWritable(residual), hidden};
      args.out = args.residual;
      ASSERT_TRUE(bench.queue().Combine(args).ok());
      results[i] = bench.GetRows(args.out, tokens, hidden);
    }
    ASSERT_TRUE(BitEqual(results[0], results[1]));
    for (uint32_t i = 0; i < tokens * hidden; ++i) {
      double exact = 0;
      double magnitude = std::fabs(residual[i]);
      for (uint32_t k = 0; k < top_k; ++k) {
        const uint32_t slot = i / hidden * top_k + k;
        if (weights[slot] != 0) {
          exact += double{weights[slot]} * y[slot * hidden + i % hidden];
          magnitude += std::fabs(double{weights[slot]} * y[slot * hidden + i % hidden]);
        }
      }
      ASSERT_NEAR(results[0][i], residual[i] + exact, magnitude * 5 * kRoundoff);
    }
  }
}

TEST_P(MoeTest, TopLogitsAreTheBestInOrderAndTheLogOfTheSum) {
  Random random(7);
  for (const uint32_t vocab : {1u, 17u, 1000u, 5000u}) {
    const uint32_t tokens = 5;
    const uint32_t k = std::min(vocab, 40u);
    std::vector<float> logits = random.Normals(tokens * vocab, 4.0f);
    for (float& logit : logits) {
      logit = std::round(logit * 8) / 8;
    }
    std::vector<float> values[2];
    std::vector<float> sums[2];
    std::vector<int32_t> ids[2];
    for (int i = 0; i < 2; ++i) {
      OpBench bench(i == 0 ? GetParam() : kReference);
      TopLogitsArgs args;
      args.logits = bench.PutRows(logits, vocab);
      args.tokens = tokens;
      args.vocab = vocab;
      args.k = k;
      args.ids = bench.NewWords(tokens * k);
      args.values = bench.NewWords(tokens * k);
      args.log_sum_exp = bench.NewWords(tokens);
      ASSERT_TRUE(bench.queue().TopLogits(args).ok());
      ids[i] = bench.Ints(args.ids, tokens * k);
      values[i] = bench.Floats(args.values, tokens * k);
      sums[i] = bench.Floats(args.log_sum_exp, tokens);
    }
    ASSERT_EQ(ids[0], ids[1]);
    ASSERT_TRUE(BitEqual(values[0], values[1]));
    ASSERT_TRUE(BitEqual(sums[0], sums[1]));
    for (uint32_t t = 0; t < tokens; ++t) {
      double total = 0;
      for (uint32_t i = 0; i < vocab; ++i) {
        total += std::exp(double{logits[t * vocab + i]});
      }
      ASSERT_NEAR(sums[0][t], std::log(total), 1e-5);
    }
  }
}

}  // namespace
}  // namespace sluice
