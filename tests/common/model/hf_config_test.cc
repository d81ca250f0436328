// config.json of both generations, and all errors in it.
#include "common/model/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "common/base/file_io.h"
#include "common/base/json_reader.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Base(bool new_config = false) {
  return json::parse(TinyConfigJson({.head_dim = 8, .sliding_window = 9, .new_config = new_config}));
}

absl::StatusOr<HfConfig> Parse(const json& config, const std::string& generation = "") {
  return ParseHfConfig(config.dump(), generation, "dir");
}

// Returns the error of the base config with one member replaced (or removed, for a discarded value).
std::string ErrorWith(const std::string& key, const json& value, absl::StatusCode code) {
  json config = Base();
  if (value.is_discarded()) {
    config.erase(key);
  } else {
    config[key] = value;
  }
  const auto result = Parse(config);
  EXPECT_EQ(result.status().code(), code) << key << " " << result.status();
  return std::string(result.status().message());
}

std::string Invalid(const std::string& key, const json& value) {
  return ErrorWith(key, value, absl::StatusCode::kInvalidArgument);
}

const json kAbsent = json(json::value_t::discarded);

TEST(HfConfig, BothGenerationsGiveTheSameModel) {
  const auto before = Parse(Base(false));
  const auto after = Parse(Base(true));
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(before->config, after->config);
  const ModelConfig& config = before->config;
  EXPECT_EQ(config.family, "mixtral");
  EXPECT_EQ(config.layers.size(), 2u);
  EXPECT_EQ(config.layers[1].attention.sliding_window, 9u);
  EXPECT_EQ(config.layers[1].attention.head_dim, 8u);
  EXPECT_EQ(config.layers[1].attention.rope.dimensions, 8u);
  EXPECT_EQ(config.layers[1].attention.rope.theta, 10000.0);
  EXPECT_FLOAT_EQ(config.layers[1].attention.scale, 1 / std::sqrt(8.0f));
  EXPECT_EQ(config.layers[1].moe.experts, 4u);
  EXPECT_EQ(config.layers[1].moe.top_k, 2u);
  EXPECT_EQ(config.layers[1].moe.expert_width, 48u);
  EXPECT_EQ(config.bos_ids, std::vector<int32_t>{1});
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{2});
}

TEST(HfConfig, AbsentAndNullMembersTakeTransformersDefaults) {
  json config = Base();
  for (const char* key :
       {"head_dim", "sliding_window", "rope_theta", "rope_scaling", "rms_norm_eps", "hidden_act",
        "tie_word_embeddings", "max_position_embeddings", "torch_dtype", "eos_token_id"}) {
    config.erase(key);
  }
  config["num_attention_heads"] = 16;
  config.erase("num_key_value_heads");
  const auto result = Parse(config);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->config.layers[0].attention.kv_heads, 8u);
  EXPECT_EQ(result->config.layers[0].attention.head_dim, 2u);
  EXPECT_EQ(result->config.layers[0].attention.sliding_window, 0u);
  EXPECT_EQ(result->config.layers[0].attention.rope.theta, 1e6);
  EXPECT_EQ(result->config.max_position, 131072u);
  EXPECT_FALSE(result->config.tied_embeddings);
  EXPECT_TRUE(result->config.eos_ids.empty());
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(config)->config.layers[0].attention.kv_heads, 16u);
}

TEST(HfConfig, RopeParametersWinOverTheOldMember) {
  json config = Base();
  config["rope_theta"] = 5.0;
  config["rope_parameters"] = {{"rope_theta", 7.0}, {"rope_type", "default"}};
  EXPECT_EQ(Parse(config)->config.layers[0].attention.rope.theta, 7.0);
  config["rope_parameters"].erase("rope_theta");
  EXPECT_EQ(Parse(config)->config.layers[0].attention.rope.theta, 5.0);
}

TEST(HfConfig, GenerationConfigOverridesEndIds) {
  const auto result =
      Parse(Base(), R"({"eos_token_id":[5,7],"temperature":0.7,"top_k":20,"top_p":0.8,"do_sample":true,
                                        "repetition_penalty":1.05,"unknown":{"x":[1]}})");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->config.eos_ids, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(result->generation.temperature, 0.7);
  EXPECT_EQ(result->generation.top_k, 20u);
  EXPECT_EQ(result->generation.top_p, 0.8);
  EXPECT_EQ(result->generation.do_sample, true);
  EXPECT_EQ(result->generation.repetition_penalty, 1.05);
  EXPECT_FALSE(result->generation.min_p.has_value());
}

// kimi_k2 is a type of the same architecture.
TEST(HfConfig, ArchitecturesAreListedOnce) {
  json config = Base();
  config["architectures"] = {"DbrxForCausalLM"};
  const std::string message(Parse(config).status().message());
  const size_t first = message.find("DeepseekV3ForCausalLM");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(message.find("DeepseekV3ForCausalLM", first + 1), std::string::npos) << message;
}

TEST(HfConfig, OtherArchitecturesAreRefusedByName) {
  json config = Base();
  config["architectures"] = {"DbrxForCausalLM"};
  config["model_type"] = "dbrx";
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("DbrxForCausalLM"));
  EXPECT_EQ(Parse(config).status().code(), absl::StatusCode::kUnimplemented);
  config.erase("architectures");
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("dbrx"));
  config = Base();
  config["architectures"] = {"MixtralForSequenceClassification"};
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("MixtralForSequenceClassification"));
  config.erase("architectures");
  EXPECT_TRUE(Parse(config).ok());
  config.erase("model_type");
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("architectures"));
}

TEST(HfConfig, RequiredMembersAreNamedWhenMissing) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_local_experts", "num_experts_per_tok"}) {
    EXPECT_THAT(Invalid(key, kAbsent), HasSubstr(std::string(key) + " is missing"));
  }
}

TEST(HfConfig, OutOfRangeNumbersAreRefusedByFieldAndValue) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_local_experts", "num_experts_per_tok",
                          "num_key_value_heads", "head_dim", "sliding_window", "max_position_embeddings"}) {
    for (const json& value :
         {json(0), json(-1), json(1.5), json("4"), json(true), json(1ull << 40), json::array()}) {
      EXPECT_THAT(Invalid(key, value), HasSubstr(key)) << value;
    }
  }
  EXPECT_THAT(Invalid("rope_theta", -1.0), HasSubstr("rope_theta"));
  EXPECT_THAT(Invalid("rms_norm_eps", -1e-5), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(Invalid("tie_word_embeddings", 1), HasSubstr("tie_word_embeddings"));
}

TEST(HfConfig, NumbersThatContradictEachOtherAreRefused) {
  EXPECT_THAT(Invalid("num_key_value_heads", 3), HasSubstr("does not divide"));
  EXPECT_THAT(Invalid("num_experts_per_tok", 5), HasSubstr("4 experts"));
  EXPECT_THAT(Invalid("head_dim", 7), HasSubstr("even"));
  EXPECT_THAT(Invalid("eos_token_id", 64), HasSubstr("eos_token_id"));
  EXPECT_THAT(Invalid("eos_token_id", json::array({1, -2})), HasSubstr("eos_token_id"));
  EXPECT_THAT(Invalid("bos_token_id", json::array({1, 2})), HasSubstr("bos"));
  json config = Base();
  config["head_dim"] = nullptr;
  config["hidden_size"] = 30;
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("hidden_size is 30"));
}

TEST(HfConfig, UnsupportedSettingsAreRefused) {
  const auto unimplemented = [](const std::string& key, const json& value) {
    return ErrorWith(key, value, absl::StatusCode::kUnimplemented);
  };
  EXPECT_THAT(unimplemented("hidden_act", "relu"), HasSubstr("hidden_act \"relu\""));
  EXPECT_THAT(unimplemented("rope_scaling", {{"type", "dynamic"}, {"factor", 4}}), HasSubstr("\"dynamic\""));
  EXPECT_THAT(unimplemented("rope_parameters", {{"rope_type", "axial"}}), HasSubstr("\"axial\""));
  EXPECT_THAT(unimplemented("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(unimplemented("attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(unimplemented("quantization_config", {{"quant_method", "bitsandbytes"}}),
              HasSubstr("quantization_config"));
}

TEST(HfConfig, DuplicateKeysAndSyntaxErrorsAreRefused) {
  EXPECT_THAT(
      std::string(
          ParseHfConfig(R"({"model_type":"mixtral","model_type":"mixtral"})", "", "dir").status().message()),
      HasSubstr("duplicate key \"model_type\""));
  EXPECT_THAT(std::string(ParseHfConfig("{", "", "dir").status().message()), HasSubstr("dir/config.json"));
  EXPECT_THAT(std::string(Parse(Base(), "{\"top_p\":2}").status().message()),
              HasSubstr("generation_config.json: top_p is 2"));
}

TEST(HfConfig, ChatTemplateFileOverridesTokenizerConfig) {
  TempDir dir;
  ASSERT_TRUE(WriteFileDurably(dir.File("config.json"), Base().dump()).ok());
  EXPECT_EQ(ReadHfConfig(dir.path())->chat_template, "");
  ASSERT_TRUE(WriteFileDurably(dir.File("chat_template.json"), R"({"chat_template":"zero"})").ok());
  EXPECT_EQ(ReadHfConfig(dir.path())->chat_template, "zero");
  ASSERT_TRUE(WriteFileDurably(dir.File("tokenizer_config.json"), R"({"chat_template":"one"})").ok());
  EXPECT_EQ(ReadHfConfig(dir.path())->chat_template, "one");
  ASSERT_TRUE(
      WriteFileDurably(
          dir.File("tokenizer_config.json"),
          R"({"chat_template":[{"name":"tool_use","template":"x"},{"name":"default","template":"two"}]})")
          .ok());
  EXPECT_EQ(ReadHfConfig(dir.path())->chat_template, JoinChatTemplates("two", "x"));
  ASSERT_TRUE(WriteFileDurably(dir.File("chat_template.jinja"), "three").ok());
  EXPECT_EQ(ReadHfConfig(dir.path())->chat_template, "three");
  ASSERT_TRUE(std::filesystem::create_directory(dir.File("additional_chat_templates")));
  ASSERT_TRUE(WriteFileDurably(dir.File("additional_chat_templates/tool_use.jinja"), "four").ok());
  EXPECT_EQ(ReadHfConfig(dir.path())->chat_template, JoinChatTemplates("three", "four"));
}

TEST(HfConfig, FoldersWithoutConfigAreNotFound) {
  TempDir dir;
  EXPECT_EQ(ReadHfConfig(dir.path()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice
