// The router of DeepSeek-V4 on every backend: scores by square roots of softplus, and experts that tokens
// name.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};
constexpr uint32_t kTokens = 9;
constexpr uint32_t kExperts = 24;
constexpr uint32_t kTopK = 4;

struct Inputs {
  std::vector<float> logits, correction, fixed;
};

Inputs MakeInputs() {
  Random random(70);
  Inputs inputs{random.Normals(kTokens * kExperts, 8.0f), random.Normals(kExperts), {}};
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t k = 0; k < kTopK; ++k)
      inputs.fixed.push_back(static_cast<float>((t * 5 + k * 7) % kExperts));
  }
  return inputs;
}

struct Results {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Results Route(const BackendCase& which, const Inputs& inputs, bool fixed) {
  OpBench bench(which);
  RouterArgs args;
  args.logits = bench.PutRows(inputs.logits, kExperts);
  args.tokens = kTokens;
  args.experts = kExperts;
  args.kind = RouterKind::kSqrtSoftplusTopK;
  args.top_k = kTopK;
  args.routed_scale = 1.5f;
  if (fixed) {
    args.fixed = bench.PutRows(inputs.fixed, kTopK);
  } else {
    args.correction = bench.PutFloats(inputs.correction);
  }
  args.ids = bench.NewWords(kTokens * kTopK);
  args.weights = bench.NewWords(kTokens * kTopK);
  const absl::Status status = bench.queue().Router(args);
  EXPECT_TRUE(status.ok()) << status;
  return {bench.Ints(args.ids, kTokens * kTopK), bench.Floats(args.weights, kTokens * kTopK)};
}

class TokenRouterTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, TokenRouterTest, testing::ValuesIn(AllBackends()), CaseName);

TEST_P(TokenRouterTest, EqualsTheReferenceBitForBit) {
  const Inputs inputs = MakeInputs();
  for (const bool fixed : {false, true}) {
    const Results expected = Route(kReference, inputs, fixed);
    const Results got = Route(GetParam(), inputs, fixed);
    EXPECT_EQ(got.ids, expected.ids);
    EXPECT_EQ(got.weights, expected.weights);
  }
}

TEST(TokenRouterReferenceTest, WeightsAreShares) {
  const Inputs inputs = MakeInputs();
  for (const bool fixed : {false, true}) {
    const Results results = Route(kReference, inputs, fixed);
    for (uint32_t t = 0; t < kTokens; ++t) {
      std::vector<double> scores;
      for (uint32_t e = 0; e < kExperts; ++e) {
        scores.push_back(std::sqrt(std::log1p(std::exp(double{inputs.logits[t * kExperts + e]}))));
      }
      std::vector<int32_t> order(kExperts);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return scores[a] + inputs.correction[a] > scores[b] + inputs.correction[b];
      });
      double sum = 0;
      for (uint32_t k = 0; k < kTopK; ++k) {
        const int32_t wanted = fixed ? static_cast<int32_t>(inputs.fixed[t * kTopK + k]) : order[k];
        EXPECT_EQ(results.ids[t * kTopK + k], wanted);
        sum += scores[wanted];
      }
      for (uint32_t k = 0; k < kTopK; ++k) {
        EXPECT_NEAR(results.weights[t * kTopK + k], scores[results.ids[t * kTopK + k]] / sum * 1.5, 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
