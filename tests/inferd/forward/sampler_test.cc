#include "inferd/forward/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace sluice::inferd {
namespace {

std::vector<float> RandomLogits(uint32_t vocab, uint32_t seed, float spread = 3.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    logit = normal(random);
  }
  return logits;
}

int32_t SampleOnce(Sampler& sampler, const std::vector<float>& logits, const SamplingParams& params,
                   uint64_t position, const TokenCounts* counts = nullptr,
                   absl::Span<const int32_t> banned = {}) {
  SampleInput input;
  input.logits = logits;
  input.params = &params;
  input.seed = 1234;
  input.position = position;
  input.counts = counts;
  input.banned = banned;
  return sampler.Sample(input);
}

// The distribution by definition, in double over a full sort.
std::map<int32_t, double> Distribution(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) {
    order.resize(std::min<size_t>(order.size(), params.top_k));
  }
  std::vector<double> p;
  double total = 0;
  for (const int32_t id : order) {
    p.push_back(std::exp((double{logits[id]} - logits[order[0]]) / params.temperature));
    total += p.back();
  }
  std::map<int32_t, double> kept;
  double before = 0;
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if ((before >= params.top_p * total && params.top_p < 1) || p[i] < params.min_p * p[0]) {
      break;
    }
    before += p[i];
    sum += p[i];
    kept[order[i]] = p[i];
  }
  for (auto& [id, probability] : kept) {
    probability /= sum;
  }
  return kept;
}

TEST(SamplerTest, GreedyTakesTheLowerIndexOfATie) {
  Sampler sampler(40);
  std::vector<float> logits(40, -1.0f);
  logits[17] = logits[5] = logits[33] = 2.0f;
  EXPECT_EQ(SampleOnce(sampler, logits, {}, 0), 5);
}

TEST(SamplerTest, TopKOfOneIsGreedy) {
  SamplingParams params;
  params.temperature = 5.0f;
  params.top_k = 1;
  const std::vector<float> logits = RandomLogits(1000, 3);
  Sampler sampler(1000);
  const int32_t best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (uint64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(SampleOnce(sampler, logits, params, position), best);
  }
}

TEST(SamplerTest, TopKKeepsTheLowerIndexOfATie) {
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_k = 3;
  std::vector<float> logits(50, 0.0f);
  logits[40] = 1.0f;
  Sampler sampler(50);
  for (uint64_t position = 0; position < 300; ++position) {
    const int32_t id = SampleOnce(sampler, logits, params, position);
    EXPECT_TRUE(id == 40 || id == 0 || id == 1) << id;
  }
}

struct Setting {
  float temperature;
  uint32_t top_k;
  float top_p;
  float min_p;
};

class SamplerDistributionTest : public testing::TestWithParam<Setting> {};

TEST_P(SamplerDistributionTest, DrawsKeptTokensWithTheirProbabilities) {
  SamplingParams params;
  params.temperature = GetParam().temperature;
  params.top_k = GetParam().top_k;
  params.top_p = GetParam().top_p;
  params.min_p = GetParam().min_p;
  constexpr uint32_t kVocab = 1009;
  constexpr int kDraws = 20000;
  const std::vector<float> logits = RandomLogits(kVocab, 99);
  const std::map<int32_t, double> want = Distribution(logits, params);
  Sampler sampler(kVocab);
  std::map<int32_t, int> got;
  for (int position = 0; position < kDraws; ++position) {
    got[SampleOnce(sampler, logits, params, position)]++;
  }
  double chi_squared = 0;
  int cells = 0;
  for (const auto& [id, count] : got) {
    ASSERT_TRUE(want.count(id)) << "token " << id << " is outside of the kept ones";
  }
  for (const auto& [id, probability] : want) {
    const double expected = probability * kDraws;
    if (expected >= 10) {
      chi_squared += (got[id] - expected) * (got[id] - expected) / expected;
      ++cells;
    }
  }
  // Mean `cells`, standard deviation sqrt(2 cells): five of these above is a wrong distribution.
  EXPECT_LT(chi_squared, cells + 5 * std::sqrt(2.0 * cells) + 5);
}

INSTANTIATE_TEST_SUITE_P(Settings, SamplerDistributionTest,
                         testing::Values(Setting{1.0f, 0, 1.0f, 0.0f}, Setting{0.7f, 0, 1.0f, 0.0f},
                                         Setting{1.0f, 40, 1.0f, 0.0f}, Setting{1.0f, 700, 1.0f, 0.0f},
                                         Setting{1.0f, 0, 0.9f, 0.0f}, Setting{1.5f, 0, 0.99f, 0.0f},
                                         Setting{1.0f, 0, 1.0f, 0.05f}, Setting{0.8f, 50, 0.95f, 0.02f},
                                         Setting{1.2f, 0, 0.5f, 0.1f}, Setting{1.0f, 0, 0.001f, 0.0f},
                                         Setting{1.0f, 5000, 1.0f, 0.0f}));

TEST(SamplerTest, FlatRowsKeepEnoughForTopP) {
  SamplingParams params;
  params.temperature = 1.0f;
  params.top_p = 0.5f;
  constexpr uint32_t kVocab = 5000;
  const std::vector<float> logits(kVocab, 1.0f);
  Sampler sampler(kVocab);
  int32_t highest = 0;
  for (uint64_t position = 0; position < 5000; ++position) {
    highest = std::max(highest, SampleOnce(sampler, logits, params, position));
  }
  EXPECT_LE(highest, 2500);
  EXPECT_GT(highest, 2480);
}

TEST(SamplerTest, PenaltiesFollowTheirDefinitions) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  TokenCounts counts;
  counts.Reserve(8);
  counts.AddPrompt(0);
  counts.AddGenerated(1);
  counts.AddGenerated(1);
  counts.AddGenerated(2);
  Sampler sampler(5);
  // Token 0: 4 / 2 = 2 (prompt only). 1: 6 / 2 - 0.5 * 2 - 0.25 = 1.75. 2: -1 * 2 - 0.75 = -2.75.
  const std::vector<float> logits = {4.0f, 6.0f, -1.0f, 1.9f, 1.0f};
  EXPECT_EQ(SampleOnce(sampler, logits, params, 0, &counts), 0);
  const std::vector<float> second = {3.4f, 6.0f, -1.0f, 1.74f, 1.0f};
  EXPECT_EQ(SampleOnce(sampler, second, params, 0, &counts), 1);
  const std::vector<float> third = {3.4f, 6.0f, -1.0f, 1.76f, 1.0f};
  EXPECT_EQ(SampleOnce(sampler, third, params, 0, &counts), 3);
}

TEST(SamplerTest, BannedTokensAreNeverDrawn) {
  SamplingParams params;
  params.temperature = 2.0f;
  const std::vector<float> logits = {5.0f, 4.0f, 0.0f, 0.0f};
  const std::vector<int32_t> banned = {0, 2};
  Sampler sampler(4);
  for (uint64_t position = 0; position < 500; ++position) {
    const int32_t id = SampleOnce(sampler, logits, params, position, nullptr, banned);
    EXPECT_TRUE(id == 1 || id == 3);
  }
  EXPECT_EQ(SampleOnce(sampler, logits, {}, 0, nullptr, banned), 1);
}

TEST(SamplerTest, ADrawDependsOnSeedAndPositionAlone) {
  SamplingParams params;
  params.temperature = 1.0f;
  const std::vector<float> logits = RandomLogits(500, 5);
  const std::vector<float> other = RandomLogits(500, 6);
  Sampler fresh(500);
  Sampler used(500);
  for (uint64_t position = 0; position < 100; ++position) {
    SampleOnce(used, other, params, position * 3);
    EXPECT_EQ(SampleOnce(fresh, logits, params, position), SampleOnce(used, logits, params, position));
  }
}

TEST(SamplerTest, TemperaturesThatWouldOverflowAreGreedy) {
  SamplingParams params;
  params.temperature = 1e-40f;
  const std::vector<float> logits = RandomLogits(64, 8);
  Sampler sampler(64);
  EXPECT_EQ(SampleOnce(sampler, logits, params, 3), SampleOnce(sampler, logits, {}, 3));
}

TEST(UniformAtTest, IsUniformOverPositionsAndOverSeeds) {
  for (const bool by_seed : {false, true}) {
    std::vector<int> cells(64, 0);
    for (uint64_t i = 0; i < 64000; ++i) {
      const double u = by_seed ? UniformAt(i, 7) : UniformAt(7, i);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      cells[static_cast<int>(u * 64)]++;
    }
    double chi_squared = 0;
    for (const int count : cells) {
      chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
    }
    EXPECT_LT(chi_squared, 63 + 5 * std::sqrt(2 * 63.0));
  }
}

TEST(SamplerExpTest, IsCloseToExp) {
  EXPECT_EQ(SamplerExp(0.0f), 1.0f);
  EXPECT_EQ(SamplerExp(-88.0f), 0.0f);
  EXPECT_EQ(SamplerExp(-std::numeric_limits<float>::infinity()), 0.0f);
  double worst = 0;
  for (float x = 0.0f; x > -86.9f; x -= 0.00173f) {
    worst = std::max(worst, std::abs(SamplerExp(x) / std::exp(double{x}) - 1.0));
  }
  EXPECT_LT(worst, 0x1.0p-21);
}

TEST(TokenCountsTest, CountsEveryTokenOnce) {
  std::mt19937 random(4);
  TokenCounts counts;
  counts.Reserve(3000);
  std::map<int32_t, uint32_t> want;
  for (int i = 0; i < 3000; ++i) {
    const int32_t token = static_cast<int32_t>(random() % 1500) * 64;
    counts.AddGenerated(token);
    want[token]++;
  }
  ASSERT_EQ(counts.items().size(), want.size());
  for (const TokenCounts::Item& item : counts.items()) {
    EXPECT_EQ(item.generated, want[item.token]);
    EXPECT_EQ(item.in_prompt, 0u);
  }
}

// A mask acts as if the other tokens were not in the vocabulary.
TEST(SamplerTest, MaskedDrawUsesAllowedTokensOnly) {
  constexpr uint32_t kVocab = 100;
  const std::vector<float> logits = RandomLogits(kVocab, 11);
  std::mt19937 random(5);
  for (const uint32_t keep_one_of : {1u, 2u, 10u}) {
    std::vector<uint32_t> mask((kVocab + 31) / 32, 0);
    std::vector<int32_t> ids;
    std::vector<float> allowed_logits;
    for (uint32_t id = 0; id < kVocab; ++id) {
      if (random() % keep_one_of == 0 || id == 77) {
        mask[id / 32] |= 1u << (id % 32);
        ids.push_back(static_cast<int32_t>(id));
        allowed_logits.push_back(logits[id]);
      }
    }
    Sampler masked(kVocab);
    Sampler small(static_cast<uint32_t>(ids.size()));
    for (int kind = 0; kind < 5; ++kind) {
      SamplingParams params;
      params.temperature = kind == 0 ? 0.0f : 1.5f;
      params.top_k = kind == 2 ? 3 : 0;
      params.top_p = kind == 3 ? 0.7f : 1.0f;
      params.min_p = kind == 4 ? 0.1f : 0.0f;
      for (uint64_t position = 0; position < 200; ++position) {
        SampleInput input;
        input.logits = logits;
        input.params = &params;
        input.seed = 9;
        input.position = position;
        input.allowed = mask;
        const int32_t drawn = masked.Sample(input);
        ASSERT_TRUE(IsAllowed(mask, drawn));
        const int32_t expected = ids[SampleOnce(small, allowed_logits, params, position)];
        input.seed = 1234;  // SampleOnce's
        ASSERT_EQ(masked.Sample(input), expected) << kind << " of " << ids.size();
      }
    }
  }
}

}  // namespace
}  // namespace sluice::inferd
