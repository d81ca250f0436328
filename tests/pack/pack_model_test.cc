// Packing whole models: the weights come out unchanged for any form of the source.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "common/base/file_io.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/model/dense_names.h"
#include "common/model/hf_config.h"
#include "pack/pack.h"
#include "pack/row_codec.h"
#include "pack/row_layout.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr char kGoldenModel[] = "tests/data/tiny/mixtral";
constexpr char kSampleModel[] = "deploy/sample";

std::vector<float> Transposed(const TinyTensor& tensor) {
  const uint64_t rows = tensor.shape[0];
  const uint64_t cols = tensor.shape[1];
  std::vector<float> out(rows * cols);
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < cols; ++c) out[c * rows + r] = tensor.values[r * cols + c];
  }
  return out;
}

PackSummary MustPack(const std::string& model, const std::string& out, const PackOptions& options = {}) {
  auto summary = PackModel(model, out, options, nullptr, nullptr);
  EXPECT_TRUE(summary.ok()) << summary.status();
  return summary.ok() ? *summary : PackSummary();
}

void ExpectHolds(const std::string& pack_dir, const TinyModelSpec& spec) {
  TinyModelSpec plain = spec;
  plain.stacked_experts = false;
  const TinyTensors tensors = MakeTinyTensors(plain);
  PackValues values = PackValues::Of(pack_dir);
  EXPECT_EQ(values.Dense("embed"), tensors.at("model.embed_tokens.weight").values);
  EXPECT_EQ(values.Dense("final_norm"), tensors.at("model.norm.weight").values);
  if (!spec.tied) {
    EXPECT_EQ(values.Dense("head"), tensors.at("lm_head.weight").values);
  }
  for (uint32_t l = 0; l < spec.layers; ++l) {
    const std::string layer = absl::StrCat("model.layers.", l, ".");
    const auto dense = [&](std::string_view name) { return values.Dense(dense::LayerName(l, name)); };
    EXPECT_EQ(dense(dense::kQ), tensors.at(layer + "self_attn.q_proj.weight").values);
    EXPECT_EQ(dense(dense::kK), tensors.at(layer + "self_attn.k_proj.weight").values);
    EXPECT_EQ(dense(dense::kV), tensors.at(layer + "self_attn.v_proj.weight").values);
    EXPECT_EQ(dense(dense::kO), tensors.at(layer + "self_attn.o_proj.weight").values);
    EXPECT_EQ(dense(dense::kAttnNorm), tensors.at(layer + "input_layernorm.weight").values);
    EXPECT_EQ(dense(dense::kFfnNorm), tensors.at(layer + "post_attention_layernorm.weight").values);
    EXPECT_EQ(dense(dense::kRouter), tensors.at(layer + "block_sparse_moe.gate.weight").values);
    for (uint32_t e = 0; e < spec.experts; ++e) {
      const std::string expert = absl::StrCat(layer, "block_sparse_moe.experts.", e, ".");
      EXPECT_EQ(values.Expert(l, e, Part::kGate), tensors.at(expert + "w1.weight").values);
      EXPECT_EQ(values.Expert(l, e, Part::kUp), tensors.at(expert + "w3.weight").values);
      const TinyTensor& down = tensors.at(expert + "w2.weight");
      EXPECT_EQ(values.Expert(l, e, Part::kDown),
                values.pack().by_outputs() ? down.values : Transposed(down));
    }
  }
}

TEST(PackModel, Bf16PackHoldsBf16WeightsExactly) {
  TempDir dir;
  const TinyModelSpec spec;
  ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
  const PackSummary summary = MustPack(dir.File("model"), dir.File("pack"));
  EXPECT_EQ(summary.experts, spec.layers * spec.experts);
  ExpectHolds(dir.File("pack"), spec);
  EXPECT_TRUE(VerifyPack(dir.File("pack"), nullptr, nullptr).ok());
}

TEST(PackModel, HoldsModelsOfEveryShape) {
  std::vector<TinyModelSpec> specs;
  specs.push_back({.hidden = 30, .heads = 5, .kv_heads = 1, .experts = 5, .top_k = 3, .width = 17});
  specs.push_back(
      {.hidden = 48, .heads = 6, .kv_heads = 3, .head_dim = 10, .sliding_window = 7, .tied = true});
  specs.push_back(
      {.vocab = 33, .layers = 1, .heads = 1, .kv_heads = 1, .experts = 1, .top_k = 1, .width = 1});
  specs.push_back({.eos = {2, 5, 7}, .new_config = true, .stacked_experts = true});
  specs.push_back({.hidden = 320, .heads = 2, .kv_heads = 2, .width = 130});
  for (const TinyModelSpec& spec : specs) {
    TempDir dir;
    ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
    MustPack(dir.File("model"), dir.File("pack"));
    ExpectHolds(dir.File("pack"), spec);
  }
}

TEST(PackModel, EveryLayoutHoldsTheSameWeights) {
  const TinyModelSpec spec{.hidden = 272, .width = 40};
  for (int layout = 0; layout < kExpertLayoutCount; ++layout) {
    TempDir dir;
    ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
    PackOptions options;
    options.recipe.layout = static_cast<ExpertLayout>(layout);
    MustPack(dir.File("model"), dir.File("pack"), options);
    ExpectHolds(dir.File("pack"), spec);
    const PackValues values = PackValues::Of(dir.File("pack"));
    const bool interleaved = options.recipe.layout == ExpertLayout::kUpGatedown ||
                             options.recipe.layout == ExpertLayout::kGateUpdown;
    EXPECT_EQ(values.pack().expert_extents(1, 3).count, interleaved ? 2u : 3u);
    EXPECT_EQ((values.pack().manifest().incompatible_features & kFeatureInterleaved) != 0, interleaved);
  }
}

TEST(PackModel, ConvertsBetweenFloatTypesWithCorrectRounding) {
  for (const ElementType type : {ElementType::kF16, ElementType::kF32}) {
    TempDir dir;
    const TinyModelSpec spec{.type = type};
    ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
    MustPack(dir.File("model"), dir.File("pack"));
    std::vector<float> expected =
        MakeTinyTensors(spec).at("model.layers.1.block_sparse_moe.experts.2.w3.weight").values;
    for (float& value : expected) value = Bf16ToFloat(FloatToBf16(value));
    PackValues values = PackValues::Of(dir.File("pack"));
    EXPECT_EQ(values.Expert(1, 2, Part::kUp), expected);
    EXPECT_EQ(values.Dense("layers.1.router"),
              MakeTinyTensors(spec).at("model.layers.1.block_sparse_moe.gate.weight").values);
  }
}

TEST(PackModel, Q8RowsStayWithinHalfAStepOfTheWeights) {
  TempDir dir;
  const TinyModelSpec spec{.hidden = 200, .heads = 4, .width = 40};
  ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
  PackOptions options;
  options.recipe = UniformRecipe({Encoding::kQ8});
  MustPack(dir.File("model"), dir.File("pack"), options);
  const TinyTensors tensors = MakeTinyTensors(spec);
  PackValues values = PackValues::Of(dir.File("pack"));
  EXPECT_EQ(values.pack().FindDense("embed")->encoding, MakeDescriptor(Encoding::kQ8, 64));
  EXPECT_EQ(values.pack().FindDense("layers.0.router")->encoding, MakeDescriptor(Encoding::kBf16));
  const std::vector<float>& expected =
      tensors.at("model.layers.0.block_sparse_moe.experts.3.w1.weight").values;
  const std::vector<float> actual = values.Expert(0, 3, Part::kGate);
  for (size_t row = 0; row < 40; ++row) {
    for (size_t begin = 0; begin < 200; begin += 64) {
      const size_t end = std::min<size_t>(begin + 64, 200);
      float low = 0, high = 0;
      for (size_t c = begin; c < end; ++c) {
        low = std::min(low, expected[row * 200 + c]);
        high = std::max(high, expected[row * 200 + c]);
      }
      // Half a step, plus the effect of rounding scale (2^-11) and zero (1/16 step) to f16 at the range's
      // ends.
      const float bound = (high - low) / 255 * (0.5f + 255 * 0x1p-11f + 0.0625f);
      for (size_t c = begin; c < end; ++c) {
        ASSERT_NEAR(actual[row * 200 + c], expected[row * 200 + c], bound) << row << " " << c;
      }
    }
  }
}

TEST(PackModel, ShardingAndConfigGenerationDoNotChangeThePack) {
  std::vector<std::string> bytes;
  for (const bool stacked : {false, true}) {
    for (const uint32_t shards : {1u, 3u}) {
      TempDir dir;
      const TinyModelSpec spec{.shards = shards, .new_config = stacked, .stacked_experts = stacked};
      ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
      PackOptions options;
      options.threads = shards;
      MustPack(dir.File("model"), dir.File("pack"), options);
      bytes.push_back(FolderBytes(dir.File("pack")));
    }
  }
  for (const std::string& other : bytes) EXPECT_TRUE(other == bytes[0]);
}

TEST(PackModel, OptionsChangeTheModelId) {
  TempDir dir;
  ASSERT_TRUE(WriteTinyModel({}, dir.File("model")).ok());
  PackOptions q8;
  q8.recipe = UniformRecipe({Encoding::kQ8});
  PackOptions mixed = q8;
  mixed.recipe.dense = RowFormat{Encoding::kBf16};
  const std::string a = MustPack(dir.File("model"), dir.File("a")).model_id;
  const std::string b = MustPack(dir.File("model"), dir.File("b"), q8).model_id;
  const std::string c = MustPack(dir.File("model"), dir.File("c"), mixed).model_id;
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
  EXPECT_EQ(PackValues::Of(dir.File("b")).pack().manifest().provenance.source_digest,
            PackValues::Of(dir.File("c")).pack().manifest().provenance.source_digest);
}

TEST(PackModel, GoldenCheckpointPacksAndVerifies) {
  TempDir dir;
  const PackSummary summary = MustPack(kGoldenModel, dir.File("pack"));
  EXPECT_EQ(summary.experts, 16u);
  EXPECT_TRUE(VerifyPack(dir.File("pack"), nullptr, nullptr).ok());
  const PackValues values = PackValues::Of(dir.File("pack"));
  EXPECT_EQ(values.pack().config().layers[0].attention.rope.theta, 1e6);
  EXPECT_EQ(values.pack().config().eos_ids, std::vector<int32_t>{2});
}

TEST(PackModel, SampleModelCarriesItsTokenizer) {
  TempDir dir;
  MustPack(kSampleModel, dir.File("pack"));
  const auto pack = Pack::Open(dir.File("pack"));
  ASSERT_TRUE(pack.ok()) << pack.status();
  const auto files = (*pack)->ReadTokenizerFiles();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->at("tokenizer.model"), ReadAll(std::string(kSampleModel) + "/tokenizer.model"));
  EXPECT_EQ(files->size(), 4u);
}

TEST(PackModel, DenseExtentsEndAtTheirLimitOrGroup) {
  TempDir dir;
  const TinyModelSpec spec;
  ASSERT_TRUE(WriteTinyModel(spec, dir.File("model")).ok());
  PackOptions options;
  options.dense_extent_bytes = 4096;
  MustPack(dir.File("model"), dir.File("pack"), options);
  ExpectHolds(dir.File("pack"), spec);
  const PackValues values = PackValues::Of(dir.File("pack"));
  EXPECT_GT(values.pack().dense_extent_count(), spec.layers + 2);
  EXPECT_TRUE(VerifyPack(dir.File("pack"), nullptr, nullptr).ok());
}

TEST(PackModel, ProgressReachesTheTotalAndEveryByteCountsOnce) {
  TempDir dir;
  ASSERT_TRUE(WriteTinyModel({}, dir.File("model")).ok());
  PackingProgress last;
  uint64_t previous = 0;
  const auto progress = [&](const PackingProgress& p) {
    EXPECT_GE(p.bytes_done, previous);
    previous = p.bytes_done;
    last = p;
  };
  ASSERT_TRUE(PackModel(dir.File("model"), dir.File("pack"), {}, progress, nullptr).ok());
  EXPECT_EQ(last.bytes_done, last.bytes_total);
  const auto pack = Pack::Open(dir.File("pack"));
  EXPECT_EQ(last.bytes_total, (*pack)->dense_bytes() + (*pack)->total_expert_bytes());
}

TEST(PackModel, NaNAndInfAreRefusedNamingTensorAndIndex) {
  for (const bool inf : {false, true}) {
    TempDir dir;
    const TinyModelSpec spec;
    TinyTensors tensors = MakeTinyTensors(spec);
    const std::string name = inf ? "model.layers.1.block_sparse_moe.experts.2.w2.weight"
                                 : "model.layers.0.self_attn.k_proj.weight";
    TinyTensor& tensor = tensors.at(name);
    tensor.values[tensor.shape[1] * 5 + 9] = inf ? -INFINITY : NAN;
    ASSERT_TRUE(WriteModelFiles(spec, tensors, TinyConfigJson(spec), dir.File("model")).ok());
    const auto result = PackModel(dir.File("model"), dir.File("pack"), {}, nullptr, nullptr);
    ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(name));
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(inf ? "Inf at [5, 9]" : "NaN at [5, 9]"));
    EXPECT_FALSE(std::filesystem::exists(dir.File("pack")));
  }
}

TEST(PackModel, F16OverflowIsRefusedNamingTheValue) {
  TempDir dir;
  const TinyModelSpec spec;
  TinyTensors tensors = MakeTinyTensors(spec);
  TinyTensor& tensor = tensors.at("model.layers.0.block_sparse_moe.experts.1.w3.weight");
  tensor.values[tensor.shape[1] * 3 + 2] = 1e6f;
  ASSERT_TRUE(WriteModelFiles(spec, tensors, TinyConfigJson(spec), dir.File("model")).ok());
  PackOptions options;
  options.recipe = UniformRecipe({Encoding::kF16});
  const auto result = PackModel(dir.File("model"), dir.File("pack"), options, nullptr, nullptr);
  ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("layers.0.experts.1.up row 3 column 2"));
}

}  // namespace
}  // namespace sluice
