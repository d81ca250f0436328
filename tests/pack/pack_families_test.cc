// Packs of every family's tiny checkpoint hold its weights, each where dense_names.h says, whatever the
// checkpoint's own layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/file_io.h"
#include "common/half.h"
#include "common/model/dense_names.h"
#include "common/model/families/hf_config.h"
#include "common/model/safetensors.h"
#include "common/status.h"
#include "common/strict_json.h"
#include "pack/writer/pack_job.h"
#include "pack/writer/pack_writer.h"
#include "tests/support/folder_bytes.h"
#include "tests/support/pack_values.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A checkpoint in memory: bf16 tensors as float32, in the order of the file.
struct Tensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Tensor>;

std::string TinyDir(const std::string& family) { return "tests/data/tiny/" + family; }

Tensors ReadCheckpoint(const std::string& dir) {
  const auto folder = TensorFolder::Open(dir);
  EXPECT_TRUE(folder.ok()) << folder.status();
  Tensors tensors;
  for (const TensorInfo& info : (*folder)->tensors()) {
    std::vector<std::byte> raw(info.bytes);
    EXPECT_TRUE((*folder)->Read(info, 0, absl::MakeSpan(raw)).ok());
    Tensor tensor{info.shape, {}};
    for (size_t i = 0; i < raw.size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, raw.data() + i, 2);
      tensor.values.push_back(Bf16ToFloat(bits));
    }
    tensors[info.name] = std::move(tensor);
  }
  return tensors;
}

// A tensor on its way into a safetensors file.
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

// A packed tiny family beside its checkpoint.
class Packed {
 public:
  explicit Packed(const std::string& family, const std::string& layer = "model.layers.")
      : prefix_(layer), tensors_(ReadCheckpoint(TinyDir(family))) {
    const auto summary = PackModel(TinyDir(family), dir_.File("pack"), {}, nullptr, nullptr);
    EXPECT_TRUE(summary.ok()) << summary.status();
    EXPECT_TRUE(VerifyPack(dir_.File("pack"), nullptr, nullptr).ok());
    values_ = std::make_unique<PackValues>(PackValues::Of(dir_.File("pack")));
  }

  const ModelConfig& config() const { return values_->pack().config(); }
  const Tensor& Source(uint32_t layer, const std::string& name) const {
    return tensors_.at(absl::StrCat(prefix_, layer, ".", name));
  }
  std::vector<float> Dense(uint32_t layer, std::string_view name) {
    return values_->Dense(dense::LayerName(layer, name));
  }
  std::vector<float> Expert(uint32_t layer, uint32_t expert, Part part) {
    return values_->Expert(layer, expert, part);
  }

  // The dense tensor holds the source's values in their order.
  void Same(uint32_t layer, std::string_view canonical, const std::string& name) {
    EXPECT_EQ(Dense(layer, canonical), Source(layer, name).values) << canonical;
  }
  void Transposed(uint32_t layer, std::string_view canonical, const std::string& name) {
    EXPECT_EQ(Dense(layer, canonical), Columns(Source(layer, name))) << canonical;
  }
  static std::vector<float> Columns(const Tensor& tensor) {
    const size_t rows = tensor.shape[0];
    const size_t cols = tensor.shape[1];
    std::vector<float> out;
    for (size_t c = 0; c < cols; ++c) {
      for (size_t r = 0; r < rows; ++r) out.push_back(tensor.values[r * cols + c]);
    }
    return out;
  }

  // Experts under names of their own, or whatever `at` finds: value(expert, neuron, column).
  void ExpertsByName(uint32_t layer, const std::string& base, const char* gate, const char* up,
                     const char* down) {
    for (uint32_t e = 0; e < config().layers[layer].moe.experts; ++e) {
      const auto source = [&](const char* name) -> const Tensor& {
        return Source(layer, absl::StrCat(base, e, ".", name, ".weight"));
      };
      EXPECT_EQ(Expert(layer, e, Part::kGate), source(gate).values);
      EXPECT_EQ(Expert(layer, e, Part::kUp), source(up).values);
      EXPECT_EQ(Expert(layer, e, Part::kDown), Columns(source(down)));
    }
  }
  using ValueAt = std::function<float(uint32_t expert, uint32_t neuron, uint32_t column)>;
  void ExpertsAt(uint32_t layer, Part part, const ValueAt& at) {
    const uint32_t width = config().layers[layer].moe.expert_width;
    for (uint32_t e = 0; e < config().layers[layer].moe.experts; ++e) {
      const std::vector<float> values = Expert(layer, e, part);
      for (uint32_t j = 0; j < width; ++j) {
        for (uint32_t c = 0; c < config().hidden; ++c) {
          ASSERT_EQ(values[j * config().hidden + c], at(e, j, c)) << e << " " << j << " " << c;
        }
      }
    }
  }

 private:
  TempDir dir_;
  const std::string prefix_;
  const Tensors tensors_;
  std::unique_ptr<PackValues> values_;
};

TEST(PackFamilies, ExpertsUnderNamesOfTheirOwn) {
  for (const char* family :
       {"qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "qwen3_5_moe"}) {
    Packed packed(family);
    const uint32_t last = static_cast<uint32_t>(packed.config().layers.size()) - 1;
    packed.ExpertsByName(last, "mlp.experts.", "gate_proj", "up_proj", "down_proj");
    packed.Same(last, dense::kRouter, "mlp.gate.weight");
  }
  Packed phimoe("phimoe");
  phimoe.ExpertsByName(1, "block_sparse_moe.experts.", "w1", "w3", "w2");
  phimoe.Same(1, dense::kRouter, "block_sparse_moe.gate.weight");
}

TEST(PackFamilies, Qwen2MoeSharedExpertAndBiases) {
  Packed packed("qwen2_moe");
  packed.Same(1, dense::kSharedUp, "mlp.shared_expert.up_proj.weight");
  packed.Same(1, dense::kSharedGate, "mlp.shared_expert.gate_proj.weight");
  packed.Transposed(1, dense::kSharedDown, "mlp.shared_expert.down_proj.weight");
  packed.Same(1, dense::kSharedRouter, "mlp.shared_expert_gate.weight");
  packed.Same(1, dense::kQBias, "self_attn.q_proj.bias");
  packed.Same(1, dense::kKBias, "self_attn.k_proj.bias");
  packed.Same(1, dense::kVBias, "self_attn.v_proj.bias");
}

TEST(PackFamilies, QkNorms) {
  Packed heads("qwen3_moe");
  heads.Same(0, dense::kQNorm, "self_attn.q_norm.weight");
  heads.Same(0, dense::kKNorm, "self_attn.k_norm.weight");
  Packed across("olmoe");
  across.Same(0, dense::kQNorm, "self_attn.q_norm.weight");
  across.Same(0, dense::kKNorm, "self_attn.k_norm.weight");
}

TEST(PackFamilies, GraniteMoeFusedExperts) {
  Packed packed("granitemoe");
  const Tensor& input = packed.Source(1, "block_sparse_moe.input_linear.weight");
  const Tensor& output = packed.Source(1, "block_sparse_moe.output_linear.weight");
  const uint32_t hidden = 64;
  const uint32_t width = 64;
  packed.ExpertsAt(1, Part::kGate, [&](uint32_t e, uint32_t j, uint32_t c) {
    return input.values[(e * 2 * width + j) * hidden + c];
  });
  packed.ExpertsAt(1, Part::kUp, [&](uint32_t e, uint32_t j, uint32_t c) {
    return input.values[(e * 2 * width + width + j) * hidden + c];
  });
  packed.ExpertsAt(1, Part::kDown, [&](uint32_t e, uint32_t j, uint32_t c) {
    return output.values[(e * hidden + c) * width + j];
  });
  packed.Same(1, dense::kRouter, "block_sparse_moe.router.layer.weight");
}

TEST(PackFamilies, DenseLayersAndCorrections) {
  for (const char* family : {"glm4_moe", "deepseek_v3"}) {
    Packed packed(family);
    packed.Same(0, dense::kDenseUp, "mlp.up_proj.weight");
    packed.Same(0, dense::kDenseGate, "mlp.gate_proj.weight");
    packed.Transposed(0, dense::kDenseDown, "mlp.down_proj.weight");
    packed.Same(1, dense::kRouterCorrection, "mlp.gate.e_score_correction_bias");
    packed.Same(1, dense::kSharedGate, "mlp.shared_experts.gate_proj.weight");
    packed.Transposed(1, dense::kSharedDown, "mlp.shared_experts.down_proj.weight");
  }
}

TEST(PackFamilies, LatentAttentionSplitsTheExpansionByHead) {
  const uint32_t heads = 4, nope = 16, value = 16, rank = 32;
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    Packed packed(family);
    const std::vector<float>& up = packed.Source(2, "self_attn.kv_b_proj.weight").values;
    const std::vector<float> k_up_t = packed.Dense(2, dense::kKUpT);
    const std::vector<float> v_up = packed.Dense(2, dense::kVUp);
    ASSERT_EQ(k_up_t.size(), heads * rank * nope);
    ASSERT_EQ(v_up.size(), heads * value * rank);
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t r = 0; r < rank; ++r) {
        for (uint32_t i = 0; i < nope; ++i) {
          ASSERT_EQ(k_up_t[(h * rank + r) * nope + i], up[(h * (nope + value) + i) * rank + r]);
        }
        for (uint32_t i = 0; i < value; ++i) {
          ASSERT_EQ(v_up[(h * value + i) * rank + r], up[(h * (nope + value) + nope + i) * rank + r]);
        }
      }
    }
    packed.Same(2, dense::kKvDown, "self_attn.kv_a_proj_with_mqa.weight");
    packed.Same(2, dense::kKvDownNorm, "self_attn.kv_a_layernorm.weight");
    packed.Same(2, dense::kO, "self_attn.o_proj.weight");
  }
  Packed direct("deepseek_v2");
  direct.Same(0, dense::kQ, "self_attn.q_proj.weight");
  Packed compressed("deepseek_v3");
  compressed.Same(0, dense::kQ, "self_attn.q_b_proj.weight");
  compressed.Same(0, dense::kQDown, "self_attn.q_a_proj.weight");
  compressed.Same(0, dense::kQDownNorm, "self_attn.q_a_layernorm.weight");
}

TEST(PackFamilies, PhimoeNormsHaveBiases) {
  Packed packed("phimoe");
  packed.Same(0, dense::kAttnNormBias, "input_layernorm.bias");
  packed.Same(0, dense::kFfnNormBias, "post_attention_layernorm.bias");
  packed.Same(0, dense::kOBias, "self_attn.o_proj.bias");
}

TEST(PackFamilies, GptOssColumnsAlternateBetweenGateAndUp) {
  Packed packed("gpt_oss");
  const std::vector<float>& both = packed.Source(1, "mlp.experts.gate_up_proj").values;
  const std::vector<float>& down = packed.Source(1, "mlp.experts.down_proj").values;
  const uint32_t hidden = 64, width = 64, experts = 8;
  packed.ExpertsAt(1, Part::kGate, [&](uint32_t e, uint32_t j, uint32_t c) {
    return both[(e * hidden + c) * 2 * width + 2 * j];
  });
  packed.ExpertsAt(1, Part::kUp, [&](uint32_t e, uint32_t j, uint32_t c) {
    return both[(e * hidden + c) * 2 * width + 2 * j + 1];
  });
  packed.ExpertsAt(1, Part::kDown,
                   [&](uint32_t e, uint32_t j, uint32_t c) { return down[(e * width + j) * hidden + c]; });
  const std::vector<float>& biases = packed.Source(1, "mlp.experts.gate_up_proj_bias").values;
  const std::vector<float> gate = packed.Dense(1, dense::kExpertsGateBias);
  const std::vector<float> up = packed.Dense(1, dense::kExpertsUpBias);
  for (uint32_t i = 0; i < experts * width; ++i) {
    ASSERT_EQ(gate[i], biases[2 * i]);
    ASSERT_EQ(up[i], biases[2 * i + 1]);
  }
  packed.Same(1, dense::kExpertsDownBias, "mlp.experts.down_proj_bias");
  packed.Same(1, dense::kRouterBias, "mlp.router.bias");
  packed.Same(1, dense::kSinks, "self_attn.sinks");
}

TEST(PackFamilies, Llama4ExpertsAreStoredByInput) {
  Packed packed("llama4");
  const std::vector<float>& both = packed.Source(2, "feed_forward.experts.gate_up_proj").values;
  const std::vector<float>& down = packed.Source(2, "feed_forward.experts.down_proj").values;
  const uint32_t hidden = 64, width = 64;
  packed.ExpertsAt(2, Part::kGate, [&](uint32_t e, uint32_t j, uint32_t c) {
    return both[(e * hidden + c) * 2 * width + j];
  });
  packed.ExpertsAt(2, Part::kUp, [&](uint32_t e, uint32_t j, uint32_t c) {
    return both[(e * hidden + c) * 2 * width + width + j];
  });
  packed.ExpertsAt(2, Part::kDown,
                   [&](uint32_t e, uint32_t j, uint32_t c) { return down[(e * width + j) * hidden + c]; });
  packed.Same(2, dense::kSharedUp, "feed_forward.shared_expert.up_proj.weight");
}

TEST(PackFamilies, Qwen35MoeGatesSplitByHeadAndNormsGainOne) {
  Packed packed("qwen3_5_moe");
  const uint32_t heads = 4, head_dim = 32, hidden = 64;
  const std::vector<float>& both = packed.Source(3, "self_attn.q_proj.weight").values;
  const std::vector<float> q = packed.Dense(3, dense::kQ);
  const std::vector<float> gate = packed.Dense(3, dense::kQGate);
  for (uint32_t h = 0; h < heads; ++h) {
    for (uint32_t i = 0; i < head_dim * hidden; ++i) {
      ASSERT_EQ(q[h * head_dim * hidden + i], both[2 * h * head_dim * hidden + i]);
      ASSERT_EQ(gate[h * head_dim * hidden + i], both[(2 * h + 1) * head_dim * hidden + i]);
    }
  }
  const auto plus_one = [&](uint32_t layer, std::string_view canonical, const std::string& name) {
    std::vector<float> expected = packed.Source(layer, name).values;
    for (float& value : expected) value += 1;
    EXPECT_EQ(packed.Dense(layer, canonical), expected) << canonical;
  };
  plus_one(0, dense::kAttnNorm, "input_layernorm.weight");
  plus_one(3, dense::kFfnNorm, "post_attention_layernorm.weight");
  plus_one(3, dense::kQNorm, "self_attn.q_norm.weight");
  plus_one(3, dense::kKNorm, "self_attn.k_norm.weight");
  packed.Same(0, dense::kDeltaQkv, "linear_attn.in_proj_qkv.weight");
  packed.Same(0, dense::kDeltaZ, "linear_attn.in_proj_z.weight");
  packed.Same(0, dense::kDeltaBeta, "linear_attn.in_proj_b.weight");
  packed.Same(0, dense::kDeltaDecay, "linear_attn.in_proj_a.weight");
  packed.Same(0, dense::kDeltaConv, "linear_attn.conv1d.weight");
  packed.Same(0, dense::kDeltaALog, "linear_attn.A_log");
  packed.Same(0, dense::kDeltaDtBias, "linear_attn.dt_bias");
  packed.Same(0, dense::kDeltaNorm, "linear_attn.norm.weight");
  packed.Same(0, dense::kO, "linear_attn.out_proj.weight");
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

TEST(PackFamilies, PredictionLayersAndVisionTowersAreLeftOutByNameOnly) {
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

TEST(PackFamilies, StackedExpertsGiveTheSameWeightsAndDigestAsSingleOnes) {
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

TEST(PackFamilies, FusedExpertsAreCutWithoutHoldingMoreThanOne) {
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

// One expert stack of the tiny GPT-OSS as MXFP4: random codes and scales, and the values they stand for.
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

TEST(PackFamilies, Mxfp4ExpertsStayAsTheyAreUnlessOtherBitsAreAskedFor) {
  TempDir dir;
  const Mxfp4Checkpoint checkpoint(dir.File("model"));
  const auto packed_as = [&](const std::string& bits) {
    PackOptions options;
    options.recipe = *RecipeFromWords({.bits = bits});
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
  EXPECT_EQ(PackValues::Of(dir.File("pack")).pack().part(1, 3, Part::kDown).encoding.encoding,
            Encoding::kBf16);
}

TEST(PackFamilies, Mxfp4ScalesThatAreNoNumbersAreRefused) {
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
