// Config of each family of 2026: its ModelConfig, switches and defaults, under published and written names.
#include <cmath>

#include "tests/common/model/tiny_configs.h"

namespace sluice {
namespace {

// Returns a wrapper's config with members of its text_config replaced; null erases.
json WithText(const std::string& family, const json& changes) {
  json config = Tiny(family);
  for (const auto& [key, value] : changes.items()) {
    config["text_config"][key] = value;
    if (value.is_null()) config["text_config"].erase(key);
  }
  return config;
}

void ExpectWrong(const json& config, const char* word) {
  const absl::Status status = Error(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(word));
}

TEST(Families2026, HyV3TakesPublishedAndWrittenNames) {
  const ModelConfig model = Read(Tiny("hy_v3"));
  EXPECT_EQ(model.layers[0].moe.dense_width, 128u);
  EXPECT_EQ(model.layers[0].attention.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(model.layers[0].attention.rope.theta, 11158840.0);
  EXPECT_EQ(model.layers[1].moe.router, RouterKind::kSigmoidTopK);
  EXPECT_EQ(model.layers[1].moe.routed_scale, 2.826f);
  EXPECT_EQ(model.layers[1].moe.shared_width, 32u);
  EXPECT_EQ(Read(Without(Tiny("hy_v3"), {"moe_intermediate_size"})), model);
  EXPECT_EQ(Read(Without(Tiny("hy_v3"), {"rope_theta", "router_scaling_factor"})), model);
  const ModelConfig two = Read(With("hy_v3", {{"first_k_dense_replace", 2}, {"num_shared_experts", 3}}));
  EXPECT_EQ(two.layers[1].moe.experts, 0u);
  EXPECT_EQ(two.layers[2].moe.shared_width, 96u);
  EXPECT_EQ(Read(With("hy_v3", {{"mlp_layer_types", {"dense", "sparse", "sparse"}}})), model);
  ExpectRefused(With("hy_v3", {{"moe_router_use_sigmoid", false}}), "moe_router_use_sigmoid");
  ExpectRefused(With("hy_v3", {{"route_norm", false}}), "route_norm");
  ExpectRefused(With("hy_v3", {{"mlp_bias", true}}), "mlp_bias");
}

TEST(Families2026, ExaoneTurnsOnlyInItsWindows) {
  const ModelConfig model = Read(Tiny("exaone_moe"));
  for (size_t i = 0; i < 4; ++i) {
    const AttentionConfig& a = model.layers[i].attention;
    EXPECT_EQ(a.rope.kind, i == 3 ? RopeKind::kNone : RopeKind::kDefault) << i;
    EXPECT_EQ(a.sliding_window, i == 3 ? 0u : 16u) << i;
    EXPECT_EQ(model.layers[i].moe.experts, i == 0 ? 0u : 8u) << i;
  }
  const json numbered = Without(With("exaone_moe", {{"sliding_window_pattern", 4}}), {"layer_types"});
  EXPECT_EQ(Read(numbered), model);
  // Without a window every layer turns.
  json plain = With("exaone_moe", {{"sliding_window", nullptr}});
  plain["layer_types"] = {"full_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(Read(plain).layers[3].attention.rope.kind, RopeKind::kDefault);
  const json unlisted = Without(Tiny("exaone_moe"), {"first_k_dense_replace", "is_moe_layer"});
  EXPECT_EQ(Read(unlisted), model);
  ExpectRefused(With("exaone_moe", {{"is_moe_layer", {true, true, true, true}}}), "is_moe_layer");
  ExpectRefused(With("exaone_moe", {{"scoring_func", "softmax"}}), "scoring_func");
  json published = Tiny("exaone_moe");
  published["architectures"] = {"ExaoneMoEForCausalLM"};
  EXPECT_EQ(Read(published), model);
}

TEST(Families2026, MellumHasARopeForEachTypeOfLayer) {
  const ModelConfig model = Read(Tiny("mellum"));
  EXPECT_EQ(model.layers[0].attention.sliding_window, 16u);
  EXPECT_EQ(model.layers[0].attention.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(model.layers[2].attention.sliding_window, 0u);
  EXPECT_EQ(model.layers[2].attention.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(model.layers[2].attention.rope.factor, 16.0);
  const ModelConfig untold = Read(Without(Tiny("mellum"), {"rope_parameters", "layer_types"}));
  EXPECT_EQ(untold.layers[0].attention.rope.theta, 5e5);
  EXPECT_EQ(untold.layers[0].attention.sliding_window, 0u);
  EXPECT_EQ(
      Read(With("mellum", {{"mlp_layer_types", {"dense", "sparse", "sparse"}}})).layers[0].moe.dense_width,
      128u);
  EXPECT_EQ(Read(With("mellum", {{"norm_topk_prob", false}})).layers[0].moe.norm_topk_prob, false);
}

TEST(Families2026, SolarHasNoNormsOnHeads) {
  const ModelConfig model = Read(Tiny("solar_open"));
  EXPECT_EQ(model.layers[0].attention.qk_norm, QkNorm::kNone);
  EXPECT_EQ(model.layers[0].attention.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(model.layers[0].moe.shared_width, 48u);
  const ModelConfig partial =
      Read(With("solar_open", {{"partial_rotary_factor", 0.5}, {"attention_bias", true}}));
  EXPECT_EQ(partial.layers[0].attention.rope.dimensions, 16u);
  EXPECT_TRUE(partial.layers[0].attention.qkv_bias && !partial.layers[0].attention.output_bias);
  ExpectRefused(With("solar_open", {{"use_qk_norm", true}}), "use_qk_norm");
  ExpectRefused(With("solar_open", {{"first_k_dense_replace", 1}}), "first_k_dense_replace");
}

TEST(Families2026, KimiK25IsDeepseekV3OfItsTextConfig) {
  const ModelConfig model = Read(Tiny("kimi_k25"));
  EXPECT_EQ(model.family, "deepseek_v3");
  EXPECT_EQ(model.layers[0].attention.kind, AttentionKind::kLatent);
  EXPECT_EQ(Read(WithText("kimi_k25", {{"model_type", "deepseek_v3"}})), model);
  ExpectRefused(WithText("kimi_k25", {{"model_type", "mixtral"}}), "mixtral");
}

TEST(Families2026, MinimaxM3ChoosesBlocksInSomeLayers) {
  const ModelConfig model = Read(Tiny("minimax_m3"));
  EXPECT_EQ(model.max_position, 512u);
  const IndexConfig index = {.heads = 2, .head_dim = 16, .top = 3, .block = 4, .local = 1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(model.layers[i].attention.index, i % 2 == 1 ? index : IndexConfig()) << i;
  }
  EXPECT_EQ(model.layers[0].moe.dense_width, 96u);
  EXPECT_EQ(model.layers[0].moe.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(model.layers[0].moe.activation_limit, 1.5f);
  EXPECT_EQ(model.layers[1].moe.shared_width, 48u);
  EXPECT_EQ(model.layers[1].moe.routed_scale, 2.0f);
  EXPECT_EQ(model.layers[1].attention.rope.dimensions, 16u);
  EXPECT_EQ(Read(WithText("minimax_m3", {{"rotary_dim", 8}})).layers[1].attention.rope.dimensions, 8u);
  EXPECT_EQ(
      Read(WithText("minimax_m3", {{"sparse_attention_config", nullptr}})).layers[1].attention.index.heads,
      0u);
  const ModelConfig flat = Read(WithText(
      "minimax_m3",
      {{"sparse_attention_config", nullptr},
       {"index_topk_blocks", 5},
       {"index_block_size", 8},
       {"layer_types", {"full_attention", "minimax_m3_sparse", "full_attention", "full_attention"}}}));
  EXPECT_EQ(flat.layers[1].attention.index.top, 5u);
  EXPECT_EQ(flat.layers[1].attention.index.block, 8u);
  EXPECT_EQ(flat.layers[3].attention.index.heads, 0u);
  json first_blocks = Tiny("minimax_m3");
  first_blocks["text_config"]["sparse_attention_config"]["sparse_init_block"] = 1;
  ExpectRefused(first_blocks, "sparse_init_block");
  ExpectRefused(WithText("minimax_m3", {{"hidden_act", "gelu"}}), "hidden_act");
}

TEST(Families2026, NemotronTakesItsLayersFromThePattern) {
  const ModelConfig model = Read(Tiny("nemotron_h"));
  EXPECT_EQ(Read(Without(Tiny("nemotron_h"), {"num_hidden_layers"})), model);
}

TEST(Families2026, SwitchesOfEarlierFamiliesAreRead) {
  const ModelConfig latent = Read(With("nemotron_h", {{"moe_latent_size", 32}}));
  EXPECT_EQ(latent.latent_width, 32u);
  EXPECT_TRUE(latent.layers[0].moe.shared_apart);
  const ModelConfig conv = Read(With("lfm2_moe", {{"conv_bias", true}}));
  EXPECT_TRUE(conv.layers[0].attention.conv.bias && conv.layers[0].attention.output_bias);
  const ModelConfig ernie = Read(With("ernie4_5_moe", {{"use_bias", true}}));
  EXPECT_TRUE(ernie.head_bias && ernie.layers[0].attention.qkv_bias && ernie.layers[0].attention.output_bias);
  EXPECT_TRUE(ernie.layers[0].moe.ffn_bias && ernie.layers[1].moe.ffn_bias);
}

TEST(Families2026, LagunaHasHeadsAndARopeByLayer) {
  const ModelConfig model = Read(Tiny("laguna"));
  EXPECT_EQ(model.layers[0].attention.heads, 4u);
  EXPECT_EQ(model.layers[1].attention.heads, 6u);
  EXPECT_EQ(model.layers[0].attention.rope.kind, RopeKind::kYarn);
  EXPECT_EQ(model.layers[0].attention.rope.dimensions, 8u);
  EXPECT_EQ(model.layers[1].attention.rope.dimensions, 16u);
  EXPECT_EQ(model.layers[1].attention.sliding_window, 16u);
  EXPECT_TRUE(model.layers[1].attention.output_gate && model.layers[1].attention.gate_per_head);
  EXPECT_EQ(model.layers[1].attention.gate_activation, GateActivation::kSoftplus);
  EXPECT_EQ(model.layers[0].moe.dense_width, 128u);
  EXPECT_EQ(model.layers[1].moe.norm_epsilon, 0.0f);
  EXPECT_FALSE(Read(With("laguna", {{"gating", "per-element"}})).layers[0].attention.gate_per_head);
  EXPECT_EQ(Read(With("laguna", {{"gating", "per-head"}})), model);
  EXPECT_FALSE(Read(With("laguna", {{"gating", false}})).layers[0].attention.output_gate);
  EXPECT_EQ(Read(With("laguna", {{"moe_router_logit_softcapping", 8.0}})).layers[1].moe.router_cap, 8.0f);
  EXPECT_EQ(Read(Without(Tiny("laguna"), {"mlp_layer_types"})), model);
  ExpectRefused(With("laguna", {{"gating", "per-row"}}), "gating");
  ExpectRefused(With("laguna", {{"moe_apply_router_weight_on_input", true}}), "apply_router_weight");
  ExpectWrong(With("laguna", {{"num_attention_heads_per_layer", {4, 6}}}), "2 entries for 3 layers");
  ExpectWrong(With("laguna", {{"num_attention_heads_per_layer", {4, 5, 6}}}), "no multiple");
}

TEST(Families2026, StepHasLimitsByLayer) {
  const ModelConfig model = Read(Tiny("step3p5"));
  EXPECT_EQ(model.layers[0].attention.heads, 4u);
  EXPECT_EQ(model.layers[1].attention.heads, 6u);
  EXPECT_EQ(model.layers[0].attention.rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(model.layers[0].attention.rope.theta, 5e6);
  EXPECT_EQ(model.layers[1].attention.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(model.layers[1].attention.rope.theta, 1e4);
  EXPECT_EQ(model.layers[1].moe.dense_width, 96u);
  EXPECT_EQ(model.layers[2].moe.activation, Activation::kSilu);
  EXPECT_FALSE(model.layers[2].moe.shared_apart);
  EXPECT_EQ(model.layers[3].moe.activation, Activation::kClampedSilu);
  EXPECT_EQ(model.layers[3].moe.activation_limit, 0.5f);
  EXPECT_GT(model.layers[3].moe.shared_limit, 1e20f);
  EXPECT_EQ(model.layers[4].moe.shared_limit, 0.8f);
  const ModelConfig other = Read(With("step3p5", {{"moe_layers_enum", {1, 2, 3, 4}},
                                                  {"swiglu_limits", nullptr},
                                                  {"swiglu_limits_shared", {2, nullptr, 0, 0, 0}},
                                                  {"query_pre_attn_scalar", 64}}));
  EXPECT_EQ(other.layers[1].moe.experts, 8u);
  EXPECT_EQ(other.layers[0].moe.activation_limit, 2.0f);  // a dense layer takes the shared expert's
  EXPECT_EQ(other.layers[0].attention.scale, 0.125f);
  ExpectRefused(With("step3p5", {{"moe_layers_enum", "2,x"}}), "moe_layers_enum");
  ExpectRefused(With("step3p5", {{"sink", true}}), "sink");
  ExpectWrong(With("step3p5", {{"swiglu_limits", {0, 1}}}), "2 entries for 5 layers");
  ExpectRefused(With("step3p5", {{"zero_centered", false}}), "zero_centered");
  json whole = {{"architectures", {"Step3p7ForConditionalGeneration"}}, {"model_type", "step3p7"}};
  whole["text_config"] = Tiny("step3p5");
  EXPECT_EQ(Read(whole), model);
}

TEST(Families2026, MimoHasNarrowValues) {
  const ModelConfig model = Read(Tiny("mimo_v2_flash"));
  const AttentionConfig& full = model.layers[0].attention;
  const AttentionConfig& sliding = model.layers[1].attention;
  EXPECT_EQ(full.head_dim, 24u);
  EXPECT_EQ(full.value_dim, 16u);
  EXPECT_EQ(full.value_scale, 0.707f);
  EXPECT_EQ(full.rope.dimensions, 8u);
  EXPECT_FALSE(full.sinks);
  EXPECT_EQ(full.kv_heads, 1u);
  EXPECT_EQ(sliding.kv_heads, 2u);
  EXPECT_EQ(sliding.sliding_window, 17u);
  EXPECT_TRUE(sliding.sinks);
  EXPECT_EQ(sliding.rope.theta, 1e4);
  EXPECT_EQ(Read(With("mimo_v2_flash", {{"v_head_dim", 24}})).layers[0].attention.value_dim, 0u);
  EXPECT_EQ(Read(Without(With("mimo_v2_flash", {{"sliding_window", 17}}), {"sliding_window_size"})), model);
  ExpectRefused(With("mimo_v2_flash", {{"v_head_dim", 26}}), "v_head_dim");
  ExpectWrong(Without(Tiny("mimo_v2_flash"), {"hybrid_layer_pattern"}), "hybrid_layer_pattern");
}

TEST(Families2026, CohereHasOneNormForBoth) {
  const ModelConfig model = Read(Tiny("cohere2_moe"));
  EXPECT_EQ(model.norm, NormKind::kLayer);
  EXPECT_FALSE(model.norm_bias);
  EXPECT_TRUE(model.tied_embeddings && model.layers[0].parallel);
  EXPECT_EQ(model.layers[0].attention.sliding_window, 0u);
  EXPECT_EQ(model.layers[0].attention.rope.kind, RopeKind::kDefault);
  EXPECT_EQ(model.layers[1].attention.sliding_window, 16u);
  EXPECT_EQ(model.layers[3].attention.rope.kind, RopeKind::kNone);
  EXPECT_EQ(model.layers[1].moe.output_scale, 0.5f);
  EXPECT_EQ(model.layers[1].moe.router, RouterKind::kSigmoidTopK);
  const ModelConfig soft = Read(With("cohere2_moe", {{"expert_selection_fn", "softmax"},
                                                     {"shared_expert_combination_strategy", "sum"},
                                                     {"rms_norm_eps", 1e-6}}));
  EXPECT_EQ(soft.norm, NormKind::kRms);
  EXPECT_EQ(soft.layers[1].moe.router, RouterKind::kTopKSoftmax);
  EXPECT_EQ(soft.layers[1].moe.output_scale, 1.0f);
  ExpectRefused(With("cohere2_moe", {{"expert_selection_fn", "argmax"}}), "expert_selection_fn");
}

TEST(Families2026, FlexOlmoNormsOnlyBehindItsBlocks) {
  const ModelConfig model = Read(Tiny("flex_olmo"));
  EXPECT_FALSE(model.layers[0].pre_norms);
  EXPECT_TRUE(model.layers[0].post_norms);
  EXPECT_EQ(model.layers[0].attention.qk_norm, QkNorm::kAcrossHeads);
}

TEST(Families2026, LongcatLayersAreTwoHere) {
  const ModelConfig model = Read(Tiny("longcat_flash"));
  ASSERT_EQ(model.layers.size(), 4u);
  EXPECT_TRUE(model.layers[0].late_experts && model.layers[0].moe.shared_apart);
  EXPECT_EQ(model.layers[0].moe.zero_experts, 4u);
  EXPECT_EQ(model.layers[1].moe.dense_width, 128u);
  EXPECT_FALSE(model.layers[1].late_experts);
  EXPECT_GT(model.layers[0].attention.scale, 1.6f / std::sqrt(24.0f));
  ExpectRefused(With("longcat_flash", {{"zero_expert_type", "copy"}}), "zero_expert_type");
}

TEST(Families2026, JambaAlternatesByPeriods) {
  const ModelConfig model = Read(Tiny("jamba"));
  EXPECT_EQ(model.layers[0].attention.kind, AttentionKind::kSelective);
  EXPECT_EQ(model.layers[0].attention.selective.channels, 128u);
  EXPECT_EQ(model.layers[2].attention.kind, AttentionKind::kGrouped);
  EXPECT_EQ(model.layers[2].attention.rope.kind, RopeKind::kNone);
  EXPECT_EQ(model.layers[0].moe.dense_width, 64u);
  EXPECT_FALSE(model.layers[1].moe.norm_topk_prob);
  EXPECT_EQ(Read(With("jamba", {{"mamba_dt_rank", "auto"}})), model);
  ExpectRefused(With("jamba", {{"mamba_proj_bias", true}}), "mamba_proj_bias");
}

TEST(Families2026, ChannelDeltaOfKimiAndLing) {
  const ModelConfig kimi = Read(Tiny("kimi_linear"));
  EXPECT_EQ(kimi.layers[0].attention.kind, AttentionKind::kGatedDelta);
  EXPECT_EQ(kimi.layers[0].attention.delta.gate_rank, 16u);
  EXPECT_EQ(kimi.layers[0].attention.delta.decay_floor, 0.0f);
  EXPECT_EQ(kimi.layers[3].attention.kind, AttentionKind::kLatent);
  EXPECT_EQ(kimi.layers[3].attention.rope.kind, RopeKind::kProportional);
  EXPECT_EQ(kimi.layers[3].attention.rope.turned, 0u);
  EXPECT_EQ(kimi.layers[1].moe.groups, 0u);
  ExpectRefused(With("kimi_linear", {{"mla_use_nope", false}}), "mla_use_nope");
  const ModelConfig ling = Read(Tiny("bailing_hybrid"));
  EXPECT_EQ(ling.layers[0].attention.delta.gate_rank, 0u);
  EXPECT_EQ(ling.layers[0].attention.delta.decay_floor, -5.0f);
  EXPECT_TRUE(ling.layers[3].attention.gate_per_head);
  EXPECT_TRUE(ling.layers[3].attention.rope.interleaved);
  EXPECT_EQ(ling.layers[1].moe.groups, 4u);
  EXPECT_EQ(Read(With("bailing_hybrid", {{"kda_safe_gate", false}})).layers[0].attention.delta.decay_floor,
            0.0f);
}

}  // namespace
}  // namespace sluice
