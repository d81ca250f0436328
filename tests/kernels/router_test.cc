// Router, ScaleRows, OutputGate and SoftCap on every backend.
#include <algorithm>
#include <cmath>
#include <functional>

#include "gtest/gtest.h"
#include "kernels/scalar_math.h"
#include "tests/kernels/op_testing.h"

namespace sluice {
namespace {

const BackendCase kReference{"reference", true};

class RouterTest : public testing::TestWithParam<BackendCase> {};
INSTANTIATE_TEST_SUITE_P(Backends, RouterTest, testing::ValuesIn(AllBackends()), CaseName);

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// Everything of a call but its places.
struct RouterCase {
  RouterArgs args;
  std::vector<float> logits;
  std::vector<float> correction;
  std::vector<float> shared_logits;
};

Routed Route(OpBench& bench, const RouterCase& which) {
  RouterArgs args = which.args;
  const uint32_t entries = args.tokens * (args.top_k + (args.shared ? 1 : 0));
  args.logits = bench.PutRows(which.logits, args.experts);
  if (!which.correction.empty()) {
    args.correction = bench.PutFloats(which.correction);
  }
  if (!which.shared_logits.empty()) {
    args.shared_logits = bench.PutRows(which.shared_logits, 1);
  }
  args.ids = bench.NewWords(entries);
  args.weights = bench.NewWords(entries);
  const absl::Status status = bench.queue().Router(args);
  EXPECT_TRUE(status.ok()) << status;
  return {bench.Ints(args.ids, entries), bench.Floats(args.weights, entries)};
}

TEST_P(RouterTest, RouterPicksTheBestWithTiesToTheLowerExpert) {
  Random random(5);
  for (const bool normed : {true, false}) {
    for (const uint32_t experts : {1u, 5u, 8u, 16u, 61u}) {
      const uint32_t tokens = 21;
      const uint32_t top_k = std::min(experts, 3u);
      std::vector<float> logits = random.Normals(tokens * experts, 2.0f);
      for (float& logit : logits) {
        logit = std::round(logit * 2) / 2;  // many ties
      }
      std::vector<float> weights[2];
      std::vector<int32_t> ids[2];
      for (int i = 0; i < 2; ++i) {
        OpBench bench(i == 0 ? GetParam() : kReference);
        RouterArgs args;
        args.logits = bench.PutRows(logits, experts);
        args.tokens = tokens;
        args.experts = experts;
        args.top_k = top_k;
        args.norm_topk_prob = normed;
        args.routed_scale = 1.5f;
        args.ids = bench.NewWords(tokens * top_k);
        args.weights = bench.NewWords(tokens * top_k);
        ASSERT_TRUE(bench.queue().Router(args).ok());
        ids[i] = bench.Ints(args.ids, tokens * top_k);
        weights[i] = bench.Floats(args.weights, tokens * top_k);
      }
      ASSERT_EQ(ids[0], ids[1]);
      ASSERT_TRUE(BitEqual(weights[0], weights[1]));
      for (uint32_t t = 0; t < tokens; ++t) {
        const float* row = logits.data() + t * experts;
        double total = 0;
        double chosen = 0;
        for (uint32_t e = 0; e < experts; ++e) {
          total += std::exp(double{row[e]});
        }
        for (uint32_t k = 0; k < top_k; ++k) {
          const int32_t id = ids[0][t * top_k + k];
          chosen += std::exp(double{row[id]});
          for (int32_t e = 0; k > 0 && e < static_cast<int32_t>(experts); ++e) {
            const int32_t before = ids[0][t * top_k + k - 1];
            // Nothing lies between two neighbours of the ranking.
            const bool after_first = row[e] < row[before] || (row[e] == row[before] && e > before);
            const bool before_second = row[e] > row[id] || (row[e] == row[id] && e < id);
            ASSERT_FALSE(after_first && before_second) << "token " << t << " rank " << k << " expert " << e;
          }
        }
        for (uint32_t k = 0; k < top_k; ++k) {
          const double e = std::exp(double{row[ids[0][t * top_k + k]]});
          ASSERT_NEAR(weights[0][t * top_k + k], 1.5 * e / (normed ? chosen : total), 1.5 * 40 * kRoundoff);
        }
      }
    }
  }
}

TEST_P(RouterTest, ACutKeepsAsManyExpertsAsTheHostsRuleKeeps) {
  Random random(9);
  for (const bool shared : {false, true}) {
    RouterCase c;
    c.args.tokens = 40;
    c.args.experts = 12;
    c.args.top_k = 4;
    c.args.routed_scale = 1.25f;
    c.args.shared = shared;
    c.logits = random.Normals(c.args.tokens * c.args.experts, 1.5f);
    OpBench bench(GetParam());
    Routed wanted = Route(bench, c);
    const uint32_t ranks = c.args.top_k + (shared ? 1 : 0);
    uint32_t by_kept[5] = {};
    for (uint32_t t = 0; t < c.args.tokens; ++t) {
      const absl::Span<float> row(wanted.weights.data() + t * ranks, c.args.top_k);
      const uint32_t kept = ExpertsKept(row, 1.7, 0.11);
      KeepExperts(row, kept);
      ++by_kept[kept];
    }
    EXPECT_GT(by_kept[1] + by_kept[2], 0u);
    EXPECT_GT(by_kept[3] + by_kept[4], 0u);
    c.args.cut = true;
    c.args.cut_sensitivity = 1.7;
    c.args.cut_limit = 0.11;
    const Routed cut = Route(bench, c);
    EXPECT_EQ(cut.ids, wanted.ids);
    EXPECT_TRUE(BitEqual(cut.weights, wanted.weights));
  }
}

// Logits with many ties.
std::vector<float> TiedLogits(Random& random, uint32_t count) {
  std::vector<float> logits = random.Normals(count, 2.0f);
  for (float& logit : logits) {
    logit = std::round(logit * 2) / 2;
  }
  return logits;
}

// Every kind with every switch that it has, over group sizes off the registers.
std::vector<RouterCase> AllKinds() {
  Random random(50);
  std::vector<RouterCase> cases;
  const auto add = [&](RouterKind kind, uint32_t experts, uint32_t top_k, auto&& change) {
    RouterCase c;
    c.args.kind = kind;
    c.args.tokens = 17;
    c.args.experts = experts;
    c.args.top_k = top_k;
    c.args.routed_scale = 1.25f;
    change(c);
    c.logits = TiedLogits(random, c.args.tokens * experts);
    cases.push_back(std::move(c));
  };
  const auto nothing = [](RouterCase&) {};
  for (const uint32_t experts : {2u, 9u, 33u, 64u}) {
    add(RouterKind::kTopKSoftmax, experts, std::min(experts, 8u), nothing);
    add(RouterKind::kSigmoidInput, experts, 1, nothing);
    add(RouterKind::kSigmoidTopK, experts, 2, nothing);
    for (const float jitter : {0.0f, 0.01f, 0.5f}) {
      add(RouterKind::kSparseMixer, experts, 2, [&](RouterCase& c) { c.args.jitter = jitter; });
    }
  }
  for (const RouterKind kind : {RouterKind::kSoftmaxTopK, RouterKind::kSigmoidTopK}) {
    for (const GroupScore score : {GroupScore::kMax, GroupScore::kTopTwoSum}) {
      for (const bool corrected : {false, true}) {
        for (const uint32_t groups : {0u, 1u, 3u, 7u}) {
          add(kind, 42, 6, [&](RouterCase& c) {
            c.args.groups = groups;
            c.args.top_groups = (groups + 1) / 2;
            c.args.group_score = score;
            c.args.norm_topk_prob = groups != 3;
            c.args.shared = corrected;
            if (corrected) {
              c.correction = random.Normals(42, 0.1f);
              c.shared_logits = random.Normals(groups == 7 ? 0 : 17);
            }
          });
        }
      }
    }
  }
  return cases;
}

TEST_P(RouterTest, EveryKindEqualsTheReferenceAndTheTokenAlone) {
  int number = 0;
  for (const RouterCase& which : AllKinds()) {
    SCOPED_TRACE(testing::Message() << "case " << number++ << ", kind " << static_cast<int>(which.args.kind));
    OpBench bench(GetParam());
    OpBench oracle(kReference);
    const Routed all = Route(bench, which);
    const Routed expected = Route(oracle, which);
    ASSERT_EQ(all.ids, expected.ids);
    ASSERT_TRUE(BitEqual(all.weights, expected.weights));
    RouterCase one = which;
    one.args.tokens = 1;
    const uint32_t t = 11;
    const uint32_t ranks = static_cast<uint32_t>(all.ids.size()) / which.args.tokens;
    const auto row = [&](const auto& from, uint32_t cols) {
      return std::decay_t<decltype(from)>(from.begin() + t * cols, from.begin() + (t + 1) * cols);
    };
    one.logits = row(which.logits, which.args.experts);
    if (!which.shared_logits.empty()) {
      one.shared_logits = row(which.shared_logits, 1);
    }
    const Routed alone = Route(bench, one);
    ASSERT_EQ(alone.ids, row(all.ids, ranks));
    ASSERT_TRUE(BitEqual(alone.weights, row(all.weights, ranks)));
    for (uint32_t i = 0; i < all.ids.size(); ++i) {
      const bool shared = which.args.shared && i % ranks == which.args.top_k;
      ASSERT_EQ(all.ids[i] == static_cast<int32_t>(which.args.experts), shared);
      if (shared) {
        const double weight =
            which.shared_logits.empty() ? 1 : 1 / (1 + std::exp(-double{which.shared_logits[i / ranks]}));
        ASSERT_NEAR(all.weights[i], weight, 4 * kRoundoff);
      }
    }
  }
}

TEST_P(RouterTest, ChoicesAndWeightsAreThoseOfTransformers) {
  const Goldens goldens;
  const auto check = [&](const std::string& name, RouterKind kind, auto&& change) {
    SCOPED_TRACE(name);
    OpBench bench(GetParam());
    RouterCase which;
    which.args.kind = kind;
    which.args.tokens = 12;
    which.args.experts = 16;
    which.args.top_k = 4;
    which.logits = goldens.Floats("router.logits");
    change(which);
    const Routed routed = Route(bench, which);
    const std::vector<int32_t> ids = goldens.Ints("router." + name + ".ids");
    const std::vector<float>& weights = goldens.Floats("router." + name + ".weights");
    ASSERT_EQ(routed.ids.size(), ids.size());
    const uint32_t k = which.args.top_k;
    for (size_t first = 0; first < ids.size(); first += k) {
      for (size_t i = first; i < first + k; ++i) {
        // The golden's ranks may be in another order: the same expert has the same weight.
        const auto begin = ids.begin() + static_cast<int64_t>(first);
        const auto found = std::find(begin, begin + k, routed.ids[i]);
        ASSERT_NE(found, begin + k) << "expert " << routed.ids[i] << " of token " << first / k;
        const float weight = weights[static_cast<size_t>(found - ids.begin())];
        ASSERT_NEAR(routed.weights[i], weight, std::fabs(weight) * 32 * kRoundoff);
      }
    }
  };
  check("topk_softmax", RouterKind::kTopKSoftmax, [](RouterCase&) {});
  check("sigmoid_input", RouterKind::kSigmoidInput, [](RouterCase&) {});
  for (const bool normed : {true, false}) {
    check(normed ? "sigmoid_topk.normed" : "sigmoid_topk.plain", RouterKind::kSigmoidTopK,
          [&](RouterCase& c) {
            c.args.norm_topk_prob = normed;
            c.args.routed_scale = 2.5f;
            c.args.groups = 4;
            c.args.top_groups = 2;
            c.args.group_score = GroupScore::kTopTwoSum;
            c.correction = goldens.Floats("router.correction");
          });
  }
  check("group_limited", RouterKind::kSoftmaxTopK, [](RouterCase& c) {
    c.args.norm_topk_prob = false;
    c.args.routed_scale = 2.5f;
    c.args.groups = 4;
    c.args.top_groups = 2;
  });
  check("sparse_mixer.0.01", RouterKind::kSparseMixer, [](RouterCase& c) {
    c.args.top_k = 2;
    c.args.jitter = 0.01f;
  });
  check("sparse_mixer.0.3", RouterKind::kSparseMixer, [](RouterCase& c) {
    c.args.top_k = 2;
    c.args.jitter = 0.3f;
  });
}

TEST_P(RouterTest, ArgumentsThatDoNotFitAreRefusedWithNumbers) {
  const auto refused = [&](absl::StatusCode code, const std::string& words, auto&& change) {
    OpBench bench(GetParam());
    RouterArgs args;
    args.logits = bench.NewRows(1, 8);
    args.tokens = 1;
    args.experts = 8;
    args.top_k = 2;
    args.ids = bench.NewWords(2);
    args.weights = bench.NewWords(2);
    change(bench, args);
    const absl::Status status = bench.queue().Router(args);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto missing = absl::StatusCode::kUnimplemented;
  refused(missing, "router kind 9", [](OpBench&, RouterArgs& a) { a.kind = static_cast<RouterKind>(9); });
  refused(missing, "topk_softmax", [](OpBench&, RouterArgs& a) {
    a.kind = RouterKind::kTopKSoftmax;
    a.groups = 2;
    a.top_groups = 1;
  });
  refused(missing, "sigmoid_input", [](OpBench& bench, RouterArgs& a) {
    a.kind = RouterKind::kSigmoidInput;
    a.correction = bench.NewWords(8);
  });
  refused(invalid, "sparse mixer with 1", [](OpBench&, RouterArgs& a) {
    a.kind = RouterKind::kSparseMixer;
    a.top_k = 1;
  });
  refused(invalid, "3 groups of 8", [](OpBench&, RouterArgs& a) {
    a.groups = 3;
    a.top_groups = 1;
  });
  refused(invalid, "best 5 of 4 groups", [](OpBench&, RouterArgs& a) {
    a.groups = 4;
    a.top_groups = 5;
  });
  refused(invalid, "for 2 experts", [](OpBench&, RouterArgs& a) {
    a.groups = 8;
    a.top_groups = 1;
  });
  refused(invalid, "best two", [](OpBench&, RouterArgs& a) {
    a.groups = 8;
    a.top_groups = 4;
    a.group_score = GroupScore::kTopTwoSum;
  });
  refused(absl::StatusCode::kOutOfRange, "correction", [](OpBench& bench, RouterArgs& a) {
    a.correction = bench.PutFloats({1, 2});
  });
  // The shared rank needs a place.
  refused(absl::StatusCode::kOutOfRange, "ids", [](OpBench& bench, RouterArgs& a) {
    a.ids = bench.PutWritable({0, 0});
    a.shared = true;
  });
}

TEST_P(RouterTest, ExpertFactorsAndEpsilonChangeOnlyWeights) {
  Random random(52);
  const uint32_t tokens = 13, experts = 10, top_k = 4;
  const std::vector<float> logits = random.Normals(tokens * experts, 2.0f);
  const std::vector<float> scales = random.Normals(experts);
  const auto run = [&](const BackendCase& which, float epsilon, bool scaled) {
    OpBench bench(which);
    RouterCase c;
    c.args = {.tokens = tokens, .experts = experts, .kind = RouterKind::kSigmoidTopK, .top_k = top_k};
    c.args.norm_epsilon = epsilon;
    c.logits = logits;
    if (scaled) {
      c.args.expert_scale = bench.PutFloats(scales);
    }
    return Route(bench, c);
  };
  const Routed plain = run(GetParam(), 0, false);
  const Routed changed = run(GetParam(), 0.5f, true);
  ASSERT_EQ(changed.ids, plain.ids);
  ASSERT_TRUE(BitEqual(changed.weights, run(kReference, 0.5f, true).weights));
  for (uint32_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (uint32_t k = 0; k < top_k; ++k) {
      sum += 1 / (1 + std::exp(-double{logits[t * experts + plain.ids[t * top_k + k]]}));
    }
    for (uint32_t k = 0; k < top_k; ++k) {
      const uint32_t i = t * top_k + k;
      ASSERT_NEAR(changed.weights[i], plain.weights[i] * sum / (sum + 0.5) * scales[plain.ids[i]], 1e-6);
    }
  }
}

TEST_P(RouterTest, SoftCapsEqualTheReferenceAndTheTangent) {
  Random random(53);
  for (const uint32_t cols : {1u, 31u, 100u}) {
    std::vector<float> x = random.Normals(3 * cols, 40.0f);
    x[0] = 0;
    x[cols] = -4000;
    std::vector<float> capped[2];
    for (int i = 0; i < 2; ++i) {
      OpBench bench(i == 0 ? GetParam() : kReference);
      const Rows rows{bench.PutWritable(x), cols};
      ASSERT_TRUE(bench.queue().SoftCap({rows, 3, cols, 30.0f}).ok());
      capped[i] = bench.GetRows(rows, 3, cols);
    }
    ASSERT_TRUE(BitEqual(capped[0], capped[1]));
    for (uint32_t i = 0; i < 3 * cols; ++i) {
      ASSERT_NEAR(capped[0][i], 30 * std::tanh(x[i] / 30.0), 30 * 8 * kRoundoff) << x[i];
    }
  }
  OpBench bench(GetParam());
  EXPECT_EQ(bench.queue().SoftCap({bench.NewRows(2, 8), 2, 8, 0}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(RouterTest, GatesOfHeadsAndSoftplusEqualReference) {
  Random random(52);
  for (const uint32_t width : {1u, 6u, 32u, 80u}) {
    for (const GateActivation kind : {GateActivation::kSigmoid, GateActivation::kSoftplus}) {
      const uint32_t tokens = 5;
      const uint32_t gates = 7;
      const uint32_t cols = gates * width;
      const std::vector<float> x = random.Normals(tokens * cols, 3.0f);
      std::vector<float> gate = random.Normals(tokens * gates, 8.0f);
      gate[0] = 95.0f;
      gate[1] = -95.0f;
      std::vector<float> gated[2];
      for (int i = 0; i < 2; ++i) {
        OpBench bench(i == 0 ? GetParam() : kReference);
        const Rows in_out{bench.PutWritable(x), cols};
        ASSERT_TRUE(
            bench.queue().OutputGate({in_out, bench.PutRows(gate, gates), tokens, cols, width, kind}).ok());
        gated[i] = bench.GetRows(in_out, tokens, cols);
      }
      ASSERT_TRUE(BitEqual(gated[0], gated[1]));
      for (uint32_t i = 0; i < tokens * cols; ++i) {
        const double g = gate[i / cols * gates + i % cols / width];
        const double factor =
            kind == GateActivation::kSigmoid ? 1 / (1 + std::exp(-g)) : std::log1p(std::exp(g));
        ASSERT_NEAR(gated[0][i], x[i] * factor, std::fabs(x[i] * factor) * 16 * kRoundoff + 1e-36);
      }
    }
  }
  OpBench bench(GetParam());
  const Rows x = bench.NewRows(2, 8);
  EXPECT_EQ(bench.queue().OutputGate({x, bench.NewRows(2, 8), 2, 8, 3}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(RouterTest, ScaledRowsAndOutputGatesEqualReference) {
  Random random(51);
  for (const uint32_t cols : {1u, 15u, 32u, 47u, 640u}) {
    const uint32_t tokens = 9;
    const uint32_t ranks = 3;
    const std::vector<float> x = random.Normals(tokens * cols, 3.0f);
    std::vector<float> gate = random.Normals(tokens * cols, 5.0f);
    gate[0] = 95.0f;
    gate[gate.size() / 2] = -95.0f;
    const std::vector<float> weights = random.Normals(tokens * ranks);
    std::vector<float> scaled[2];
    std::vector<float> gated[2];
    for (int i = 0; i < 2; ++i) {
      OpBench bench(i == 0 ? GetParam() : kReference);
      const Rows y = bench.NewRows(tokens * ranks, cols, cols + 3);
      ASSERT_TRUE(bench.queue()
                      .ScaleRows({bench.PutRows(x, cols), bench.PutFloats(weights), tokens, ranks, cols, y})
                      .ok());
      scaled[i] = bench.GetRows(y, tokens * ranks, cols);
      const Rows in_out{bench.PutWritable(x), cols};
      ASSERT_TRUE(bench.queue().OutputGate({in_out, bench.PutRows(gate, cols), tokens, cols}).ok());
      gated[i] = bench.GetRows(in_out, tokens, cols);
    }
    ASSERT_TRUE(BitEqual(scaled[0], scaled[1]));
    ASSERT_TRUE(BitEqual(gated[0], gated[1]));
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t c = 0; c < cols; ++c) {
        for (uint32_t r = 0; r < ranks; ++r) {
          ASSERT_EQ(scaled[0][(t * ranks + r) * cols + c], weights[t * ranks + r] * x[t * cols + c]);
        }
        const double exact = x[t * cols + c] / (1 + std::exp(-double{gate[t * cols + c]}));
        ASSERT_NEAR(gated[0][t * cols + c], exact, std::fabs(exact) * 8 * kRoundoff + 1e-36);
      }
    }
  }
  OpBench bench(GetParam());
  const Rows x = bench.NewRows(4, 8);
  EXPECT_EQ(bench.queue().OutputGate({x, x, 2, 8}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(bench.queue().ScaleRows({x, bench.NewWords(4), 2, 2, 8, x}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
