// Config of each family: its ModelConfig, switches and defaults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/base/json_reader.h"
#include "common/model/hf_config.h"
#include "tests/common/model/tiny_configs.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

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

TEST(HfFamilies, Qwen2MoeHasGatedSharedExpertAndWindows) {
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

TEST(HfFamilies, Llama4HasChunksTemperaturesAndDenseLayers) {
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

TEST(HfFamilies, KimiK2IsDeepseekV3) {
  EXPECT_EQ(Read(With("deepseek_v3", {{"model_type", "kimi_k2"}})), Read(Tiny("deepseek_v3")));
}

TEST(HfFamilies, MinimaxM2HasPartialRotaryAndNormsAcrossHeads) {
  const json config = json::parse(ReadAll("tests/data/formats/fp8_minimax_m2/config.json"));
  const ModelConfig model = Read(config);
  EXPECT_EQ(model.family, "minimax_m2");
  const AttentionConfig& attention = model.layers[0].attention;
  EXPECT_EQ(attention.qk_norm, QkNorm::kAcrossHeads);
  EXPECT_EQ(attention.rope.dimensions, 16u);
  EXPECT_EQ(attention.head_dim, 32u);
  const MoeConfig& moe = model.layers[1].moe;
  EXPECT_EQ(moe.router, RouterKind::kSigmoidTopK);
  EXPECT_TRUE(moe.router_correction && moe.norm_topk_prob);
  EXPECT_EQ(moe.shared_width, 0u);
  json newer = Without(config, {"rotary_dim", "rope_scaling", "rope_theta"});
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e6}, {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(Read(newer), model);
  json published = config;
  published["attn_type_list"] = {1, 1};
  published["use_mtp"] = true;
  published["layernorm_mlp_beta"] = 1.0;
  EXPECT_EQ(Read(published), model);
  published["attn_type_list"] = {1, 0};
  ExpectRefused(published, "attn_type_list");
}

}  // namespace
}  // namespace sluice
