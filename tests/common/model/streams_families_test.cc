// Configs of families with residual streams, under published and written names.
#include <cmath>

#include "tests/common/model/tiny_configs.h"

namespace sluice {
namespace {

json Changed(json config, const json& changes) {
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return config;
}

// Members that both families have.
json Common() {
  return {{"vocab_size", 512},        {"hidden_size", 48},     {"num_hidden_layers", 4},
          {"num_attention_heads", 4}, {"q_lora_rank", 24},     {"n_routed_experts", 8},
          {"num_experts_per_tok", 3}, {"n_shared_experts", 1}, {"moe_intermediate_size", 32},
          {"rms_norm_eps", 1e-5},     {"hc_mult", 4},          {"hc_sinkhorn_iters", 20},
          {"index_n_heads", 8},       {"index_head_dim", 16},  {"max_position_embeddings", 512},
          {"swiglu_limit", 1.0}};
}

json GlmText() {
  return Changed(
      Common(),
      {{"model_type", "glm5_next_text"},
       {"intermediate_size", 96},
       {"kv_lora_rank", 32},
       {"qk_nope_head_dim", 16},
       {"qk_rope_head_dim", 0},
       {"v_head_dim", 16},
       {"index_kpool", 4},
       {"index_topk", 8},
       {"linear_attn_config",
        {{"head_dim", 16}, {"num_heads", 4}, {"short_conv_kernel_size", 4}, {"gate_lower_bound", -5.0}}}});
}

json Glm(const json& changes) {
  return {{"architectures", {"Glm5NextForConditionalGeneration"}},
          {"model_type", "glm5_next"},
          {"text_config", Changed(GlmText(), changes)}};
}

json Deepseek(const json& changes) {
  return Changed(Changed(Common(), {{"architectures", {"DeepseekV4ForCausalLM"}},
                                    {"model_type", "deepseek_v4"},
                                    {"num_key_value_heads", 1},
                                    {"head_dim", 32},
                                    {"qk_rope_head_dim", 8},
                                    {"sliding_window", 8},
                                    {"o_groups", 2},
                                    {"o_lora_rank", 16},
                                    {"index_topk", 3},
                                    {"num_hash_layers", 1},
                                    {"rope_theta", 10000.0},
                                    {"compress_ratios", {0, 4, 128, 4, 0}}}),
                 changes);
}

TEST(StreamsFamilies, Glm5NextTakesPublishedAndWrittenNames) {
  const ModelConfig model = Read(Glm({}));
  EXPECT_EQ(model.streams.count, 4u);
  EXPECT_TRUE(model.streams.mean_output);
  EXPECT_EQ(model.layers[2].attention.kind, AttentionKind::kGatedDelta);
  EXPECT_EQ(model.layers[2].attention.delta.decay_floor, -5);
  EXPECT_EQ(model.layers[2].moe.experts, 0u);
  EXPECT_EQ(model.layers[2].moe.activation, Activation::kLimitedSilu);
  const AttentionConfig& full = model.layers[3].attention;
  EXPECT_EQ(full.rope.kind, RopeKind::kNone);
  EXPECT_EQ(full.scale, 0.25f);
  EXPECT_EQ(full.latent.norm_epsilon, 1e-5f);
  EXPECT_EQ(full.index.top, 3u);
  EXPECT_EQ(full.index.block, 4u);
  EXPECT_EQ(DensePositions(full.index), 11u);
  EXPECT_EQ(model.layers[3].moe.experts, 8u);
  json written =
      Glm({{"linear_head_dim", 16},
           {"linear_num_heads", 4},
           {"linear_conv_kernel_dim", 4},
           {"linear_lower_bound", -5.0},
           {"layer_types", {"linear_attention", "linear_attention", "linear_attention", "indexed_attention"}},
           {"mlp_layer_types", {"dense", "dense", "dense", "sparse"}}});
  written["text_config"].erase("linear_attn_config");
  EXPECT_EQ(Read(written), model);
}

TEST(StreamsFamilies, Glm5NextWithoutATailIsRefused) {
  ExpectRefused(Glm({{"index_kpool_always_select_tail", false}}), "index_kpool_always_select_tail");
  ExpectRefused(Glm({{"qk_rope_head_dim", 8}}), "qk_rope_head_dim");
  ExpectRefused(Glm({{"q_lora_rank", nullptr}}), "q_lora_rank");
  EXPECT_EQ(Error(Glm({{"index_topk", 3}})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Error(Glm({{"index_kpool", 3}})).code(), absl::StatusCode::kInvalidArgument);
}

TEST(StreamsFamilies, DeepseekV4TakesRatiosAndTypes) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 16.0}, {"original_max_position_embeddings", 64}};
  const ModelConfig model = Read(Deepseek({{"rope_scaling", yarn}}));
  EXPECT_FALSE(model.streams.mean_output);
  for (size_t i = 0; i < 4; ++i) {
    const AttentionConfig& a = model.layers[i].attention;
    EXPECT_EQ(a.kind, AttentionKind::kCompressed) << i;
    EXPECT_EQ(a.compress.rate, i == 0 ? 0u : i == 2 ? 128u : 4u) << i;
    EXPECT_EQ(a.compress.overlap, i % 2 == 1) << i;
    EXPECT_EQ(a.index.heads, i % 2 == 1 ? 8u : 0u) << i;
    EXPECT_EQ(a.rope.kind, i == 0 ? RopeKind::kDefault : RopeKind::kYarn) << i;
    EXPECT_EQ(a.rope.theta, i == 0 ? 10000.0 : 160000.0) << i;
    EXPECT_EQ(a.rope.attention_factor, 1.0) << i;
    EXPECT_EQ(model.layers[i].moe.token_experts, i == 0) << i;
    EXPECT_EQ(model.layers[i].moe.router_correction, i > 0) << i;
  }
  EXPECT_EQ(model.layers[1].attention.index.top, 4u);
  EXPECT_EQ(model.layers[1].moe.router, RouterKind::kSqrtSoftplusTopK);
  json typed = Deepseek(
      {{"rope_scaling", yarn},
       {"compress_rates", {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}}},
       {"layer_types",
        {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
         "compressed_sparse_attention"}}});
  typed.erase("compress_ratios");
  EXPECT_EQ(Read(typed), model);
  ExpectRefused(Deepseek({{"scoring_func", "sigmoid"}}), "scoring_func");
  ExpectRefused(Deepseek({{"num_key_value_heads", 2}}), "num_key_value_heads");
  EXPECT_EQ(Error(Deepseek({{"compress_ratios", {0, 4}}})).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Error(Deepseek({{"compress_ratios", {0, 4, 5, 4}}})).code(), absl::StatusCode::kInvalidArgument);
}

// A multimodal family's config with other members of its text model.
json WithText(const std::string& family, const json& changes) {
  json config = Tiny(family);
  for (const auto& [key, value] : changes.items()) config["text_config"][key] = value;
  return config;
}

TEST(StreamsFamilies, Qwen4ExpReadsStreamsBlocksAndNgrams) {
  const ModelConfig model = Read(Tiny("qwen4_exp"));
  EXPECT_EQ(model.family, "qwen4_exp_text");
  EXPECT_EQ(model.streams, (StreamConfig{.count = 2, .rank = 8}));
  EXPECT_FALSE(HasFinalNorm(model));
  EXPECT_FALSE(model.layers[1].pre_norms);
  const AttentionConfig& full = model.layers[1].attention;
  EXPECT_TRUE(full.output_gate);
  EXPECT_TRUE(full.index.summed && full.index.pooled && !full.index.weighted);
  EXPECT_EQ(full.index.top, 3u);
  EXPECT_EQ(full.index.block, 4u);
  EXPECT_TRUE(model.layers[0].attention.delta.sigmoid_gate);
  const NgramConfig& first = model.layers[0].ngrams;
  EXPECT_EQ(first, (NgramConfig{.size = 3,
                                .heads = 1,
                                .width = 4,
                                .rows = first.rows,
                                .base = 2050,
                                .seed = 77,
                                .end = 2,
                                .kernel = 4}));
  EXPECT_EQ(first.rows, 4128u);  // 2053 + 2063, a multiple of 16
  EXPECT_FALSE(HasNgrams(model.layers[1]));
  EXPECT_EQ(model.layers[2].ngrams.layer, 1u);
  EXPECT_FALSE(HasNgrams(Read(WithText("qwen4_exp", {{"ple_layer_ids", json::array()}})).layers[0]));
}

TEST(StreamsFamilies, Qwen4ExpRefusesWhatItCannotCompute) {
  ExpectRefused(WithText("qwen4_exp", {{"output_gate_type", "tanh"}}), "output_gate_type");
  ExpectRefused(WithText("qwen4_exp", {{"indexer_kv_heads", 2}}), "indexer_kv_heads");
  ExpectRefused(WithText("qwen4_exp", {{"eos_token_id", {1, 2}}}), "eos_token_id");
  const auto error = [](const json& changes) {
    return ParseHfConfig(WithText("qwen4_exp", changes).dump(), "", "model").status().ToString();
  };
  EXPECT_THAT(error({{"ple_layer_ids", {3, 1}}}), testing::HasSubstr("not ascending"));
  EXPECT_THAT(error({{"ple_embed_dim", 9}}), testing::HasSubstr("ple_embed_dim"));
  EXPECT_THAT(error({{"indexer_budget", 3}}), testing::HasSubstr("indexer_budget"));
}

}  // namespace
}  // namespace sluice
