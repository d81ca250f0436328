// Checkpoints with missing, extra or misshapen tensors are refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file_io.h"
#include "common/model/hf_config.h"
#include "common/model/model_source.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kExpert[] = "model.layers.1.block_sparse_moe.experts.3.w2.weight";

absl::Status Map(const TinyModelSpec& spec, const TinyTensors& tensors) {
  TempDir dir;
  EXPECT_TRUE(WriteModelFiles(spec, tensors, TinyConfigJson(spec), dir.path()).ok());
  const auto config = ReadHfConfig(dir.path());
  EXPECT_TRUE(config.ok()) << config.status();
  const auto folder = OpenCheckpointFolder(dir.path(), {});
  EXPECT_TRUE(folder.ok()) << folder.status();
  return MapTensors(config->config, **folder).status();
}

TEST(MapTensors, FindsEveryTensorOfBothGenerations) {
  for (const bool stacked : {false, true}) {
    const TinyModelSpec spec{.stacked_experts = stacked};
    EXPECT_TRUE(Map(spec, MakeTinyTensors(spec)).ok());
  }
}

TEST(MapTensors, MissingTensorsAreNamed) {
  const TinyModelSpec spec;
  TinyTensors tensors = MakeTinyTensors(spec);
  tensors.erase(kExpert);
  tensors.erase("model.norm.weight");
  const absl::Status status = Map(spec, tensors);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(kExpert));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.norm.weight"));
}

TEST(MapTensors, ManyMissingTensorsAreNotAllListed) {
  const TinyModelSpec spec{.layers = 8};
  const absl::Status status = Map(spec, {{"lonely", {{1}, {1}}}});
  EXPECT_THAT(std::string(status.message()), HasSubstr("and more"));
  EXPECT_LT(status.message().size(), 1000u);
}

TEST(MapTensors, UnknownTensorsAreNamedAndBuffersIgnored) {
  const TinyModelSpec spec;
  TinyTensors tensors = MakeTinyTensors(spec);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{2}, {1, 2}};
  EXPECT_TRUE(Map(spec, tensors).ok());
  tensors["model.layers.0.self_attn.q_proj.bias"] = {{2}, {1, 2}};
  const absl::Status status = Map(spec, tensors);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("q_proj.bias"));
}

TEST(MapTensors, WrongShapesAreNamedWithBothShapes) {
  const TinyModelSpec spec;
  TinyTensors tensors = MakeTinyTensors(spec);
  tensors[kExpert].shape = {48, 32};
  const absl::Status status = Map(spec, tensors);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(std::string(kExpert) + " has shape [48, 32], config.json needs [32, 48]"));
}

TEST(MapTensors, TiedModelsNeedNoHeadAndIgnoreOne) {
  TinyModelSpec spec;
  TinyTensors tensors = MakeTinyTensors(spec);
  spec.tied = true;
  EXPECT_TRUE(Map(spec, tensors).ok());
  tensors.erase("lm_head.weight");
  EXPECT_TRUE(Map(spec, tensors).ok());
  spec.tied = false;
  EXPECT_THAT(std::string(Map(spec, tensors).message()), HasSubstr("lm_head.weight"));
}

TEST(MapTensors, ElementTypesThatAreNoWeightsAreRefused) {
  TempDir dir;
  const TinyModelSpec spec;
  std::string bytes = SafetensorsBytes(MakeTinyTensors(spec), ElementType::kBf16);
  for (size_t at = bytes.find("\"BF16\""); at != std::string::npos; at = bytes.find("\"BF16\"", at + 1)) {
    bytes.replace(at, 6, "\"I16\" ");
  }
  ASSERT_TRUE(WriteFileDurably(dir.File("model.safetensors"), bytes).ok());
  ASSERT_TRUE(WriteFileDurably(dir.File("config.json"), TinyConfigJson(spec)).ok());
  const auto folder = OpenCheckpointFolder(dir.path(), {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const absl::Status status = MapTensors(ReadHfConfig(dir.path())->config, **folder).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(I16)"));
}

}  // namespace
}  // namespace sluice
