// Config features common to all families: both generations of the file, ropes, multimodal wrappers, and
// refused members.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/base/json_reader.h"
#include "common/model/hf_config.h"
#include "common/model/hf_fields.h"
#include "tests/common/model/tiny_configs.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(HfSwitches, BothGenerationsGiveTheSameModel) {
  for (const char* family : kTinyFamilies) {
    EXPECT_EQ(Read(Tiny(family)), Read(OldGeneration(Tiny(family)))) << family;
  }
}

TEST(HfSwitches, UnknownMembersAreRefusedUnlessOff) {
  for (const char* family : kTinyFamilies) {
    ExpectRefused(With(family, {{"use_new_trick", 3}}), "use_new_trick 3");
    ExpectRefused(With(family, {{"use_new_trick", true}}), "use_new_trick true");
    EXPECT_TRUE(Error(With(family, {{"use_new_trick", false}, {"other_trick", nullptr}})).ok()) << family;
    EXPECT_TRUE(Error(With(family, {{"auto_map", {{"AutoModel", "x.Y"}}}, {"temperature", 0.7}})).ok());
  }
}

TEST(HfSwitches, UnknownSwitchesAreRefusedByFieldAndValue) {
  for (const char* family : kTinyFamilies) {
    ExpectRefused(With(family, {{"hidden_act", "relu2"}}), "hidden_act \"relu2\"");
    ExpectRefused(With(family, {{"quantization_config", {{"quant_method", "bitsandbytes"}}}}), "quant");
    json rope = Tiny(family)["rope_parameters"];
    rope["rope_type"] = "dynamic";
    rope["factor"] = 2.0;
    ExpectRefused(With(family, {{"rope_parameters", rope}}), "dynamic");
  }
  ExpectRefused(With("qwen2_moe", {{"layer_types", {"full_attention", "linear_attention"}}}), "layer_types");
  ExpectRefused(With("deepseek_v2", {{"topk_method", "noaux_tc"}}), "topk_method");
  ExpectRefused(With("deepseek_v2", {{"attention_bias", true}}), "attention_bias");
  ExpectRefused(With("deepseek_v2", {{"scoring_func", "sigmoid"}}), "scoring_func");
  ExpectRefused(With("deepseek_v2", {{"mlp_bias", true}}), "mlp_bias");
  ExpectRefused(With("deepseek_v3", {{"topk_method", "greedy"}}), "topk_method");
  ExpectRefused(With("deepseek_v3", {{"num_key_value_heads", 2}}), "num_key_value_heads");
  ExpectRefused(With("phimoe", {{"num_experts_per_tok", 1}}), "num_experts_per_tok");
  ExpectRefused(With("llama4", {{"num_experts_per_tok", 2}}), "num_experts_per_tok");
  ExpectRefused(With("qwen3_5_moe", {{"attention_bias", true}}), "attention_bias");
  ExpectRefused(With("qwen3_5_moe", {{"attn_output_gate", false}}), "attn_output_gate");
  EXPECT_EQ(Read(With("qwen3_5_moe", {{"linear_conv_kernel_dim", 3}})).layers[0].attention.delta.conv_kernel,
            3u);
  json rope = Tiny("qwen3_moe")["rope_parameters"];
  rope["partial_rotary_factor"] = 0.5;
  ExpectRefused(With("qwen3_moe", {{"rope_parameters", rope}}), "partial_rotary_factor 0.5");
  rope = Tiny("qwen3_moe")["rope_parameters"];
  rope["new_trick"] = 1.5;
  ExpectRefused(With("qwen3_moe", {{"rope_parameters", rope}}), "rope_parameters: new_trick");
}

TEST(HfSwitches, TextModelsAreFoundInMultimodalConfigs) {
  const auto wrap = [](const std::string& family, const char* type, const char* architecture) {
    json text = Tiny(family);
    text.erase("architectures");
    return json{{"architectures", {architecture}},
                {"model_type", type},
                {"vision_config", {{"depth", 27}}},
                {"image_token_index", 200},
                {"text_config", text}};
  };
  const json qwen = wrap("qwen3_5_moe", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration");
  EXPECT_EQ(Read(qwen), Read(Tiny("qwen3_5_moe")));
  const json llama = wrap("llama4", "llama4", "Llama4ForConditionalGeneration");
  EXPECT_EQ(Read(llama), Read(Tiny("llama4")));
  json config = llama;
  config["text_config"]["model_type"] = "llama5_text";
  ExpectRefused(config, "llama5_text");
  config = llama;
  config["text_config"]["use_new_trick"] = 1;
  ExpectRefused(config, "text_config: use_new_trick");
  config = llama;
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  ExpectRefused(config, "quantization_config");
  config = llama;
  config["tie_word_embeddings"] = true;
  EXPECT_THAT(std::string(Error(config).message()), HasSubstr("tie_word_embeddings"));
  config = llama;
  config.erase("text_config");
  EXPECT_THAT(std::string(Error(config).message()), HasSubstr("text_config is missing"));
}

TEST(HfSwitches, RopeKindsTakeTransformersFactors) {
  const auto rope = [](json parameters) {
    parameters["rope_theta"] = 1e4;
    return Read(With("qwen3_moe", {{"rope_parameters", parameters}})).layers[0].attention.rope;
  };
  const RopeConfig linear = rope({{"rope_type", "linear"}, {"factor", 4}});
  EXPECT_EQ(linear.kind, RopeKind::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  const RopeConfig yarn =
      rope({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 128}});
  EXPECT_EQ(yarn.kind, RopeKind::kYarn);
  EXPECT_DOUBLE_EQ(yarn.attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_TRUE(yarn.truncate);
  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", 4}, {"attention_factor", 1.25}}).attention_factor, 1.25);
  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", 4}}).original_max_position, 512u);
  const RopeConfig scaled =
      rope({{"rope_type", "yarn"}, {"factor", 40}, {"mscale", 1.0}, {"mscale_all_dim", 0.5}});
  EXPECT_DOUBLE_EQ(scaled.attention_factor, (0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1));
  const RopeConfig llama3 = rope({{"rope_type", "llama3"},
                                  {"factor", 8},
                                  {"low_freq_factor", 1},
                                  {"high_freq_factor", 4},
                                  {"original_max_position_embeddings", 256}});
  EXPECT_EQ(llama3.kind, RopeKind::kLlama3);
  EXPECT_EQ(llama3.original_max_position, 256u);
  json factors = json::array();
  for (int i = 0; i < 16; ++i) factors.push_back(1 + i);
  const RopeConfig longrope = rope({{"rope_type", "longrope"},
                                    {"short_factor", factors},
                                    {"long_factor", factors},
                                    {"original_max_position_embeddings", 128}});
  EXPECT_EQ(longrope.kind, RopeKind::kLongRope);
  EXPECT_DOUBLE_EQ(longrope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(128.0)));
  EXPECT_EQ(longrope.long_attention_factor, longrope.attention_factor);
}

TEST(HfSwitches, HostileNumbersAreErrorsNamingTheField) {
  const auto error = [](const char* family, const json& changes) {
    const absl::Status status = Error(With(family, changes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("deepseek_v3", {{"n_group", 5}}), HasSubstr("in 5 groups"));
  EXPECT_THAT(error("deepseek_v3", {{"topk_group", 1}, {"num_experts_per_tok", 5}}), HasSubstr("take part"));
  EXPECT_THAT(error("deepseek_v3", {{"n_shared_experts", 60000}, {"moe_intermediate_size", 60000}}),
              HasSubstr("n_shared_experts"));
  EXPECT_THAT(error("deepseek_v3", {{"qk_rope_head_dim", 7}, {"qk_head_dim", 23}, {"head_dim", 7}}),
              HasSubstr("odd"));
  EXPECT_THAT(error("llama4", {{"no_rope_layers", {1, 0}}}), HasSubstr("no_rope_layers"));
  EXPECT_THAT(error("llama4", {{"moe_layers", {-1}}}), HasSubstr("moe_layers"));
  EXPECT_THAT(error("gpt_oss", {{"layer_types", {"full_attention"}}}), HasSubstr("layer_types"));
  EXPECT_THAT(error("gpt_oss", {{"layer_types", {1, 2}}}), HasSubstr("layer_types"));
  EXPECT_THAT(error("granitemoe", {{"logits_scaling", 0}}), HasSubstr("logits_scaling"));
  EXPECT_THAT(error("qwen3_5_moe", {{"linear_num_key_heads", 3}}), HasSubstr("linear_num_key_heads"));
  EXPECT_THAT(error("glm4_moe", {{"rope_parameters", "none"}}), HasSubstr("rope_parameters"));
}

TEST(HfSwitches, EveryFamilyIsListed) {
  const std::vector<std::string> families = SupportedFamilies();
  EXPECT_EQ(families, (std::vector<std::string>{"afmoe",
                                                "bailing_hybrid",
                                                "cohere2_moe",
                                                "deepseek",
                                                "deepseek_v2",
                                                "deepseek_v3",
                                                "deepseek_v32",
                                                "deepseek_v4",
                                                "dots1",
                                                "ernie4_5_moe",
                                                "exaone_moe",
                                                "flex_olmo",
                                                "gemma4",
                                                "gemma4_text",
                                                "glm4_moe",
                                                "glm4_moe_lite",
                                                "glm5_next",
                                                "glm_moe_dsa",
                                                "gpt_oss",
                                                "granitemoe",
                                                "granitemoehybrid",
                                                "hunyuan_v1_moe",
                                                "hy_v3",
                                                "jamba",
                                                "kimi_k2",
                                                "kimi_k25",
                                                "kimi_linear",
                                                "laguna",
                                                "lfm2_moe",
                                                "llama4",
                                                "llama4_text",
                                                "longcat_flash",
                                                "mellum",
                                                "mimo_v2_flash",
                                                "minimax_m2",
                                                "minimax_m3_vl",
                                                "minimax_m3_vl_text",
                                                "mistral4",
                                                "mixtral",
                                                "nemotron_h",
                                                "olmoe",
                                                "phimoe",
                                                "qwen2_moe",
                                                "qwen3_5_moe",
                                                "qwen3_5_moe_text",
                                                "qwen3_moe",
                                                "qwen3_next",
                                                "qwen3_vl_moe",
                                                "qwen4_exp",
                                                "qwen4_exp_text",
                                                "solar_open",
                                                "step3p5",
                                                "step3p7",
                                                "xverse"}));
}

// Members that published configs have and the tiny ones do not.
TEST(HfSwitches, MembersOfPublishedConfigsChangeNothing) {
  const auto same = [](const std::string& family, const json& more) {
    EXPECT_EQ(Read(With(family, more)), Read(Tiny(family))) << family;
  };
  same("qwen2_moe", {{"max_window_layers", 21}, {"sliding_window", 32768}, {"use_sliding_window", false}});
  same("qwen3_moe", {{"max_window_layers", 48}, {"mlp_only_layers", json::array()}});
  same("deepseek_v2", {{"aux_loss_alpha", 0.001},
                       {"auto_map", {{"AutoConfig", "configuration_deepseek.DeepseekV2Config"}}},
                       {"ep_size", 1},
                       {"scoring_func", "softmax"},
                       {"seq_aux", true}});
  same("glm4_moe", {{"num_nextn_predict_layers", 1}, {"partial_rotary_factor", 0.5}});
  same("gpt_oss", {{"experts_per_token", 4}, {"initial_context_length", 4096}});
  same("phimoe", {{"input_jitter_noise", 0.01}, {"original_max_position_embeddings", 4096}});
  same("llama4", {{"_attn_implementation_autoset", true},
                  {"for_llm_compressor", false},
                  {"no_rope_layers", json::array()},
                  {"attn_temperature_tuning", 4}});
  json rope = Tiny("qwen3_5_moe")["rope_parameters"];
  rope["mrope_interleaved"] = true;
  rope["mrope_section"] = {11, 11, 10};
  same("qwen3_5_moe", {{"attn_output_gate", true},
                       {"full_attention_interval", 4},
                       {"mamba_ssm_dtype", "float32"},
                       {"mlp_only_layers", json::array()},
                       {"mtp_num_hidden_layers", 1},
                       {"mtp_use_dedicated_embeddings", false},
                       {"rope_parameters", rope}});
}

TEST(HfSwitches, BareInfinitiesAreNumbersNotBrokenJson) {
  std::string text = Tiny("mixtral").dump();
  text.insert(1,
              R"("time_step_limit": [0.0, Infinity], "low": -Infinity, "word": "an Infinity \" Infinity", )");
  const auto parsed = ParseHfConfig(text, "", "dir");
  EXPECT_EQ(parsed.status().code(), absl::StatusCode::kUnimplemented) << parsed.status();
  EXPECT_THAT(std::string(parsed.status().message()), ::testing::HasSubstr("the member is not known"));
  text = Tiny("mixtral").dump();
  text.insert(1, R"("temperature": Infinity, "top_p": -Infinity, )");
  EXPECT_EQ(ParseHfConfig(text, "", "dir")->config, Read(Tiny("mixtral")));
}

TEST(HfSwitches, InfinitiesAreReadWhereTheRangeEndsThere) {
  const json root = {{"limits", {0.0, {{"__float__", "Infinity"}}}}, {"top", {{"__float__", "Infinity"}}}};
  const auto object = JsonObject::Of(root, "f");
  HfFields open(*object);
  EXPECT_EQ(open.Reals("limits", 0, INFINITY), (std::vector<double>{0, INFINITY}));
  EXPECT_EQ(open.Real("top", 0, INFINITY), INFINITY);
  EXPECT_TRUE(open.Finish().ok()) << open.Finish();
  HfFields closed(*object);
  closed.Reals("limits", 0, 1e30);
  EXPECT_EQ(closed.Finish().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
