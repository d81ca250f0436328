// Every family's config.json: what it becomes, in both generations of the file, with switches and defaults,
// and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "common/model/hf_config.h"
#include "common/strict_json.h"
#include "tests/support/folder_bytes.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kTinyFamilies[] = {"deepseek_v2", "deepseek_v3", "glm4_moe",  "gpt_oss",
                                         "granitemoe",  "llama4",      "mixtral",   "olmoe",
                                         "phimoe",      "qwen2_moe",   "qwen3_moe", "qwen3_5_moe"};

json Tiny(const std::string& family) {
  return json::parse(ReadAll("tests/data/tiny/" + family + "/config.json"));
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  auto parsed = ParseHfConfig(config.dump(), "", "dir");
  if (!parsed.ok()) return parsed.status();
  return parsed->config;
}

ModelConfig Read(const json& config) {
  const auto model = Parse(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelConfig{.layers = {{}}};
}

// The tiny family's config with some members replaced; discarded values remove theirs.
json With(const std::string& family, const json& changes) {
  json config = Tiny(family);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return config;
}

json Without(json config, const std::vector<const char*>& keys) {
  for (const char* key : keys) config.erase(key);
  return config;
}

// The same model as transformers 4 wrote it.
json OldGeneration(json config) {
  config["torch_dtype"] = config["dtype"];
  config.erase("dtype");
  json rope = config["rope_parameters"];
  config.erase("rope_parameters");
  config["rope_theta"] = rope["rope_theta"];
  rope.erase("rope_theta");
  if (rope.contains("partial_rotary_factor")) {
    config["partial_rotary_factor"] = rope["partial_rotary_factor"];
    rope.erase("partial_rotary_factor");
  }
  rope["type"] = rope["rope_type"];
  rope.erase("rope_type");
  config["rope_scaling"] = rope["type"] == "default" ? json() : rope;
  return config;
}

absl::Status Error(const json& config) { return Parse(config).status(); }

void ExpectRefused(const json& config, const char* word) {
  const absl::Status status = Error(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(word));
}

TEST(HfFamilies, BothGenerationsGiveTheSameModel) {
  for (const char* family : kTinyFamilies) {
    EXPECT_EQ(Read(Tiny(family)), Read(OldGeneration(Tiny(family)))) << family;
  }
}

TEST(HfFamilies, MembersThatNobodyKnowsAreRefusedUnlessTheyAreOff) {
  for (const char* family : kTinyFamilies) {
    ExpectRefused(With(family, {{"use_new_trick", 3}}), "use_new_trick 3");
    ExpectRefused(With(family, {{"use_new_trick", true}}), "use_new_trick true");
    EXPECT_TRUE(Error(With(family, {{"use_new_trick", false}, {"other_trick", nullptr}})).ok()) << family;
    EXPECT_TRUE(Error(With(family, {{"auto_map", {{"AutoModel", "x.Y"}}}, {"temperature", 0.7}})).ok());
  }
}

TEST(HfFamilies, UnknownSwitchesOfKnownMembersAreRefusedByFieldAndValue) {
  for (const char* family : kTinyFamilies) {
    ExpectRefused(With(family, {{"hidden_act", "relu2"}}), "hidden_act \"relu2\"");
    ExpectRefused(With(family, {{"quantization_config", {{"quant_method", "fp8"}}}}), "quant");
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
  json rope = Tiny("qwen3_moe")["rope_parameters"];
  rope["partial_rotary_factor"] = 0.5;
  ExpectRefused(With("qwen3_moe", {{"rope_parameters", rope}}), "partial_rotary_factor 0.5");
  rope = Tiny("qwen3_moe")["rope_parameters"];
  rope["new_trick"] = 1.5;
  ExpectRefused(With("qwen3_moe", {{"rope_parameters", rope}}), "rope_parameters: new_trick");
}

TEST(HfFamilies, Qwen3MoeHasHeadNormsAndDenseLayersInBetween) {
  const ModelConfig model = Read(With("qwen3_moe", {{"num_hidden_layers", 5},
                                                    {"decoder_sparse_step", 2},
                                                    {"mlp_only_layers", {3}},
                                                    {"attention_bias", true},
                                                    {"use_sliding_window", true},
                                                    {"sliding_window", 33}}));
  ASSERT_EQ(model.layers.size(), 5u);
  const AttentionConfig& a = model.layers[0].attention;
  EXPECT_EQ(a.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(a.head_dim, 32u);
  EXPECT_TRUE(a.qkv_bias && a.output_bias);
  EXPECT_EQ(a.sliding_window, 33u);
  EXPECT_EQ(a.rope.theta, 1e6);
  for (int i : {0, 2, 3, 4}) EXPECT_EQ(model.layers[i].moe.experts, 0u) << i;
  EXPECT_EQ(model.layers[3].moe.dense_width, 128u);
  EXPECT_EQ(model.layers[1].moe.experts, 16u);
  EXPECT_EQ(model.layers[1].moe.top_k, 4u);
  EXPECT_EQ(model.layers[1].moe.expert_width, 64u);
  EXPECT_TRUE(model.layers[1].moe.norm_topk_prob);
  EXPECT_FALSE(Read(With("qwen3_moe", {{"norm_topk_prob", false}})).layers[1].moe.norm_topk_prob);
  EXPECT_EQ(Read(With("qwen3_moe", {{"sliding_window", 33}})).layers[0].attention.sliding_window, 0u);
}

TEST(HfFamilies, Qwen2MoeHasAGatedSharedExpertAndWindowsInItsFirstLayers) {
  const ModelConfig plain = Read(Tiny("qwen2_moe"));
  EXPECT_EQ(plain.layers[1].moe.shared_width, 128u);
  EXPECT_TRUE(plain.layers[1].moe.shared_gate);
  EXPECT_FALSE(plain.layers[1].moe.norm_topk_prob);
  EXPECT_TRUE(plain.layers[1].attention.qkv_bias);
  EXPECT_FALSE(plain.layers[1].attention.output_bias);
  EXPECT_FALSE(Read(With("qwen2_moe", {{"qkv_bias", false}})).layers[0].attention.qkv_bias);
  json config = Without(With("qwen2_moe", {{"use_sliding_window", true},
                                           {"sliding_window", 17},
                                           {"max_window_layers", 3},
                                           {"num_hidden_layers", 6}}),
                        {"layer_types"});
  const ModelConfig sliding = Read(config);
  std::vector<uint32_t> windows;
  for (const LayerConfig& layer : sliding.layers) windows.push_back(layer.attention.sliding_window);
  EXPECT_EQ(windows, (std::vector<uint32_t>{17, 0, 17, 0, 0, 0}));
  config["layer_types"] = {"full_attention",    "sliding_attention", "full_attention",
                           "sliding_attention", "full_attention",    "full_attention"};
  windows.clear();
  for (const LayerConfig& layer : Read(config).layers) windows.push_back(layer.attention.sliding_window);
  EXPECT_EQ(windows, (std::vector<uint32_t>{0, 17, 0, 17, 0, 0}));
}

TEST(HfFamilies, OlmoeNormsAcrossHeadsAndClips) {
  const ModelConfig model = Read(With("olmoe", {{"clip_qkv", 2.5}}));
  EXPECT_EQ(model.layers[0].attention.qk_norm, QkNorm::kAcrossHeads);
  EXPECT_EQ(model.layers[0].attention.clip_qkv, 2.5f);
  EXPECT_EQ(Read(Tiny("olmoe")).layers[0].attention.clip_qkv, 0.0f);
  EXPECT_FALSE(model.layers[0].moe.norm_topk_prob);
  EXPECT_EQ(model.layers[0].moe.expert_width, 64u);
}

TEST(HfFamilies, GraniteMoeHasMultipliers) {
  const ModelConfig model = Read(Tiny("granitemoe"));
  EXPECT_EQ(model.embedding_scale, 3.0f);
  EXPECT_EQ(model.residual_scale, 0.6f);
  EXPECT_FLOAT_EQ(model.logit_scale, 1 / 0.8f);
  EXPECT_EQ(model.layers[0].attention.scale, 0.25f);
  EXPECT_EQ(model.layers[0].moe.router, RouterKind::kTopKSoftmax);
  EXPECT_TRUE(model.tied_embeddings);
  const ModelConfig plain = Read(Without(Tiny("granitemoe"), {"embedding_multiplier", "residual_multiplier",
                                                              "logits_scaling", "attention_multiplier"}));
  EXPECT_EQ(plain.embedding_scale, 1.0f);
  EXPECT_EQ(plain.logit_scale, 1.0f);
  EXPECT_EQ(plain.layers[0].attention.scale, 1.0f);
}

TEST(HfFamilies, Glm4MoeRotatesAPartOfEachHead) {
  const ModelConfig model = Read(Tiny("glm4_moe"));
  EXPECT_EQ(model.layers[0].attention.rope.dimensions, 16u);
  EXPECT_FALSE(model.layers[0].attention.rope.interleaved);
  EXPECT_TRUE(model.layers[0].attention.qkv_bias);
  EXPECT_FALSE(model.layers[0].attention.output_bias);
  EXPECT_EQ(model.layers[0].attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(model.layers[0].moe.dense_width, 128u);
  const MoeConfig& moe = model.layers[1].moe;
  EXPECT_EQ(moe.router, RouterKind::kSigmoidTopK);
  EXPECT_TRUE(moe.router_correction && moe.norm_topk_prob);
  EXPECT_EQ(moe.groups, 0u);
  EXPECT_EQ(moe.shared_width, 48u);
  EXPECT_FALSE(moe.shared_gate);
  const ModelConfig other = Read(With("glm4_moe", {{"use_qk_norm", true},
                                                   {"n_group", 4},
                                                   {"topk_group", 2},
                                                   {"routed_scaling_factor", 2.5},
                                                   {"first_k_dense_replace", 2},
                                                   {"n_shared_experts", 3}}));
  EXPECT_EQ(other.layers[0].attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(other.layers[1].moe.experts, 0u);
  EXPECT_EQ(other.layers[2].moe.groups, 4u);
  EXPECT_EQ(other.layers[2].moe.top_groups, 2u);
  EXPECT_EQ(other.layers[2].moe.group_score, GroupScore::kTopTwoSum);
  EXPECT_EQ(other.layers[2].moe.routed_scale, 2.5f);
  EXPECT_EQ(other.layers[2].moe.shared_width, 144u);
}

TEST(HfFamilies, DeepseekV2HasLatentAttentionWithYarnsScale) {
  const ModelConfig model = Read(Tiny("deepseek_v2"));
  const AttentionConfig& a = model.layers[2].attention;
  EXPECT_EQ(a.kind, AttentionKind::kLatent);
  EXPECT_EQ(
      a.latent,
      (LatentConfig{.q_rank = 0, .kv_rank = 32, .nope_dim = 16, .value_dim = 16, .norm_epsilon = 1e-6f}));
  EXPECT_EQ(a.head_dim, 24u);
  EXPECT_TRUE(a.rope.interleaved);
  EXPECT_EQ(a.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(a.rope.factor, 4.0);
  EXPECT_EQ(a.rope.original_max_position, 128u);
  EXPECT_EQ(a.rope.attention_factor, 1.0);  // mscale and mscale_all_dim cancel out
  const double mscale = 0.1 * 0.707 * std::log(4.0) + 1;
  EXPECT_FLOAT_EQ(a.scale, static_cast<float>(mscale * mscale / std::sqrt(24.0)));
  EXPECT_EQ(model.layers[0].moe.dense_width, 160u);
  EXPECT_EQ(model.layers[1].moe.shared_width, 128u);
  EXPECT_EQ(model.layers[1].moe.router, RouterKind::kSoftmaxTopK);
  EXPECT_FALSE(model.layers[1].moe.norm_topk_prob);
  const ModelConfig grouped = Read(With("deepseek_v2", {{"topk_method", "group_limited_greedy"},
                                                        {"n_group", 4},
                                                        {"topk_group", 2},
                                                        {"q_lora_rank", 24},
                                                        {"routed_scaling_factor", 16.0}}));
  EXPECT_EQ(grouped.layers[1].moe.groups, 4u);
  EXPECT_EQ(grouped.layers[1].moe.group_score, GroupScore::kMax);
  EXPECT_EQ(grouped.layers[1].moe.routed_scale, 16.0f);
  EXPECT_EQ(grouped.layers[1].attention.latent.q_rank, 24u);
}

TEST(HfFamilies, DeepseekV3HasASigmoidRouterWithGroups) {
  const ModelConfig model = Read(Tiny("deepseek_v3"));
  const MoeConfig& moe = model.layers[1].moe;
  EXPECT_EQ(moe.router, RouterKind::kSigmoidTopK);
  EXPECT_EQ(moe.groups, 4u);
  EXPECT_EQ(moe.top_groups, 2u);
  EXPECT_EQ(moe.group_score, GroupScore::kTopTwoSum);
  EXPECT_EQ(moe.routed_scale, 2.5f);
  EXPECT_TRUE(moe.norm_topk_prob && moe.router_correction);
  EXPECT_EQ(model.layers[0].attention.latent.q_rank, 24u);
  EXPECT_FLOAT_EQ(model.layers[0].attention.scale, 1 / std::sqrt(24.0f));
  EXPECT_TRUE(model.layers[0].attention.rope.interleaved);
  EXPECT_FALSE(Read(With("deepseek_v3", {{"rope_interleave", false}})).layers[0].attention.rope.interleaved);
  const ModelConfig published = Read(With(
      "deepseek_v3",
      {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}, {"moe_layer_freq", 1}, {"ep_size", 1}}));
  EXPECT_EQ(published, model);
}

TEST(HfFamilies, DeepseekMoeHasLlamasAttention) {
  const json config = {{"architectures", {"DeepseekForCausalLM"}},
                       {"model_type", "deepseek"},
                       {"aux_loss_alpha", 0.001},
                       {"bos_token_id", 0},
                       {"eos_token_id", 1},
                       {"attention_bias", false},
                       {"first_k_dense_replace", 1},
                       {"hidden_act", "silu"},
                       {"hidden_size", 64},
                       {"intermediate_size", 96},
                       {"max_position_embeddings", 4096},
                       {"moe_intermediate_size", 24},
                       {"moe_layer_freq", 1},
                       {"n_routed_experts", 8},
                       {"n_shared_experts", 2},
                       {"norm_topk_prob", false},
                       {"num_attention_heads", 4},
                       {"num_experts_per_tok", 3},
                       {"num_hidden_layers", 3},
                       {"num_key_value_heads", 4},
                       {"rope_scaling", nullptr},
                       {"rope_theta", 10000},
                       {"scoring_func", "softmax"},
                       {"seq_aux", true},
                       {"vocab_size", 256}};
  const ModelConfig model = Read(config);
  EXPECT_EQ(model.layers[0].moe.dense_width, 96u);
  EXPECT_EQ(model.layers[1].moe.shared_width, 48u);
  EXPECT_EQ(model.layers[1].attention.kind, AttentionKind::kGrouped);
  EXPECT_EQ(model.layers[1].attention.head_dim, 16u);
  EXPECT_FALSE(model.layers[1].moe.norm_topk_prob);
}

TEST(HfFamilies, XverseSharesItsFirstExperts) {
  const json config = {{"architectures", {"XverseForCausalLM"}},
                       {"model_type", "xverse"},
                       {"hidden_size", 64},
                       {"intermediate_size", 24},
                       {"max_position_embeddings", 8192},
                       {"num_attention_heads", 4},
                       {"num_hidden_layers", 2},
                       {"num_experts", 8},
                       {"num_shared_experts", 2},
                       {"moe_top_k", 3},
                       {"rms_norm_eps", 1e-6},
                       {"rope_theta", 500000},
                       {"vocab_size", 256}};
  const ModelConfig model = Read(config);
  EXPECT_EQ(model.layers[1].moe.experts, 8u);
  EXPECT_EQ(model.layers[1].moe.top_k, 3u);
  EXPECT_EQ(model.layers[1].moe.shared_width, 48u);
  EXPECT_EQ(model.layers[1].attention.rope.theta, 5e5);
}

TEST(HfFamilies, PhimoeHasLayerNormBiasesAndLongRope) {
  const ModelConfig plain = Read(Tiny("phimoe"));
  EXPECT_EQ(plain.norm, NormKind::kLayer);
  EXPECT_TRUE(plain.head_bias);
  EXPECT_TRUE(plain.layers[0].attention.qkv_bias && plain.layers[0].attention.output_bias);
  EXPECT_EQ(plain.layers[0].moe.router, RouterKind::kSparseMixer);
  EXPECT_EQ(plain.layers[0].moe.router_jitter, 0.01f);
  json config = OldGeneration(Tiny("phimoe"));
  config["rope_scaling"] = {{"type", "longrope"},
                            {"short_factor", {1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5}},
                            {"long_factor", {1, 2, 3, 4, 5, 6, 7, 8}},
                            {"short_mscale", 1.1},
                            {"long_mscale", 1.3},
                            {"original_max_position_embeddings", 64}};
  config["original_max_position_embeddings"] = 64;
  const RopeConfig rope = Read(config).layers[0].attention.rope;
  EXPECT_EQ(rope.kind, RopeKind::kLongRope);
  EXPECT_EQ(rope.long_factors, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(rope.short_factors[1], 1.5);
  EXPECT_EQ(rope.attention_factor, 1.1);
  EXPECT_EQ(rope.long_attention_factor, 1.3);
  EXPECT_EQ(rope.original_max_position, 64u);
  EXPECT_EQ(rope.factor, 8.0);
  config["rope_scaling"]["long_factor"].erase(0);
  EXPECT_THAT(std::string(Error(config).message()), HasSubstr("8 and 7 numbers, expected 8"));
  config["rope_scaling"]["long_factor"] = {1, 2, 3, 4, 5, 6, 7, 8};
  config["rope_scaling"].erase("long_mscale");
  EXPECT_THAT(std::string(Error(config).message()), HasSubstr("long_mscale"));
}

TEST(HfFamilies, GptOssAlternatesWindowsAndHasBiasesEverywhere) {
  const ModelConfig model = Read(Tiny("gpt_oss"));
  EXPECT_EQ(model.layers[0].attention.sliding_window, 16u);
  EXPECT_EQ(model.layers[1].attention.sliding_window, 0u);
  const AttentionConfig& a = model.layers[0].attention;
  EXPECT_TRUE(a.sinks && a.qkv_bias && a.output_bias);
  EXPECT_EQ(a.rope.kind, RopeKind::kYarn);
  EXPECT_FALSE(a.rope.truncate);
  EXPECT_DOUBLE_EQ(a.rope.attention_factor, 0.1 * std::log(32.0) + 1);
  const MoeConfig& moe = model.layers[0].moe;
  EXPECT_TRUE(moe.router_bias && moe.expert_bias);
  EXPECT_EQ(moe.router, RouterKind::kTopKSoftmax);
  EXPECT_EQ(moe.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(moe.activation_alpha, 1.702f);
  EXPECT_EQ(moe.activation_limit, 7.0f);
  EXPECT_EQ(Read(Without(Tiny("gpt_oss"), {"layer_types", "rope_parameters", "swiglu_alpha"})), model);
  const json mxfp4 = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  EXPECT_EQ(Read(With("gpt_oss", {{"quantization_config", mxfp4}})), model);
  ExpectRefused(With("gpt_oss", {{"quantization_config", {{"quant_method", "mxfp8"}}}}),
                "quant_method \"mxfp8\"");
}

TEST(HfFamilies, Llama4HasChunksTemperaturesAndDenseLayersInBetween) {
  const ModelConfig model = Read(Tiny("llama4"));
  EXPECT_EQ(model.family, "llama4_text");
  const AttentionConfig& chunked = model.layers[0].attention;
  const AttentionConfig& full = model.layers[3].attention;
  EXPECT_EQ(chunked.chunk, 64u);
  EXPECT_EQ(chunked.qk_norm, QkNorm::kPerHeadAfterRope);
  EXPECT_TRUE(chunked.rope.interleaved);
  EXPECT_EQ(chunked.temperature_scale, 0.0f);
  EXPECT_EQ(full.chunk, 0u);
  EXPECT_EQ(full.qk_norm, QkNorm::kNone);
  EXPECT_EQ(full.rope.kind, RopeKind::kNone);
  EXPECT_EQ(full.temperature_scale, 0.1f);
  EXPECT_EQ(full.temperature_floor, 8192u);
  EXPECT_EQ(model.layers[0].moe.router, RouterKind::kSigmoidInput);
  EXPECT_EQ(model.layers[0].moe.shared_width, 64u);
  const json defaults =
      Without(Tiny("llama4"), {"layer_types", "no_rope_layers", "moe_layers", "no_rope_layer_interval"});
  EXPECT_EQ(Read(defaults), model);
  json config = defaults;
  config["interleave_moe_layer_step"] = 2;
  config["attn_temperature_tuning"] = 0;
  config["use_qk_norm"] = false;
  config["attention_chunk_size"] = nullptr;
  const ModelConfig other = Read(config);
  EXPECT_EQ(other.layers[0].moe.dense_width, 128u);
  EXPECT_EQ(other.layers[1].moe.experts, 8u);
  EXPECT_EQ(other.layers[3].attention.temperature_scale, 0.0f);
  EXPECT_EQ(other.layers[0].attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(other.layers[0].attention.chunk, 0u);
  config["moe_layers"] = {0};
  EXPECT_EQ(Read(config).layers[0].moe.experts, 8u);
  EXPECT_EQ(Read(config).layers[1].moe.experts, 0u);
}

TEST(HfFamilies, Qwen35MoeHasDeltaLayersBetweenGatedAttention) {
  const ModelConfig model = Read(Tiny("qwen3_5_moe"));
  EXPECT_EQ(model.layers[0].attention.kind, AttentionKind::kGatedDelta);
  EXPECT_EQ(
      model.layers[0].attention.delta,
      (DeltaConfig{.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16, .conv_kernel = 4}));
  const AttentionConfig& full = model.layers[3].attention;
  EXPECT_EQ(full.kind, AttentionKind::kGrouped);
  EXPECT_TRUE(full.output_gate);
  EXPECT_EQ(full.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(full.rope.dimensions, 8u);
  EXPECT_TRUE(model.layers[0].moe.shared_gate);
  EXPECT_TRUE(model.layers[0].moe.norm_topk_prob);
  json config = Without(Tiny("qwen3_5_moe"), {"layer_types"});
  EXPECT_EQ(Read(config), model);
  config["full_attention_interval"] = 2;
  EXPECT_EQ(Read(config).layers[1].attention.kind, AttentionKind::kGrouped);
}

TEST(HfFamilies, TextModelsAreFoundInMultimodalConfigs) {
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
  config["quantization_config"] = {{"quant_method", "compressed-tensors"}};
  ExpectRefused(config, "quantization_config");
  config = llama;
  config["tie_word_embeddings"] = true;
  EXPECT_THAT(std::string(Error(config).message()), HasSubstr("tie_word_embeddings"));
  config = llama;
  config.erase("text_config");
  EXPECT_THAT(std::string(Error(config).message()), HasSubstr("text_config is missing"));
}

TEST(HfFamilies, RopeKindsTakeTransformersFactors) {
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

TEST(HfFamilies, HostileNumbersAreErrorsNamingTheField) {
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

TEST(HfFamilies, EveryFamilyIsListed) {
  const std::vector<std::string> families = SupportedFamilies();
  EXPECT_EQ(families, (std::vector<std::string>{"deepseek", "deepseek_v2", "deepseek_v3", "glm4_moe",
                                                "gpt_oss", "granitemoe", "llama4", "llama4_text", "mixtral",
                                                "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe",
                                                "qwen3_5_moe_text", "qwen3_moe", "xverse"}));
}

}  // namespace
}  // namespace sluice
