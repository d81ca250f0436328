// Synthetic packs: valid, deterministic, with the requested routing.
#include "pack/writer/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <vector>

#include "pack/pack.h"
#include "pack/pack_plan.h"
#include "pack/writer/synth_weights.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

SynthOptions Tiny() {
  SynthOptions options;
  options.shape = "tiny";
  return options;
}

// Number of times each expert is among the top k for random token states that carry `direction`.
std::vector<int> CountRouting(const std::vector<float>& router, const ModelConfig& config,
                              const std::vector<float>& direction, int tokens) {
  const uint32_t experts = config.layers[0].moe.experts;
  const uint32_t hidden = config.hidden;
  NormalStream random(99);
  std::vector<float> x(hidden);
  std::vector<int> counts(experts);
  for (int t = 0; t < tokens; ++t) {
    random.Fill(1, absl::MakeSpan(x));
    double sum = 0;
    for (uint32_t i = 0; i < hidden; ++i) {
      if (!direction.empty()) x[i] += direction[i];
      sum += static_cast<double>(x[i]) * x[i];
    }
    const double norm = 1 / std::sqrt(sum / hidden);
    std::vector<std::pair<double, uint32_t>> logits;
    for (uint32_t e = 0; e < experts; ++e) {
      double logit = 0;
      for (uint32_t i = 0; i < hidden; ++i)
        logit += x[i] * norm * router[static_cast<size_t>(e) * hidden + i];
      logits.push_back({-logit, e});
    }
    std::sort(logits.begin(), logits.end());
    for (uint32_t k = 0; k < config.layers[0].moe.top_k; ++k) ++counts[logits[k].second];
  }
  return counts;
}

TEST(Synth, EveryShapeDescribesAValidModelOfItsSizes) {
  for (const std::string& name : SynthShapeNames()) {
    SynthOptions options;
    options.shape = name;
    const auto config = SynthModel(options);
    EXPECT_TRUE(config.ok()) << name << config.status();
  }
  SynthOptions options;
  options.shape = "qwen3-30b-a3b";
  options.layers = 3;
  const auto config = SynthModel(options);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->layers.size(), 3u);
  EXPECT_EQ(config->hidden, 2048u);
  EXPECT_EQ(config->layers[0].moe.experts, 128u);
  EXPECT_EQ(config->layers[0].moe.expert_width, 768u);
  EXPECT_EQ(config->layers[0].moe.top_k, 8u);
}

// Weights of a model as stored, routed experts included.
double Weights(const ModelConfig& config) {
  double sum = 0;
  for (const DenseSpec& spec : DenseSpecs(config)) sum += static_cast<double>(spec.rows) * spec.cols;
  for (const LayerConfig& layer : config.layers) {
    sum += 3.0 * layer.moe.experts * layer.moe.expert_width * config.hidden;
  }
  return sum;
}

TEST(Synth, FlagshipsHaveAsManyWeightsAsPublished) {
  const std::pair<const char*, double> published[] = {
      {"deepseek-v3.2", 671e9}, {"deepseek-v4-flash", 284e9},  {"glm-5", 744e9},
      {"minimax-m3", 428e9},    {"kimi-linear-48b-a3b", 49e9}, {"step-3.5-flash", 196e9},
      {"mimo-v2-flash", 309e9},
  };
  for (const auto& [name, weights] : published) {
    SynthOptions options;
    options.shape = name;
    const auto config = SynthModel(options);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_NEAR(Weights(*config) / weights, 1, 0.025) << name;
  }
}

TEST(Synth, FlagshipsAreCutToTheirFirstLayers) {
  SynthOptions options;
  options.shape = "kimi-linear-48b-a3b";
  options.layers = 4;
  options.vocab = 300;
  const auto config = SynthModel(options);
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->layers.size(), 4u);
  EXPECT_EQ(config->vocab, 300u);
  EXPECT_EQ(config->layers[0].moe.dense_width, 9216u);
  EXPECT_EQ(config->layers[2].attention.kind, AttentionKind::kGatedDelta);
  EXPECT_EQ(config->layers[3].attention.kind, AttentionKind::kLatent);
  options.layers = 28;
  EXPECT_THAT(std::string(SynthModel(options).status().message()), HasSubstr("layers is 28"));
  options.layers = 0;
  options.ngram_base = 97;
  EXPECT_THAT(std::string(SynthModel(options).status().message()), HasSubstr("no n-grams"));
}

TEST(Synth, PackVerifiesWithTokenizerInEveryEncoding) {
  for (const char* bits : {"bf16", "f16", "q8", "q4", "q3", "q2"}) {
    TempDir dir;
    SynthOptions options = Tiny();
    options.layers = 1;
    options.rows.bits = bits;
    const auto summary = SynthesizePack(options, dir.File("pack"), nullptr, nullptr);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(VerifyPack(dir.File("pack"), nullptr, nullptr).ok());
    const auto pack = Pack::Open(dir.File("pack"));
    ASSERT_TRUE(pack.ok()) << pack.status();
    EXPECT_EQ((*pack)->model_id(), summary->model_id);
    const auto files = (*pack)->ReadTokenizerFiles();
    ASSERT_TRUE(files.ok());
    EXPECT_EQ(*files, SynthTokenizerFiles());
  }
}

TEST(Synth, SameSeedGivesTheSamePackOnAnyNumberOfThreads) {
  TempDir dir;
  SynthOptions options = Tiny();
  options.layers = 1;
  std::vector<std::string> ids;
  for (const uint32_t threads : {1, 3}) {
    options.threads = threads;
    options.force = true;
    ids.push_back(SynthesizePack(options, dir.File("pack"), nullptr, nullptr)->model_id);
  }
  options.seed = 2;
  ids.push_back(SynthesizePack(options, dir.File("pack"), nullptr, nullptr)->model_id);
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_NE(ids[0], ids[2]);
}

TEST(Synth, SummaryCountsTheBytesOfAllFiles) {
  TempDir dir;
  SynthOptions options = Tiny();
  options.layers = 2;
  const auto summary = SynthesizePack(options, dir.File("pack"), nullptr, nullptr);
  ASSERT_TRUE(summary.ok());
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir.File("pack"))) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  EXPECT_EQ(summary->bytes, bytes);
  EXPECT_EQ(summary->experts, 2u * 32);
}

TEST(Synth, UniformRoutingSpreadsTokensEvenly) {
  const auto config = SynthModel(Tiny());
  ASSERT_TRUE(config.ok());
  const auto routers = SynthRouters(*config, 0, 0, 1);
  const std::vector<int> counts = CountRouting(routers[0], *config, {}, 4000);
  const double expected = 4000.0 * 4 / 32;
  for (const int count : counts) {
    EXPECT_GT(count, expected * 0.7);
    EXPECT_LT(count, expected * 1.3);
  }
}

TEST(Synth, ZipfRoutingPrefersFewExpertsOfEachLayer) {
  const auto config = SynthModel(Tiny());
  ASSERT_TRUE(config.ok());
  const auto routers = SynthRouters(*config, 1.0, 0, 1);
  const std::vector<float> direction = PreferenceDirection(config->hidden, 1);
  std::vector<size_t> favourites;
  for (const auto& router : routers) {
    std::vector<int> counts = CountRouting(router, *config, direction, 4000);
    favourites.push_back(std::max_element(counts.begin(), counts.end()) - counts.begin());
    std::sort(counts.rbegin(), counts.rend());
    // 4 * 4000 draws without replacement: the first takes most tokens, the last few.
    EXPECT_GT(counts[0], 2000);
    EXPECT_LT(counts[31], 300);
    EXPECT_GT(counts[0], 2 * counts[7]);
  }
  EXPECT_TRUE(std::adjacent_find(favourites.begin(), favourites.end(), std::not_equal_to<>()) !=
              favourites.end());
}

TEST(Synth, SimilarityIsTheCorrelationOfRouters) {
  SynthOptions options = Tiny();
  const auto config = SynthModel(options);
  ASSERT_TRUE(config.ok());
  for (const double similarity : {0.0, 0.8, 1.0}) {
    const auto routers = SynthRouters(*config, 0, similarity, 1);
    double dot = 0, a = 0, b = 0;
    for (size_t i = 0; i < routers[0].size(); ++i) {
      dot += static_cast<double>(routers[0][i]) * routers[1][i];
      a += static_cast<double>(routers[0][i]) * routers[0][i];
      b += static_cast<double>(routers[1][i]) * routers[1][i];
    }
    EXPECT_NEAR(dot / std::sqrt(a * b), similarity, 0.05);
  }
}

// Share of a token's top-k experts that the previous token had, over the chain's ids.
double MeasuredReuse(const ModelConfig& config, const std::vector<float>& router, double correlation) {
  TokenChain chain(config.hidden, correlation, 1);
  std::vector<float> row(config.hidden);
  std::vector<uint32_t> before;
  const uint32_t top_k = config.layers[0].moe.top_k;
  int shared = 0;
  constexpr int kTokens = 2000;
  for (int t = 0; t < kTokens; ++t) {
    chain.Next(absl::MakeSpan(row), {});
    std::vector<std::pair<float, uint32_t>> logits;
    for (uint32_t e = 0; e < config.layers[0].moe.experts; ++e) {
      float logit = 0;
      for (uint32_t i = 0; i < config.hidden; ++i)
        logit += row[i] * router[static_cast<size_t>(e) * config.hidden + i];
      logits.push_back({-logit, e});
    }
    std::partial_sort(logits.begin(), logits.begin() + top_k, logits.end());
    std::vector<uint32_t> now;
    for (uint32_t k = 0; k < top_k; ++k) now.push_back(logits[k].second);
    for (const uint32_t e : now) shared += std::count(before.begin(), before.end(), e) > 0 ? 1 : 0;
    before = now;
  }
  return static_cast<double>(shared) / (kTokens * top_k);
}

TEST(Synth, ReuseIsTheShareOfThePreviousTokensExperts) {
  const auto config = SynthModel(Tiny());
  ASSERT_TRUE(config.ok());
  const auto routers = SynthRouters(*config, 0, 0, 1);
  const uint32_t experts = config->layers[0].moe.experts;
  const uint32_t top_k = config->layers[0].moe.top_k;
  EXPECT_NEAR(MeasuredReuse(*config, routers[0], 0), static_cast<double>(top_k) / experts, 0.03);
  for (const double reuse : {0.4, 0.8}) {
    EXPECT_NEAR(MeasuredReuse(*config, routers[0], CorrelationForReuse(experts, top_k, reuse)), reuse, 0.04);
  }
  EXPECT_EQ(CorrelationForReuse(experts, top_k, 0.1), 0);
  EXPECT_EQ(CorrelationForReuse(4, 4, 0.9), 0);
}

TEST(Synth, HeadLeadsToTheNextTokenNeverToSpecialOnes) {
  constexpr uint32_t kHidden = 256;
  constexpr uint32_t kVocab = 400;
  TokenChain chain(kHidden, 0.5, 3);
  std::vector<std::vector<float>> embeddings(kVocab, std::vector<float>(kHidden));
  std::vector<std::vector<float>> heads(kVocab, std::vector<float>(kHidden));
  for (uint32_t id = 0; id < kVocab; ++id)
    chain.Next(absl::MakeSpan(embeddings[id]), absl::MakeSpan(heads[id]));
  for (uint32_t id = 0; id + 1 < kVocab; ++id) {
    if (id == kSynthBosId || id == kSynthEosId) continue;
    const auto logit = [&](uint32_t to) {
      return std::inner_product(embeddings[id].begin(), embeddings[id].end(), heads[to].begin(), 0.0);
    };
    uint32_t best = 0;
    for (uint32_t to = 1; to < kVocab; ++to) best = logit(to) > logit(best) ? to : best;
    EXPECT_EQ(best, id == 255 ? 258 : id + 1);
  }
}

TEST(Synth, WrongOptionsAreRefusedByName) {
  TempDir dir;
  const auto message = [&](const SynthOptions& options) {
    return std::string(SynthesizePack(options, dir.File("pack"), nullptr, nullptr).status().message());
  };
  SynthOptions options = Tiny();
  options.shape = "gpt-9";
  EXPECT_THAT(message(options), HasSubstr("gpt-9"));
  options = Tiny();
  options.routing = "zipf:-1";
  EXPECT_THAT(message(options), HasSubstr("zipf:-1"));
  options = Tiny();
  options.reuse = 1.5;
  EXPECT_THAT(message(options), HasSubstr("reuse"));
  options = Tiny();
  options.similarity = std::nan("");
  EXPECT_THAT(message(options), HasSubstr("similarity"));
  options = Tiny();
  options.vocab = 100;
  EXPECT_THAT(message(options), HasSubstr("vocab is 100"));
  options = Tiny();
  options.rows.bits = "q5";
  EXPECT_THAT(message(options), HasSubstr("q5"));
  EXPECT_FALSE(std::filesystem::exists(dir.File("pack")));
}

TEST(NormalStream, HasMeanZeroAndVarianceOne) {
  std::vector<float> values(1 << 20);
  NormalStream(5).Fill(1, absl::MakeSpan(values));
  double mean = 0, square = 0;
  for (const float value : values) {
    mean += value;
    square += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(mean / values.size(), 0, 0.005);
  EXPECT_NEAR(square / values.size(), 1, 0.005);
}

}  // namespace
}  // namespace sluice
