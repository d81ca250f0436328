// MTP layers that a folder keeps, and those that are left out.
#include "common/model/mtp_layers.h"

#include "common/model/model_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gguf_of_folder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_file.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class MtpLayersTest : public testing::Test {
 protected:
  void Make(const std::string& family) {
    const absl::Status added = AddEchoingMtpLayer("tests/data/tiny/" + family, dir_.File("model"));
    ASSERT_TRUE(added.ok()) << added;
  }
  // Changes the folder's tensors.
  template <typename Change>
  void Edit(const Change& change) {
    TensorFile file(dir_.File("model") + "/model.safetensors");
    change(&file);
    ASSERT_TRUE(file.Write(dir_.File("model") + "/model.safetensors").ok());
  }
  ModelSource Open() {
    absl::StatusOr<ModelSource> source = OpenModelSource(dir_.File("model"));
    EXPECT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE(MapTensors(source->hf.config, *source->checkpoint).ok());
    return *std::move(source);
  }
  TempDir dir_;
};

TEST_F(MtpLayersTest, LayerBehindTheLastIsKept) {
  Make("deepseek_v3");
  const ModelConfig config = Open().hf.config;
  ASSERT_EQ(config.mtp_layers, 1u);
  EXPECT_EQ(config.layers.back(), config.layers[ModelLayers(config) - 1]);
  EXPECT_EQ(WithoutMtpLayers(config).layers.size() + 1, config.layers.size());
}

TEST_F(MtpLayersTest, LayerOfItsOwnNamesHasFullAttention) {
  Make("qwen3_next");
  const ModelConfig config = Open().hf.config;
  ASSERT_EQ(config.mtp_layers, 1u);
  EXPECT_EQ(config.layers.back().attention.kind, AttentionKind::kGrouped);
  EXPECT_GT(config.layers.back().moe.experts, 0u);
}

TEST_F(MtpLayersTest, CopiesOfEmbeddingAndHeadAreIgnored) {
  Make("deepseek_v3");
  const uint32_t layer = ModelLayers(Open().hf.config);
  Edit([&](TensorFile* file) {
    const auto shape = file->header()["lm_head.weight"]["shape"].get<std::vector<uint64_t>>();
    const std::string base = "model.layers." + std::to_string(layer) + ".";
    file->Add(base + "embed_tokens.weight", "BF16", shape, file->Bytes("model.embed_tokens.weight"));
    file->Add(base + "shared_head.head.weight", "BF16", shape, file->Bytes("lm_head.weight"));
  });
  EXPECT_EQ(Open().hf.config.mtp_layers, 1u);
  EXPECT_EQ(Open().no_mtp, "");
}

TEST_F(MtpLayersTest, HeadOfItsOwnLeavesTheLayerOut) {
  Make("deepseek_v3");
  const uint32_t layer = ModelLayers(Open().hf.config);
  Edit([&](TensorFile* file) {
    const auto shape = file->header()["lm_head.weight"]["shape"].get<std::vector<uint64_t>>();
    file->Add("model.layers." + std::to_string(layer) + ".shared_head.head.weight", "BF16", shape,
              file->Bytes("model.embed_tokens.weight"));
  });
  const ModelSource source = Open();
  EXPECT_EQ(source.hf.config.mtp_layers, 0u);
  EXPECT_THAT(source.no_mtp, HasSubstr("head of its own"));
}

TEST_F(MtpLayersTest, MissingTensorLeavesTheLayerOut) {
  Make("deepseek_v3");
  const uint32_t layer = ModelLayers(Open().hf.config);
  Edit([&](TensorFile* file) {
    file->Add("model.layers." + std::to_string(layer) + ".enorm.weight", "BF16", {1}, "ab");
  });
  const ModelSource source = Open();
  EXPECT_EQ(source.hf.config.mtp_layers, 0u);
  EXPECT_THAT(source.no_mtp, HasSubstr("enorm.weight"));
}

TEST_F(MtpLayersTest, FoldersWithoutSuchLayersSayNothing) {
  const absl::StatusOr<ModelSource> source = OpenModelSource("tests/data/tiny/deepseek_v3");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->hf.config.mtp_layers, 0u);
  EXPECT_EQ(source->no_mtp, "");
}

// Files of converters that keep a part of the layer only.
TEST_F(MtpLayersTest, GgufFilesWithAPartLeaveTheLayerOut) {
  Make("deepseek_v3");
  const uint32_t layer = ModelLayers(Open().hf.config);
  Edit([&](TensorFile* file) {
    file->Add("model.layers." + std::to_string(layer) + ".hnorm.weight", "BF16", {1}, "ab");
  });
  const std::string path = dir_.File("m.gguf");
  ASSERT_TRUE(WriteGgufOfFolder(dir_.File("model"), path).ok());
  const absl::StatusOr<ModelSource> source = OpenModelSource(path);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->hf.config.mtp_layers, 0u);
  EXPECT_THAT(source->no_mtp, HasSubstr("hnorm.weight"));
  EXPECT_TRUE(MapTensors(source->hf.config, *source->checkpoint).ok());
}

}  // namespace
}  // namespace sluice
