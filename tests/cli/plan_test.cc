// Output of `sluice plan`: sizes without weights are those of packs, hits follow use, memory is the daemons',
// and the choice is the widest that fits. Against running daemons: tests/e2e/models/plan_test.py.
#include "cli/plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "cli/model_facts.h"
#include "common/base/file_io.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/temp_dir.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr char kSample[] = "deploy/sample";

uint64_t PackedBytes(const std::string& model, const std::string& bits) {
  RecipeOptions words;
  words.bits = bits;
  PackOptions options;
  options.recipe = *RecipeFromOptions(words);
  const TempDir dir;
  const auto estimate = EstimatePack(model, dir.path() + "/out", options);
  EXPECT_TRUE(estimate.ok()) << estimate.status();
  return estimate.ok() ? estimate->payload_bytes : 0;
}

TEST(PlanTest, SizesWithoutWeightsAreThoseOfThePack) {
  const std::vector<std::string> bits = {"bf16", "q8", "q4", "q3"};
  const auto facts = ReadModelFacts(std::string(kSample) + "/config.json", bits);
  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_EQ(facts->stored.size(), bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    EXPECT_EQ(facts->stored[i].weights.all, PackedBytes(kSample, bits[i])) << bits[i];
  }
}

TEST(PlanTest, SizesOfEveryFamilyAreThoseOfItsPack) {
  size_t families = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/tiny")) {
    if (!FileExists(entry.path().string() + "/config.json")) continue;
    const auto facts = ReadModelFacts(entry.path().string(), {"q8"});
    ASSERT_TRUE(facts.ok()) << entry.path() << ": " << facts.status();
    const double packed = static_cast<double>(PackedBytes(entry.path().string(), "q8"));
    // Routers of these models may be float32, which only the weights tell: on models of this size it shows,
    // with a page more for each layer at most.
    EXPECT_NEAR(static_cast<double>(facts->stored[0].weights.all) / packed, 1, 0.03) << entry.path();
    ++families;
  }
  EXPECT_GE(families, 20u);
}

TEST(PlanTest, AGgufFilesHeadIsEnough) {
  const std::string whole = "tests/data/gguf/granitemoe-q5_k_m/model.gguf";
  const auto facts = ReadModelFacts(whole, {"q8"});
  ASSERT_TRUE(facts.ok()) << facts.status();
  const TempDir dir;
  const std::string head = dir.path() + "/model.gguf";
  const std::string bytes = *ReadFile(whole, 1 << 30);
  // Half of the weights are gone.
  std::ofstream(head, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size() - 20000));
  EXPECT_FALSE(ReadModelFacts(head, {kAsInFile}).ok()) << "which rows can stay its tensors alone tell";
  const auto of_head = ReadModelFacts(head, {"q8"});
  ASSERT_TRUE(of_head.ok()) << of_head.status();
  EXPECT_EQ(of_head->stored[0].weights.all, facts->stored[0].weights.all);
  EXPECT_NEAR(
      static_cast<double>(facts->stored[0].weights.all) / static_cast<double>(PackedBytes(whole, "q8")), 1,
      0.02);
}

TEST(PlanTest, WhatIsNoModelIsNamed) {
  EXPECT_TRUE(absl::IsNotFound(ReadModelFacts("tests/data/absent", {"q8"}).status()));
  const absl::Status status = ReadModelFacts("tests/data/gguf", {"q8"}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "tests/data/gguf")) << status;
}

ModelConfig Model(uint32_t layers, uint32_t experts, uint32_t top_k) {
  ModelConfig config;
  config.layers.resize(layers);
  for (LayerConfig& layer : config.layers) layer.moe = {.experts = experts, .top_k = top_k};
  return config;
}

// Hits of a store of the `room` least recently used experts, over tokens that draw `top_k` of each layer's,
// each as often as its usage says.
double DrawnHits(const ModelConfig& config, const std::vector<uint64_t>& usage, uint32_t room) {
  constexpr int kTokens = 20000;
  std::mt19937_64 random(1);
  std::discrete_distribution<uint32_t> draw(usage.begin(), usage.end());
  std::vector<uint32_t> order(config.layers.size() * usage.size());
  std::iota(order.begin(), order.end(), 0u);
  int found = 0;
  int asked = 0;
  for (int token = 0; token < kTokens; ++token) {
    for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
      std::set<uint32_t> chosen;
      while (chosen.size() < config.layers[layer].moe.top_k) chosen.insert(draw(random));
      for (const uint32_t expert : chosen) {
        const auto place =
            std::find(order.begin(), order.end(), layer * static_cast<uint32_t>(usage.size()) + expert);
        found += place - order.begin() < room ? 1 : 0;
        ++asked;
        std::rotate(order.begin(), place, place + 1);
      }
    }
  }
  return static_cast<double>(found) / asked;
}

TEST(PlanTest, HitsAreThoseOfTheLeastRecentlyUsed) {
  EXPECT_NEAR(HitRate(Model(1, 32, 2), {}, 0.5), 0.5, 1e-6);
  for (const uint32_t room : {9, 12}) {
    EXPECT_NEAR(HitRate(Model(2, 8, 2), {}, room / 16.0),
                DrawnHits(Model(2, 8, 2), std::vector<uint64_t>(8, 1), room), 0.025);
  }
  EXPECT_NEAR(HitRate(Model(6, 32, 2), {}, 0.25),
              DrawnHits(Model(6, 32, 2), std::vector<uint64_t>(32, 1), 48), 0.015);
  EXPECT_EQ(HitRate(Model(4, 32, 2), {}, 1), 1);
  EXPECT_EQ(HitRate(Model(4, 32, 2), {}, 0), 0);
  EXPECT_EQ(HitRate(Model(3, 0, 0), {}, 0.5), 0) << "no experts, no requests";
}

TEST(PlanTest, WhatIsUsedMoreIsAtHandMoreOften) {
  // A fifth of the experts has four fifths of the use.
  std::vector<uint64_t> layer(100, 1);
  std::fill(layer.begin(), layer.begin() + 20, 16);
  const ModelConfig config = Model(1, 100, 1);
  const double hits = HitRate(config, {layer}, 0.2);
  EXPECT_NEAR(hits, DrawnHits(config, layer, 20), 0.01);
  EXPECT_GT(hits, 0.5);
}

PlanRow Row(const std::string& bits, uint64_t all, uint64_t memory) {
  PlanRow row{.bits = bits, .preset = "exact"};
  row.sizes.bits = bits;
  row.sizes.weights = {.all = all, .dense = kGiB, .largest_expert = kGiB / 100};
  const auto facts = ReadModelFacts(kSample, {"q8"});
  row.memory = *PlanMemory(facts->config, row.sizes, {.memory = memory, .threads = 2});
  return row;
}

TEST(PlanTest, TheWidestRowsThatMemoryHoldsAreChosen) {
  const auto choose = [](uint64_t memory) {
    return Choose(
        {Row("bf16", 64 * kGiB, memory), Row("q8", 34 * kGiB, memory), Row("q4", 18 * kGiB, memory)});
  };
  EXPECT_EQ(choose(512 * kGiB).bits, "q8") << "bf16 is twice the work for no better answer";
  EXPECT_EQ(choose(64 * kGiB).bits, "q8");
  const PlanChoice middle = choose(40 * kGiB);
  EXPECT_EQ(middle.bits, "q4");
  EXPECT_TRUE(absl::StrContains(middle.why, "q8 would take 34.0 GiB")) << middle.why;
  EXPECT_TRUE(absl::StrContains(middle.why, "28.0 GiB")) << middle.why;
  const PlanChoice streamed = choose(10 * kGiB);
  EXPECT_EQ(streamed.bits, "q4") << "what does not fit streams from disk";
  EXPECT_TRUE(absl::StrContains(streamed.why, "7.0 GiB of its 18.0 GiB")) << streamed.why;
  const PlanChoice none = choose(kGiB);
  EXPECT_TRUE(absl::StrContains(none.why, "does not run: weights need at least")) << none.why;
}

TEST(PlanTest, AGgufFilesOwnRowsAreChosenBeforeOthers) {
  const auto choose = [](uint64_t memory) {
    return Choose({Row("file", 20 * kGiB, memory), Row("file-q4", 18 * kGiB, memory),
                   Row("q8", 34 * kGiB, memory), Row("q4", 17 * kGiB, memory)});
  };
  EXPECT_EQ(choose(64 * kGiB).bits, "file") << "q8 is wider, and knows nothing that the file does not";
  EXPECT_EQ(choose(27 * kGiB).bits, "file-q4");
  EXPECT_EQ(choose(10 * kGiB).bits, "file-q4") << "fewer bytes a token come from the disk";
}

TEST(PlanTest, AGgufFilesOwnRowsAreCountedAndMeasured) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/gguf")) {
    const std::string model = entry.path().string() + "/model.gguf";
    if (!FileExists(model)) continue;
    const auto facts = ReadModelFacts(model, {kAsInFile});
    ASSERT_TRUE(facts.ok()) << facts.status();
    const TempDir dir;
    PackOptions options;
    options.recipe = *RecipeOfBits(kAsInFile);
    ASSERT_TRUE(PackModel(model, dir.path() + "/pack", options, {}, nullptr).ok());
    const auto of_pack = ReadModelFacts(dir.path() + "/pack", {});
    ASSERT_TRUE(of_pack.ok()) << of_pack.status();
    const StoredSizes& sizes = facts->stored[0];
    EXPECT_EQ(sizes.weights.all, of_pack->stored[0].weights.all);
    EXPECT_EQ(sizes.weights.dense, of_pack->stored[0].weights.dense);
    EXPECT_EQ(sizes.routed_read, of_pack->stored[0].routed_read);
    EXPECT_EQ(sizes.dense_read, of_pack->stored[0].dense_read);
    EXPECT_EQ(sizes.expert_format, of_pack->stored[0].expert_format);
    const auto rates = MeasureKernels(facts->config, sizes, 1);
    ASSERT_TRUE(rates.ok()) << entry.path() << ": " << rates.status();
    EXPECT_GT(rates->experts, 0);
    ++files;
  }
  EXPECT_GE(files, 2u);
}

TEST(PlanTest, ADisksRateIsMeasuredByReadingAFile) {
  const TempDir dir;
  const std::string file = dir.path() + "/file";
  std::ofstream(file, std::ios::binary) << std::string(8 << 20, 'x');
  for (const uint64_t read : {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    const auto rate = MeasureDisk(file, read);
    ASSERT_TRUE(rate.ok()) << rate.status();
    EXPECT_GT(*rate, 0);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(MeasureDisk("deploy/sample/config.json", 4096).status()));
  EXPECT_TRUE(absl::IsNotFound(MeasureDisk(dir.path() + "/absent", 4096).status()));
}

TEST(PlanTest, MemoryThatIsAskedForIsCountedWhole) {
  const auto facts = ReadModelFacts(kSample, {"q8"});
  ASSERT_TRUE(facts.ok());
  MemoryRequest request{.memory = kGiB, .threads = 2};
  request.engine.device = inferd::DeviceKind::kSim;
  request.engine.parallel = 2;
  const auto all = PlanMemory(facts->config, facts->stored[0], request);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->slab, facts->stored[0].experts());
  EXPECT_EQ(all->device_dense, facts->stored[0].weights.dense);
  request.device_budget = all->device_dense + all->kv + all->activations;
  EXPECT_TRUE(absl::StrContains(PlanMemory(facts->config, facts->stored[0], request)->refusal,
                                "leaves nothing for experts"));
  request.device_budget += 3 << 20;
  const auto plan = PlanMemory(facts->config, facts->stored[0], request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->slab, 3u << 20);
  EXPECT_EQ(plan->total(), plan->dram_budget + plan->kv + plan->activations + plan->slab +
                               plan->device_dense + plan->processes);
  EXPECT_TRUE(plan->refusal.empty()) << plan->refusal;
  request.dram_budget = kGiB;
  EXPECT_TRUE(absl::StrContains(PlanMemory(facts->config, facts->stored[0], request)->refusal, "KV cache"));
  request.engine.context = 1u << 29;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanMemory(facts->config, facts->stored[0], request).status()));
}

TEST(PlanTest, SpeedIsTheSlowerOfComputingAndReading) {
  ModelFacts facts;
  facts.config = Model(10, 64, 4);
  StoredSizes sizes;
  sizes.weights = {.all = 65'000'000'000, .dense = 1'000'000'000, .largest_expert = 100'000'000};
  sizes.dense_read = 1'000'000'000;
  sizes.routed_read = 4'000'000'000;
  MemoryPlan memory;
  memory.dram_budget = sizes.weights.all;
  SpeedInput input{.kernels = {.dense = 10e9, .experts = 20e9, .layer_seconds = 0.001}, .disk = 1e9};
  const SpeedPlan whole = PlanSpeed(facts, sizes, memory, input);
  EXPECT_EQ(whole.disk_bytes, 0u);
  EXPECT_NEAR(whole.tokens_per_second, 1 / (0.1 + 0.2 + 0.01), 1e-6);
  memory.dram_budget = 33'000'000'000;
  const SpeedPlan half = PlanSpeed(facts, sizes, memory, input);
  // 320 of 640 are held, one of which is on its way; ten layers find what is half a token old.
  EXPECT_NEAR(half.hit_rate, 0.485, 0.01);
  EXPECT_NEAR(half.disk_seconds, 2, 0.1);
  EXPECT_NEAR(1 / half.tokens_per_second, half.disk_seconds + 0.1 * half.compute_seconds, 1e-6);
  sizes.head_read = 500'000'000;
  EXPECT_NEAR(1 / PlanSpeed(facts, sizes, memory, input).tokens_per_second,
              0.05 + half.disk_seconds + 0.1 * (half.compute_seconds - 0.05), 1e-6)
      << "nothing is read while the head is computed";
  input.computed_share = 0.5;
  memory.dram_budget = sizes.weights.all;
  EXPECT_NEAR(PlanSpeed(facts, sizes, memory, input).tokens_per_second, 1 / 0.21, 1e-6);
}

TEST(PlanTest, LossesOfBitsAndPresetsAddUp) {
  EXPECT_EQ(QualityOf("bf16", "exact").perplexity_rise, 0);
  EXPECT_NEAR(QualityOf("q4", "intra").perplexity_rise, 1.006 * 1.006 - 1, 1e-9);
  EXPECT_FALSE(QualityOf("q5", "exact").is_known);
}

}  // namespace
}  // namespace sluice::cli
