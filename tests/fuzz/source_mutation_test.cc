// 10^5 seeded mutations of the heads of GGUF files, and hundreds of whole published models: quantized folders
// and GGUF files with damaged heads. Nothing crashes (under ASan and UBSan too), nothing allocates by a
// hostile number (pack_mutation_test.cc sets the limit), and accepted models can be packed and verified.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "pack/in_place/in_place_checksums.h"
#include "pack/in_place/in_place_index.h"
#include "pack/writer/pack_writer.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/pack_targets.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr const char* kGgufFiles[] = {"tests/data/gguf/gptoss-mxfp4/model.gguf",
                                      "tests/data/gguf/granitemoe-q5_k_m/model.gguf"};
constexpr const char* kFolders[] = {"tests/data/formats/awq_qwen3_moe", "tests/data/formats/fp8_minimax_m2"};

// Bytes of keys and tensor infos, rounded up; no multiple of 3: the target makes such files larger.
constexpr size_t kHeads[] = {99'602, 13'400};

// The small file's head is mutated by target_mutation_test.cc.
TEST(SourceMutation, LargeGgufHeads) {
  Mutate(FuzzGgufHeader, {ReadAll(kGgufFiles[0]).substr(0, kHeads[0])}, MutationsOr(2'000), 21);
}

// Mutates bytes of the head; the rest of the file stays.
std::string MutateHead(const std::string& file, size_t head, Mutator* mutator) {
  std::string changed = mutator->Mutate(file.substr(0, head));
  changed.resize(head);
  return changed + file.substr(head);
}

// Packs the damaged model: an error (returns true), or a pack that verifies.
bool IsRefused(const std::string& source, const TempDir& dir) {
  const auto summary = PackModel(source, dir.File("pack"), {.force = true, .threads = 1}, nullptr, nullptr);
  EXPECT_NE(summary.status().code(), absl::StatusCode::kInternal) << summary.status();
  if (!summary.ok()) return true;
  EXPECT_TRUE(VerifyPack(dir.File("pack"), nullptr, nullptr).ok());
  return false;
}

TEST(SourceMutation, GgufFilesWithDamagedHeads) {
  TempDir dir;
  Mutator mutator(23);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string good = ReadAll(kGgufFiles[i % 2]);
    std::ofstream(dir.File("m.gguf"), std::ios::binary)
        << MutateHead(good, i % 3 == 0 ? 2048 : 16384, &mutator);
    refused += IsRefused(dir.File("m.gguf"), dir) ? 1 : 0;
  }
  EXPECT_GT(refused, 100);
}

// Serves the damaged model in place: an error, or an index whose whole payload can be read, or in which
// values are refused.
bool IsRefusedInPlace(const std::string& source, const std::string& index) {
  std::filesystem::remove_all(index);
  const absl::Status made = WriteInPlaceIndex(source, index);
  EXPECT_NE(made.code(), absl::StatusCode::kInternal) << made;
  if (!made.ok()) return true;
  const absl::Status read = VerifyInPlace(index, nullptr, nullptr);
  EXPECT_TRUE(read.ok() || absl::IsInvalidArgument(read)) << read;
  return false;
}

TEST(SourceMutation, GgufFilesInPlaceWithDamagedHeads) {
  TempDir dir;
  Mutator mutator(25);
  int refused = 0;
  for (int i = 0; i < MutationsOr(300); ++i) {
    const std::string good = ReadAll(kGgufFiles[i % 2]);
    std::ofstream(dir.File("m.gguf"), std::ios::binary)
        << MutateHead(good, i % 3 == 0 ? 2048 : 16384, &mutator);
    refused += IsRefusedInPlace(dir.File("m.gguf"), dir.File("index")) ? 1 : 0;
  }
  EXPECT_GT(refused, 0);
}

TEST(SourceMutation, GgufFilesInPlaceWithDamagedBodies) {
  TempDir dir;
  std::mt19937_64 random(26);
  for (int i = 0; i < 100; ++i) {
    std::string file = ReadAll(kGgufFiles[i % 2]);
    const size_t head = kHeads[i % 2];
    for (int n = 0; n < 20; ++n) file[head + random() % (file.size() - head)] = static_cast<char>(random());
    if (i % 5 == 0) file.resize(head + random() % (file.size() - head));
    std::ofstream(dir.File("m.gguf"), std::ios::binary) << file;
    // A file that is cut short is refused by its head.
    EXPECT_TRUE(IsRefusedInPlace(dir.File("m.gguf"), dir.File("index")) == (i % 5 == 0));
  }
}

TEST(SourceMutation, QuantizedFoldersWithDamagedHeads) {
  TempDir dir;
  Mutator mutator(24);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string from = kFolders[i % 2];
    const std::string to = dir.File("model");
    std::filesystem::create_directories(to);
    std::string config = ReadAll(from + "/config.json");
    std::string tensors = ReadAll(from + "/model.safetensors");
    if (i % 4 < 2) {
      config = mutator.Mutate(config);
    } else {
      uint64_t head = 0;
      std::memcpy(&head, tensors.data(), sizeof(head));
      tensors = MutateHead(tensors, 8 + head, &mutator);
    }
    std::ofstream(to + "/config.json", std::ios::binary) << config;
    std::ofstream(to + "/model.safetensors", std::ios::binary) << tensors;
    refused += IsRefused(to, dir) ? 1 : 0;
  }
  EXPECT_GT(refused, 50);
}

}  // namespace
}  // namespace sluice
