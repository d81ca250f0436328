// Whole GGUF files as folders of the hub: names, orders of rows, configs, tokenizers, split files, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/base/file_io.h"
#include "common/model/gguf_blocks.h"
#include "common/model/hf_config.h"
#include "common/model/model_source.h"
#include "tests/common/model/gguf/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHidden = 8, kHeads = 2, kHeadDim = 4, kKvHeads = 1, kWidth = 6, kExperts = 3, kVocab = 5;

std::string Values(uint64_t count, float first) {
  std::string data;
  for (uint64_t i = 0; i < count; ++i) data += GgufBuilder::Bytes(first + static_cast<float>(i));
  return data;
}

// A Mixtral of one layer in f32 whose values count up from a number specific to each tensor.
struct Small {
  bool separate_experts = false;
  bool fused_qkv = false;
  uint32_t blocks = 1;
  std::string architecture = "llama";
  std::function<void(GgufBuilder*)> keys = [](GgufBuilder*) {};

  GgufBuilder Keys() const {
    GgufBuilder builder;
    builder.Word("general.architecture", architecture);
    for (const auto& [key, value] :
         {std::pair("block_count", blocks), std::pair("context_length", 16u),
          std::pair("embedding_length", uint32_t{kHidden}),
          std::pair("feed_forward_length", uint32_t{kWidth}),
          std::pair("attention.head_count", uint32_t{kHeads}),
          std::pair("attention.head_count_kv", uint32_t{kKvHeads}),
          std::pair("expert_count", uint32_t{kExperts}), std::pair("expert_used_count", 2u)}) {
      builder.U32(architecture + "." + key, value);
    }
    builder.F32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    keys(&builder);
    return builder;
  }

  static void Add(const std::string& name, const std::vector<uint64_t>& dims, float first,
                  GgufBuilder* builder) {
    uint64_t count = 1;
    for (const uint64_t dim : dims) count *= dim;
    builder->Tensor(name, dims, kGgufF32, Values(count, first));
  }

  void AddTensors(GgufBuilder* builder) const {
    Add("token_embd.weight", {kHidden, kVocab}, 0, builder);
    Add("output_norm.weight", {kHidden}, 100, builder);
    Add("blk.0.attn_norm.weight", {kHidden}, 200, builder);
    Add("blk.0.ffn_norm.weight", {kHidden}, 300, builder);
    if (fused_qkv) {
      Add("blk.0.attn_qkv.weight", {kHidden, (kHeads + 2 * kKvHeads) * kHeadDim}, 1000, builder);
    } else {
      Add("blk.0.attn_q.weight", {kHidden, kHeads * kHeadDim}, 1000, builder);
      Add("blk.0.attn_k.weight", {kHidden, kKvHeads * kHeadDim}, 1064, builder);
      Add("blk.0.attn_v.weight", {kHidden, kKvHeads * kHeadDim}, 1096, builder);
    }
    Add("blk.0.attn_output.weight", {kHeads * kHeadDim, kHidden}, 2000, builder);
    Add("blk.0.ffn_gate_inp.weight", {kHidden, kExperts}, 3000, builder);
    const uint64_t size = kHidden * kWidth;
    for (uint64_t e = 0; e < (separate_experts ? kExperts : 1); ++e) {
      const float first = static_cast<float>(e * size);
      const std::string end = separate_experts ? absl::StrCat(".", e, ".weight") : "_exps.weight";
      const auto dims = [&](uint64_t a, uint64_t b) {
        return separate_experts ? std::vector<uint64_t>{a, b} : std::vector<uint64_t>{a, b, kExperts};
      };
      Add("blk.0.ffn_gate" + end, dims(kHidden, kWidth), 10000 + first, builder);
      Add("blk.0.ffn_up" + end, dims(kHidden, kWidth), 20000 + first, builder);
      Add("blk.0.ffn_down" + end, dims(kWidth, kHidden), 30000 + first, builder);
    }
  }

  std::string File() const {
    GgufBuilder builder = Keys();
    AddTensors(&builder);
    return builder.File();
  }
};

class GgufModelTest : public ::testing::Test {
 protected:
  absl::StatusOr<ModelSource> Open(const std::string& file, const std::string& name = "m.gguf") {
    EXPECT_TRUE(WriteFileDurably(dir_.File(name), file).ok());
    return OpenModelSource(dir_.File(name));
  }
  ModelSource MustOpen(const std::string& file) {
    auto source = Open(file);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : ModelSource{};
  }
  void ExpectRefused(const Small& small, const char* word) {
    const absl::Status status = Open(small.File()).status();
    EXPECT_FALSE(status.ok()) << word;
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    EXPECT_THAT(std::string(status.message()), HasSubstr("m.gguf"));
  }
  // Returns the first value of each line of a tensor.
  static std::vector<float> FirstOfLines(const ModelSource& source, const std::string& name) {
    const CheckpointTensor* tensor = source.checkpoint->Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    uint64_t lines = 1;
    for (size_t i = 0; i + 1 < tensor->shape.size(); ++i) lines *= tensor->shape[i];
    std::vector<float> values(lines);
    EXPECT_TRUE(source.checkpoint
                    ->Read(*tensor, {0, lines, 0, 1},
                           absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), 4 * lines))
                    .ok());
    return values;
  }
  TempDir dir_;
};

TEST_F(GgufModelTest, KeysBecomeTheFamilysConfig) {
  const ModelSource source = MustOpen(Small().File());
  const ModelConfig& config = source.hf.config;
  EXPECT_EQ(config.family, "mixtral");
  EXPECT_EQ(config.vocab, kVocab);
  EXPECT_EQ(config.hidden, kHidden);
  EXPECT_TRUE(config.tied_embeddings);
  ASSERT_EQ(config.layers.size(), 1u);
  EXPECT_EQ(config.layers[0].attention.head_dim, kHeadDim);
  EXPECT_EQ(config.layers[0].attention.rope.theta, 10000.0);
  EXPECT_EQ(config.layers[0].moe.expert_width, kWidth);
  EXPECT_TRUE(MapTensors(config, *source.checkpoint).ok());
}

TEST_F(GgufModelTest, FileKindIsDetectedByContent) {
  EXPECT_TRUE(Open(Small().File(), "download").ok());
  EXPECT_THAT(std::string(Open("hello", "notes.txt").status().message()),
              HasSubstr("notes.txt is a file, and no GGUF file"));
  EXPECT_THAT(std::string(Open("hello", "model.safetensors").status().message()),
              HasSubstr("give the folder that this file lies in"));
  EXPECT_THAT(std::string(ReadModelConfig(dir_.File("notes.txt")).status().message()),
              HasSubstr("no GGUF file"));
}

// Rows of q and k change back from pairs to halves; v's rows stay.
TEST_F(GgufModelTest, PermutedRowsComeBackToTheHubsOrder) {
  for (const bool fused : {false, true}) {
    const ModelSource source = MustOpen(Small{.fused_qkv = fused}.File());
    const std::string base = "model.layers.0.self_attn.";
    EXPECT_EQ(FirstOfLines(source, base + "q_proj.weight"),
              (std::vector<float>{1000, 1016, 1008, 1024, 1032, 1048, 1040, 1056}));
    EXPECT_EQ(FirstOfLines(source, base + "k_proj.weight"), (std::vector<float>{1064, 1080, 1072, 1088}));
    EXPECT_EQ(FirstOfLines(source, base + "v_proj.weight"), (std::vector<float>{1096, 1104, 1112, 1120}));
  }
}

TEST_F(GgufModelTest, ExpertsAreOneByOneWhereverTheyStand) {
  for (const bool separate : {false, true}) {
    const ModelSource source = MustOpen(Small{.separate_experts = separate}.File());
    ASSERT_TRUE(MapTensors(source.hf.config, *source.checkpoint).ok());
    const std::string expert = "model.layers.0.block_sparse_moe.experts.2.";
    EXPECT_EQ(FirstOfLines(source, expert + "w1.weight")[0], 10096.0f);
    EXPECT_EQ(FirstOfLines(source, expert + "w3.weight")[5], 20136.0f);
    EXPECT_EQ(FirstOfLines(source, expert + "w2.weight")[7], 30138.0f);
  }
}

// Architectures that differ in names from a Mixtral with norms of q and k: every tensor is mapped, and
// tensors of other architectures are not.
struct Named {
  const char* architecture;
  const char* family;
  std::vector<std::pair<const char*, std::vector<uint64_t>>> tensors;
  std::function<void(GgufBuilder*)> keys = [](GgufBuilder*) {};
};

TEST_F(GgufModelTest, TensorsOfEveryArchitectureAreMapped) {
  const std::vector<std::pair<const char*, std::vector<uint64_t>>> shared = {
      {"ffn_gate_shexp.weight", {kHidden, kWidth}},
      {"ffn_up_shexp.weight", {kHidden, kWidth}},
      {"ffn_down_shexp.weight", {kWidth, kHidden}}};
  const std::vector<std::pair<const char*, std::vector<uint64_t>>> norms = {
      {"attn_q_norm.weight", {kHeadDim}}, {"attn_k_norm.weight", {kHeadDim}}};
  const auto joined = [](std::vector<std::pair<const char*, std::vector<uint64_t>>> all, const auto& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::vector<std::pair<const char*, std::vector<uint64_t>>> corrected =
      joined(shared, decltype(norms){{"exp_probs_b.bias", {kExperts}}});
  const std::function<void(GgufBuilder*)> window = [](GgufBuilder* b) {
    b->U32("afmoe.attention.sliding_window", 8).U32("afmoe.expert_shared_count", 1);
  };
  const Named all[] = {
      {"dots1", "dots1", joined(corrected, norms), [](auto* b) { b->U32("dots1.expert_shared_count", 1); }},
      {"ernie4_5-moe", "ernie4_5_moe", corrected},
      {"hunyuan-moe", "hunyuan_v1_moe", joined(shared, norms)},
      {"qwen3vlmoe", "qwen3_moe", norms},
      {"afmoe", "afmoe",
       joined(joined(corrected, norms), decltype(norms){{"attn_gate.weight", {kHidden, kHeads * kHeadDim}},
                                                        {"post_attention_norm.weight", {kHidden}},
                                                        {"post_ffw_norm.weight", {kHidden}}}),
       window},
  };
  for (const Named& named : all) {
    SCOPED_TRACE(named.architecture);
    for (const bool complete : {true, false}) {
      const Small small{.architecture = named.architecture, .keys = named.keys};
      GgufBuilder builder = small.Keys();
      small.AddTensors(&builder);
      for (const auto& [name, dims] : named.tensors) {
        Small::Add(absl::StrCat("blk.0.", name), dims, 5000, &builder);
      }
      if (!complete) Small::Add("blk.0.attn_other.weight", {kHidden}, 0, &builder);
      const ModelSource source = MustOpen(builder.File());
      EXPECT_EQ(source.hf.config.family, named.family);
      const absl::Status mapped = MapTensors(source.hf.config, *source.checkpoint).status();
      EXPECT_EQ(mapped.ok(), complete) << mapped;
    }
  }
}

TEST_F(GgufModelTest, LayersThatPredictFurtherTokensAreLeftOut) {
  for (const bool said : {true, false}) {
    Small small{.blocks = said ? 2u : 1u};
    if (said) small.keys = [](GgufBuilder* builder) { builder->U32("llama.nextn_predict_layers", 1); };
    GgufBuilder builder = small.Keys();
    small.AddTensors(&builder);
    Small::Add("blk.1.nextn.eh_proj.weight", {16, 8}, 0, &builder);
    const ModelSource source = MustOpen(builder.File());
    EXPECT_EQ(source.hf.config.layers.size(), 1u);
    const absl::Status mapped = MapTensors(source.hf.config, *source.checkpoint).status();
    EXPECT_EQ(mapped.ok(), said) << mapped;
  }
}

TEST_F(GgufModelTest, AnOrdinaryLastLayerIsKept) {
  for (const bool has_layer : {true, false}) {
    const Small small{.blocks = 2, .keys = [](GgufBuilder* b) { b->U32("llama.nextn_predict_layers", 1); }};
    GgufBuilder builder = small.Keys();
    small.AddTensors(&builder);
    if (has_layer) Small::Add("blk.1.attn_norm.weight", {kHidden}, 200, &builder);
    EXPECT_EQ(MustOpen(builder.File()).hf.config.layers.size(), has_layer ? 2u : 1u);
  }
}

// A sigmoid router without a correction.
TEST_F(GgufModelTest, TheRoutersCorrectionMayBeAbsent) {
  const Small small{.architecture = "dots1"};
  GgufBuilder builder = small.Keys();
  small.AddTensors(&builder);
  Small::Add("blk.0.attn_q_norm.weight", {kHeadDim}, 5000, &builder);
  Small::Add("blk.0.attn_k_norm.weight", {kHeadDim}, 5000, &builder);
  const ModelSource source = MustOpen(builder.File());
  EXPECT_FALSE(source.hf.config.layers[0].moe.router_correction);
  const absl::Status mapped = MapTensors(source.hf.config, *source.checkpoint).status();
  EXPECT_TRUE(mapped.ok()) << mapped;
}

// Factors of NVFP4: one for each expert, or one for all; those of activations change nothing.
TEST_F(GgufModelTest, FactorsMultiplyNvfp4Values) {
  constexpr uint64_t kLength = 64;
  const std::string block = "\x38\x38\x38\x38" + std::string(32, '\x22');  // all values 1
  for (const uint64_t count : {kExperts, uint64_t{1}, uint64_t{2}}) {
    GgufBuilder builder = Small().Keys();
    std::string data;
    for (uint64_t i = 0; i < kExperts * 2; ++i) data += block;
    builder.Tensor("blk.0.ffn_up_exps.weight", {kLength, 2, kExperts}, kGgufNvfp4, data);
    std::string factors;
    for (uint64_t i = 0; i < count; ++i) factors += GgufBuilder::Bytes(0.5f + static_cast<float>(i));
    builder.Tensor("blk.0.ffn_up_exps.scale", {count}, kGgufF32, factors);
    Small::Add("blk.0.ffn_up_exps.input_scale", {1}, 3, &builder);
    Small::Add("token_embd.weight", {kHidden, kVocab}, 0, &builder);
    const auto source = Open(builder.File());
    if (count == 2) {
      EXPECT_THAT(std::string(source.status().message()), HasSubstr("has 2 values, expected 1 or 3"));
      continue;
    }
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ(source->checkpoint->tensors().size(), 1 + kExperts);
    for (uint64_t e = 0; e < kExperts; ++e) {
      const std::string name = absl::StrCat("model.layers.0.block_sparse_moe.experts.", e, ".w3.weight");
      const float want = count == 1 ? 0.5f : 0.5f + static_cast<float>(e);
      EXPECT_EQ(FirstOfLines(*source, name), (std::vector<float>{want, want}));
      CodeBlock blocks[2];
      ASSERT_TRUE(
          source->checkpoint->ReadBlocks(*source->checkpoint->Find(name), {0, 2, 0, kLength}, blocks).ok());
      EXPECT_EQ(blocks[1].factor, want);
    }
  }
}

TEST_F(GgufModelTest, ScalesOfOneSayNothing) {
  for (const float scale : {1.0f, 2.0f}) {
    const Small small;
    GgufBuilder builder = small.Keys();
    small.AddTensors(&builder);
    builder.Tensor("blk.0.attn_q.scale", {1}, kGgufF32, GgufBuilder::Bytes(scale));
    const ModelSource source = MustOpen(builder.File());
    EXPECT_EQ(MapTensors(source.hf.config, *source.checkpoint).ok(), scale == 1);
  }
}

TEST_F(GgufModelTest, WhatIsNotKnownIsRefusedByName) {
  ExpectRefused({.architecture = "mamba"}, "general.architecture \"mamba\"");
  const auto with = [](const std::function<void(GgufBuilder*)>& keys) { return Small{.keys = keys}; };
  ExpectRefused(with([](GgufBuilder* b) { b->Word("general.type", "mmproj"); }), "\"mmproj\"");
  ExpectRefused(with([](GgufBuilder* b) { b->Word("llama.rope.scaling.type", "new"); }),
                "rope.scaling.type new");
  ExpectRefused(with([](GgufBuilder* b) { b->U32("llama.rope.dimension_count", 2); }),
                "rope.dimension_count");
  ExpectRefused({.architecture = "dots1", .keys = [](auto* b) { b->U32("dots1.expert_gating_func", 1); }},
                "expert_gating_func 1");
  ExpectRefused({.architecture = "afmoe"}, "attention.sliding_window is missing");
  ExpectRefused({.architecture = "hunyuan-moe"}, "expert_shared_feed_forward_length");
  ExpectRefused(with([](GgufBuilder* b) { b->Word("tokenizer.ggml.model", "t5"); }),
                "tokenizer.ggml.model \"t5\"");
  ExpectRefused(with([](GgufBuilder* b) {
                  b->Word("tokenizer.ggml.model", "gpt2").Word("tokenizer.ggml.pre", "brand-new");
                }),
                "tokenizer.ggml.pre \"brand-new\"");
}

TEST_F(GgufModelTest, ADenseLlamaIsRefusedAsSuch) {
  GgufBuilder builder;
  builder.Word("general.architecture", "llama").U32("llama.block_count", 1).U32("llama.context_length", 16);
  builder.U32("llama.embedding_length", 8).U32("llama.attention.head_count", 2);
  Small::Add("token_embd.weight", {kHidden, kVocab}, 0, &builder);
  EXPECT_THAT(std::string(Open(builder.File()).status().message()), HasSubstr("dense llama"));
}

TEST_F(GgufModelTest, BytePairTokenizersBecomeTheHubsFiles) {
  Small small;
  small.keys = [](GgufBuilder* b) {
    const std::string types = GgufBuilder::Bytes<uint32_t>(5) + GgufBuilder::Bytes<uint64_t>(5);
    std::string list = types;
    for (const int32_t type : {1, 1, 1, 4, 3}) list += GgufBuilder::Bytes(type);
    b->Word("tokenizer.ggml.model", "gpt2").Word("tokenizer.ggml.pre", "qwen2");
    b->Words("tokenizer.ggml.tokens", {"a", "b", "ab", "<tool>", "<end>"})
        .Words("tokenizer.ggml.merges", {"a b"});
    b->Key("tokenizer.ggml.token_type", 9, list).U32("tokenizer.ggml.eos_token_id", 4);
    b->Word("tokenizer.chat_template", "{{ x }}");
  };
  const ModelSource source = MustOpen(small.File());
  EXPECT_EQ(source.hf.chat_template, "{{ x }}");
  EXPECT_EQ(source.hf.config.eos_ids, (std::vector<int32_t>{4}));
  const std::string& json = source.tokenizer_files.at("tokenizer.json");
  EXPECT_THAT(json, HasSubstr(R"("vocab":{"a":0,"ab":2,"b":1})"));
  EXPECT_THAT(json, HasSubstr(R"("NFC")"));
  EXPECT_THAT(source.tokenizer_files.at("tokenizer_config.json"), HasSubstr(R"("eos_token":"<end>")"));
}

// Without merges a Kimi file's ids are the ranks by which tiktoken merges.
TEST_F(GgufModelTest, RanksReplaceTheMergesOfKimi) {
  Small small;
  for (const char* pre : {"kimi-k2", "gpt-2"}) {
    small.keys = [pre](GgufBuilder* b) {
      b->Word("tokenizer.ggml.model", "gpt2").Word("tokenizer.ggml.pre", pre);
      b->Words("tokenizer.ggml.tokens", {"a", "b", "ab", "\xc3\xa9", "ab\xc3\xa9"});
    };
    const auto source = Open(small.File());
    EXPECT_EQ(source.ok(), std::string_view(pre) == "kimi-k2") << source.status();
    if (!source.ok()) continue;
    EXPECT_THAT(source->tokenizer_files.at("tokenizer.json"),
                HasSubstr("\"merges\":[\"a b\",\"ab \xc3\xa9\"]"));
  }
}

class SplitTest : public GgufModelTest {
 protected:
  static GgufBuilder& AddSplit(uint16_t number, uint16_t count, int32_t tensors, GgufBuilder* builder) {
    builder->Key("split.no", 2, GgufBuilder::Bytes(number)).Key("split.count", 2, GgufBuilder::Bytes(count));
    return builder->Key("split.tensors.count", 5, GgufBuilder::Bytes(tensors));
  }
  // The first part holds the keys, the second the tensors.
  void Write(uint16_t second_number, int32_t tensors) {
    GgufBuilder first = Small().Keys();
    WriteAll("m-00001-of-00002.gguf", AddSplit(0, 2, tensors, &first).File());
    GgufBuilder second;
    AddSplit(second_number, 2, tensors, &second);
    Small().AddTensors(&second);
    WriteAll("m-00002-of-00002.gguf", second.File());
  }
  void WriteAll(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(WriteFileDurably(dir_.File(name), bytes).ok());
  }
  std::string Error(const std::string& name) {
    const auto source = OpenModelSource(dir_.File(name));
    EXPECT_FALSE(source.ok());
    return std::string(source.status().message());
  }
  static constexpr char kFirst[] = "m-00001-of-00002.gguf";
};

TEST_F(SplitTest, PartsAreOneModel) {
  Write(1, 12);
  const auto source = OpenModelSource(dir_.File(kFirst));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(MapTensors(source->hf.config, *source->checkpoint).ok());
}

TEST_F(SplitTest, PartsThatDoNotBelongTogetherAreNamed) {
  Write(1, 13);
  EXPECT_THAT(Error(kFirst), HasSubstr("split.tensors.count is 13, but the files hold 12"));
  Write(0, 12);
  EXPECT_THAT(Error(kFirst), HasSubstr("are 0 and 2, expected 1 and 2"));
  Write(1, 12);
  EXPECT_THAT(Error("m-00002-of-00002.gguf"), HasSubstr("open the model by its first file"));
  ASSERT_EQ(std::rename(dir_.File(kFirst).c_str(), dir_.File("first.gguf").c_str()), 0);
  EXPECT_THAT(Error("first.gguf"), HasSubstr("must end in -00001-of-00002.gguf"));
  Write(1, 12);
  ASSERT_EQ(std::remove(dir_.File("m-00002-of-00002.gguf").c_str()), 0);
  EXPECT_THAT(Error(kFirst), HasSubstr("m-00002-of-00002.gguf"));
}

}  // namespace
}  // namespace sluice
