// Checkpoints that differ from the families' usual ones, in names, layout or encoding, are packed alike or
// refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/base/file_io.h"
#include "common/base/half.h"
#include "common/base/json_reader.h"
#include "common/model/safetensors.h"
#include "pack/writer/pack_job.h"
#include "pack/writer/pack_writer.h"
#include "tests/pack/tiny_checkpoints.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A tensor to be written into a safetensors file.
struct RawTensor {
  std::string type;
  std::vector<uint64_t> shape;
  std::string bytes;
};

std::string FileOf(const std::map<std::string, RawTensor>& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + text + data;
}

RawTensor Bf16(const Tensor& tensor) {
  RawTensor raw{"BF16", tensor.shape, {}};
  for (const float value : tensor.values) {
    const uint16_t bits = FloatToBf16(value);
    raw.bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return raw;
}

// A tiny family's folder with its tensors renamed, added to or replaced.
void WriteVariant(const std::string& family, const json& changes,
                  const std::map<std::string, RawTensor>& tensors, const std::string& dir) {
  json config = json::parse(ReadAll(TinyDir(family) + "/config.json"));
  for (const auto& [key, value] : changes.items()) config[key] = value;
  std::filesystem::create_directories(dir);
  ASSERT_TRUE(WriteFileDurably(dir + "/config.json", config.dump()).ok());
  ASSERT_TRUE(WriteFileDurably(dir + "/model.safetensors", FileOf(tensors)).ok());
}

std::map<std::string, RawTensor> RawOf(const std::string& family) {
  std::map<std::string, RawTensor> raw;
  for (const auto& [name, tensor] : ReadCheckpoint(TinyDir(family))) raw[name] = Bf16(tensor);
  return raw;
}

std::string MessageOfPacking(const std::string& model, const std::string& out) {
  const auto summary = PackModel(model, out, {.force = true}, nullptr, nullptr);
  return summary.ok() ? "" : std::string(summary.status().message());
}

TEST(PackVariantsTest, PredictionLayersAndVisionAreSkippedByName) {
  TempDir dir;
  std::map<std::string, RawTensor> tensors = RawOf("deepseek_v3");
  const RawTensor extra{"BF16", {2}, "\1\2\3\4"};
  tensors["model.layers.3.eh_proj.weight"] = extra;
  tensors["model.layers.3.mlp.gate.weight"] = extra;
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = extra;
  WriteVariant("deepseek_v3", {}, tensors, dir.File("deepseek"));
  EXPECT_EQ(MessageOfPacking(dir.File("deepseek"), dir.File("pack")), "");
  tensors["model.layers.4.mlp.gate.weight"] = extra;
  WriteVariant("deepseek_v3", {}, tensors, dir.File("deepseek"));
  EXPECT_THAT(MessageOfPacking(dir.File("deepseek"), dir.File("pack")), HasSubstr("model.layers.4.mlp.gate"));

  tensors.clear();
  for (const auto& [name, tensor] : RawOf("qwen3_5_moe")) {
    const bool head = name == "lm_head.weight";
    tensors[head ? name : "model.language_model." + name.substr(std::strlen("model."))] = tensor;
  }
  tensors["model.visual.patch_embed.weight"] = extra;
  tensors["mtp.fc.weight"] = extra;
  json text = json::parse(ReadAll(TinyDir("qwen3_5_moe") + "/config.json"));
  text.erase("architectures");
  WriteVariant("qwen3_5_moe",
               {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                {"model_type", "qwen3_5_moe"},
                {"text_config", text}},
               tensors, dir.File("qwen"));
  EXPECT_EQ(MessageOfPacking(dir.File("qwen"), dir.File("pack")), "");
  tensors["model.audio.weight"] = extra;
  WriteVariant("qwen3_5_moe",
               {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                {"model_type", "qwen3_5_moe"},
                {"text_config", text}},
               tensors, dir.File("qwen"));
  EXPECT_THAT(MessageOfPacking(dir.File("qwen"), dir.File("pack")), HasSubstr("model.audio.weight"));
}

TEST(PackVariantsTest, StackedExpertsEqualSingleOnes) {
  TempDir dir;
  std::map<std::string, RawTensor> stacked;
  const uint32_t layers = 2, experts = 16, width = 64, hidden = 64;
  for (const auto& [name, tensor] : RawOf("qwen3_moe")) {
    if (name.find(".experts.") == std::string::npos) stacked[name] = tensor;
  }
  std::map<std::string, RawTensor> single = RawOf("qwen3_moe");
  for (uint32_t l = 0; l < layers; ++l) {
    const std::string base = absl::StrCat("model.layers.", l, ".mlp.experts.");
    RawTensor gate_up{"BF16", {experts, 2 * width, hidden}, {}};
    RawTensor down{"BF16", {experts, hidden, width}, {}};
    for (uint32_t e = 0; e < experts; ++e) {
      gate_up.bytes += single[absl::StrCat(base, e, ".gate_proj.weight")].bytes;
      gate_up.bytes += single[absl::StrCat(base, e, ".up_proj.weight")].bytes;
      down.bytes += single[absl::StrCat(base, e, ".down_proj.weight")].bytes;
    }
    stacked[base + "gate_up_proj"] = std::move(gate_up);
    stacked[base + "down_proj"] = std::move(down);
  }
  WriteVariant("qwen3_moe", {}, stacked, dir.File("stacked"));
  ASSERT_EQ(MessageOfPacking(TinyDir("qwen3_moe"), dir.File("a")), "");
  ASSERT_EQ(MessageOfPacking(dir.File("stacked"), dir.File("b")), "");
  EXPECT_EQ(ReadAll(dir.File("a") + "/experts.bin"), ReadAll(dir.File("b") + "/experts.bin"));
  EXPECT_EQ(PackValues::Of(dir.File("a")).pack().manifest().provenance.source_digest,
            PackValues::Of(dir.File("b")).pack().manifest().provenance.source_digest);
}

TEST(PackVariantsTest, FusedExpertsAreCutWithoutHoldingMoreThanOne) {
  for (const char* family : {"granitemoe", "gpt_oss", "llama4"}) {
    const auto job = PreparePack(TinyDir(family), {});
    ASSERT_TRUE(job.ok()) << job.status();
    PackJob bare = *PreparePack(TinyDir(family), {});
    bare.experts.clear();
    bare.dense.clear();
    const MoeConfig& moe = job->manifest.config.layers[0].moe;
    const uint64_t expert = uint64_t{3} * moe.expert_width * job->manifest.config.hidden * 2;
    EXPECT_LE(job->worker_bytes(), bare.worker_bytes() + expert) << family;
  }
}

// One expert stack of the tiny GPT-OSS as MXFP4: random codes and scales, and their values.
struct Mxfp4Stack {
  RawTensor blocks;
  RawTensor scales;
  std::vector<float> values;  // [experts * rows, cols]
};

Mxfp4Stack MakeMxfp4(uint64_t experts, uint64_t rows, uint64_t cols, uint32_t seed) {
  static constexpr float kValues[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  Mxfp4Stack stack{{"U8", {experts, rows, cols / 32, 16}, {}}, {"U8", {experts, rows, cols / 32}, {}}, {}};
  uint32_t state = seed;
  const auto random = [&] { return (state = state * 1664525 + 1013904223) >> 16; };
  for (uint64_t group = 0; group < experts * rows * cols / 32; ++group) {
    const int scale = 120 + static_cast<int>(random() % 4);
    stack.scales.bytes.push_back(static_cast<char>(scale));
    for (int i = 0; i < 16; ++i) {
      const uint32_t pair = random() % 256;
      stack.blocks.bytes.push_back(static_cast<char>(pair));
      stack.values.push_back(kValues[pair & 15] * std::exp2(static_cast<float>(scale - 127)));
      stack.values.push_back(kValues[pair >> 4] * std::exp2(static_cast<float>(scale - 127)));
    }
  }
  return stack;
}

class Mxfp4Checkpoint {
 public:
  explicit Mxfp4Checkpoint(const std::string& dir) {
    std::map<std::string, RawTensor> tensors = RawOf("gpt_oss");
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const std::string base = absl::StrCat("model.layers.", layer, ".mlp.experts.");
      tensors.erase(base + "gate_up_proj");
      tensors.erase(base + "down_proj");
      gate_up_[layer] = MakeMxfp4(8, 128, 64, 7 + layer);
      down_[layer] = MakeMxfp4(8, 64, 64, 17 + layer);
      tensors[base + "gate_up_proj_blocks"] = gate_up_[layer].blocks;
      tensors[base + "gate_up_proj_scales"] = gate_up_[layer].scales;
      tensors[base + "down_proj_blocks"] = down_[layer].blocks;
      tensors[base + "down_proj_scales"] = down_[layer].scales;
    }
    WriteVariant("gpt_oss", {{"quantization_config", {{"quant_method", "mxfp4"}}}}, tensors, dir);
  }

  void ExpectIn(const std::string& pack_dir) const {
    PackValues values = PackValues::Of(pack_dir);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint32_t e = 0; e < 8; ++e) {
        const std::vector<float> gate = values.Expert(layer, e, Part::kGate);
        const std::vector<float> up = values.Expert(layer, e, Part::kUp);
        const std::vector<float> down = values.Expert(layer, e, Part::kDown);
        for (uint32_t j = 0; j < 64; ++j) {
          for (uint32_t c = 0; c < 64; ++c) {
            ASSERT_EQ(gate[j * 64 + c], gate_up_[layer].values[(e * 128 + 2 * j) * 64 + c]);
            ASSERT_EQ(up[j * 64 + c], gate_up_[layer].values[(e * 128 + 2 * j + 1) * 64 + c]);
            ASSERT_EQ(down[j * 64 + c], down_[layer].values[(e * 64 + c) * 64 + j]);
          }
        }
      }
    }
  }

 private:
  Mxfp4Stack gate_up_[2];
  Mxfp4Stack down_[2];
};

TEST(PackVariantsTest, Mxfp4ExpertsStayUnlessBitsAreGiven) {
  TempDir dir;
  const Mxfp4Checkpoint checkpoint(dir.File("model"));
  const auto packed_as = [&](const std::string& bits) {
    PackOptions options;
    options.recipe = *RecipeFromOptions({.bits = bits});
    const std::string out = dir.File("pack" + bits);
    const auto summary = PackModel(dir.File("model"), out, options, nullptr, nullptr);
    EXPECT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(VerifyPack(out, nullptr, nullptr).ok());
    return PackValues::Of(out).pack().part(1, 3, Part::kUp).encoding.encoding;
  };
  EXPECT_EQ(packed_as(""), Encoding::kMxfp4);
  checkpoint.ExpectIn(dir.File("pack"));
  EXPECT_EQ(packed_as("bf16"), Encoding::kBf16);
  checkpoint.ExpectIn(dir.File("packbf16"));
  EXPECT_EQ(packed_as("q4"), Encoding::kQ4);
  EXPECT_EQ(packed_as("source"), Encoding::kBf16);
  checkpoint.ExpectIn(dir.File("packsource"));
  EXPECT_EQ(PackValues::Of(dir.File("pack")).pack().part(1, 3, Part::kDown).encoding.encoding,
            Encoding::kBf16);
}

TEST(PackVariantsTest, Mxfp4ScalesThatAreNoNumbersAreRefused) {
  TempDir dir;
  const Mxfp4Checkpoint checkpoint(dir.File("model"));
  std::string file = ReadAll(dir.File("model") + "/model.safetensors");
  const auto folder = TensorFolder::Open(dir.File("model"));
  const TensorInfo* scales = (*folder)->Find("model.layers.1.mlp.experts.down_proj_scales");
  file[scales->offset + 5] = '\xff';
  ASSERT_TRUE(WriteFileDurably(dir.File("model") + "/model.safetensors", file).ok());
  EXPECT_THAT(MessageOfPacking(dir.File("model"), dir.File("pack")),
              HasSubstr("experts.down_proj holds NaN at [0, "));
}

}  // namespace
}  // namespace sluice
