// 10^5 seeded mutations of every stored or foreign format that common/model and pack read, and a
// hundred of whole model folders. Nothing crashes (under ASan and UBSan too), nothing allocates by a hostile
// number, and accepted input keeps the promises of pack_targets.cc.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/base/json_reader.h"
#include "pack/pack.h"
#include "pack/writer/pack_writer.h"
#include "pack/writer/staging.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/pack_targets.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/mutator.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

// Address sanitizers reserve terabytes: the limit applies to the plain build only.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Memory limit: a parser that allocates by a hostile number exceeds it and ends the program.
struct MemoryWall {
  MemoryWall() {
    const rlimit limit{uint64_t{4} << 30, uint64_t{4} << 30};
    setrlimit(RLIMIT_AS, &limit);
  }
} const memory_wall;
#endif

class PackMutation : public ::testing::Test {
 protected:
  static std::string MakePack(const TempDir& dir, const TinyModelSpec& spec, const PackOptions& options) {
    EXPECT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
    EXPECT_TRUE(PackModel(dir.File("model"), dir.File("pack"), options, nullptr, nullptr).ok());
    return dir.File("pack");
  }

  static std::vector<std::string> TableSeeds() {
    std::vector<std::string> seeds;
    for (const ExpertLayout layout : {ExpertLayout::kUpGateDown, ExpertLayout::kGateUpdown}) {
      TempDir dir;
      PackOptions options;
      options.recipe.layout = layout;
      options.recipe.parts[0].encoding = Encoding::kQ8;
      options.recipe.parts[1] = {Encoding::kQ2, 16, 8};
      const std::string pack = MakePack(dir, {.layers = 1, .experts = 2, .top_k = 1, .width = 8}, options);
      seeds.push_back(
          JoinTables(ManifestBody(ReadAll(pack + "/manifest.json")), ReadAll(pack + "/extents.bin")));
    }
    return seeds;
  }
};

TEST_F(PackMutation, SafetensorsHeaders) {
  const TinyTensors tensors = {{"a", {{2, 3}, {1, 2, 3, 4, 5, 6}}}, {"b", {{0}, {}}}, {"c", {{1}, {1}}}};
  const std::string real = ReadAll("tests/data/tiny/mixtral/golden.safetensors");
  Mutate(FuzzSafetensors,
         {SafetensorsBytes(tensors, ElementType::kBf16), SafetensorsBytes(tensors, ElementType::kF32)},
         MutationsOr(10000), 1);
  ASSERT_TRUE(Feed(FuzzSafetensors, real));
}

TEST_F(PackMutation, Configs) {
  Mutate(FuzzHfConfig,
         {TinyConfigJson({}),
          TinyConfigJson({.head_dim = 8, .sliding_window = 4, .eos = {2, 3}, .new_config = true})},
         25000, 2);
  std::vector<std::string> families;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/tiny")) {
    families.push_back(ReadAll(entry.path().string() + "/config.json"));
  }
  std::sort(families.begin(), families.end());
  Mutate(FuzzHfConfig, families, MutationsOr(20000), 11);
  Mutate(FuzzGeneration,
         {R"({"eos_token_id":[5,7],"temperature":0.7,"top_k":20,"top_p":0.8,"do_sample":true})"}, 5000, 3);
}

TEST_F(PackMutation, ShardIndices) {
  Mutate(
      FuzzShardIndex,
      {R"({"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"m.safetensors"}})"},
      10000, 4);
}

TEST_F(PackMutation, RecipeFiles) {
  Mutate(
      FuzzRecipe,
      {"bits = \"q4\"\ngroup = 32\ngate = { bits = \"q2\", meta_bits = 8 }\n",
       "name = \"x\"\nlayout = \"gate|up+down\"\nup = \"q3\"\ngate = \"q4\"\ndown = \"f16\"\ndense = \"q8\"\n"
       "[[rule]]\nlayers = [0, 3]\nusage = [0.0, 0.5]\nbits = \"q8\"\n"},
      5000, 9);
}

TEST_F(PackMutation, ExtentTablesAndManifestsAndBothTogether) {
  const std::vector<std::string> seeds = TableSeeds();
  std::vector<std::string> bodies;
  std::vector<std::string> tables;
  for (const std::string& seed : seeds) {
    bodies.push_back(seed.substr(0, seed.find('\0')));
    tables.push_back(seed.substr(seed.find('\0') + 1));
  }
  Mutate(FuzzExtentTable, tables, 15000, 5);
  Mutate(FuzzManifestBody, bodies, 10000, 6);
  Mutate(FuzzPackTables, seeds, 15000, 7);
}

TEST_F(PackMutation, SealedManifests) {
  TempDir dir;
  const std::string pack = MakePack(dir, {.layers = 1}, {});
  Mutate(FuzzManifest, {ReadAll(pack + "/manifest.json")}, 2000, 8);
}

TEST_F(PackMutation, Journals) {
  TempDir dir;
  {
    auto journal = Journal::Open(dir.path(), {3, 4});
    ASSERT_TRUE(journal.ok());
    for (uint32_t unit = 0; unit < 3; ++unit) {
      ASSERT_TRUE((*journal)->Append({unit, {1, 2, unit}, {{unit, 6}}}).ok());
    }
  }
  Mutate(FuzzJournal, {ReadAll(dir.File("journal"))}, 10000, 9);
}

// A whole folder, damaged in one file: an error, or a pack that verifies.
TEST_F(PackMutation, ModelFolders) {
  TempDir dir;
  const TinyModelSpec spec{.vocab = 16, .layers = 1, .experts = 2, .top_k = 1, .width = 8, .shards = 2};
  ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
  const std::vector<std::string> names = {"config.json", "generation_config.json",
                                          "model.safetensors.index.json", "model-00001-of-00002.safetensors"};
  Mutator mutator(10);
  int refused = 0;
  for (int i = 0; i < 120; ++i) {
    const std::string path = dir.File("model") + "/" + names[i % names.size()];
    const std::string before = ReadAll(path);
    WriteAll(path, mutator.Mutate(before));
    const auto summary =
        PackModel(dir.File("model"), dir.File("pack"), {.force = true, .threads = 1}, nullptr, nullptr);
    if (summary.ok()) {
      EXPECT_TRUE(VerifyPack(dir.File("pack"), nullptr, nullptr).ok());
    } else {
      ++refused;
    }
    WriteAll(path, before);
  }
  EXPECT_GT(refused, 30);
}

// Every number in every family's config replaced by 1, 3 or 65535: an input error, or a plan that fits the
// checkpoint; never an error from a disagreement between reader and mapper.
TEST_F(PackMutation, FamilyConfigsBesideTheirCheckpoints) {
  int accepted = 0;
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/tiny")) {
    TempDir dir;
    std::filesystem::copy(entry.path(), dir.File("model"));
    // Strict JSON has an object in the place of a bare Infinity.
    const nlohmann::json good = nlohmann::json::parse(absl::StrReplaceAll(
        ReadAll(entry.path().string() + "/config.json"), {{" Infinity", R"({"__float__": "Infinity"})"}}));
    for (const auto& [key, value] : good.items()) {
      if (!value.is_number() && !value.is_null()) continue;
      nlohmann::json config = good;
      config[key] = std::array{1u, 3u, 65535u}[(accepted + refused) % 3];
      WriteAll(dir.File("model") + "/config.json", config.dump());
      const absl::Status status = EstimatePack(dir.File("model"), dir.File("pack"), {}).status();
      EXPECT_NE(status.code(), absl::StatusCode::kInternal) << entry.path() << " " << key << ": " << status;
      ++(status.ok() ? accepted : refused);
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sluice
