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

// A whole folder, damaged in one file: an error, or a pack that verifies.
TEST(PackMutation, ModelFolders) {
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
TEST(PackMutation, FamilyConfigsBesideTheirCheckpoints) {
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
