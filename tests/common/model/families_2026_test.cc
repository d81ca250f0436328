// Config of each family of 2026: its ModelConfig, switches and defaults, under published and written names.
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

TEST(Families2026, MinimaxM3EndsWhereItsLayersChoose) {
  const ModelConfig model = Read(Tiny("minimax_m3"));
  EXPECT_EQ(model.max_position, 12u);  // 3 blocks of 4 keys
  EXPECT_EQ(model.layers[0].moe.dense_width, 96u);
  EXPECT_EQ(model.layers[0].moe.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(model.layers[0].moe.activation_limit, 1.5f);
  EXPECT_EQ(model.layers[1].moe.shared_width, 48u);
  EXPECT_EQ(model.layers[1].moe.routed_scale, 2.0f);
  EXPECT_EQ(model.layers[1].attention.rope.dimensions, 16u);
  EXPECT_EQ(Read(WithText("minimax_m3", {{"rotary_dim", 8}})).layers[1].attention.rope.dimensions, 8u);
  EXPECT_EQ(Read(WithText("minimax_m3", {{"sparse_attention_config", nullptr}})).max_position, 512u);
  const ModelConfig flat = Read(WithText(
      "minimax_m3",
      {{"sparse_attention_config", nullptr},
       {"index_topk_blocks", 5},
       {"index_block_size", 8},
       {"layer_types", {"full_attention", "minimax_m3_sparse", "full_attention", "full_attention"}}}));
  EXPECT_EQ(flat.max_position, 40u);
  ExpectRefused(WithText("minimax_m3", {{"hidden_act", "gelu"}}), "hidden_act");
}

TEST(Families2026, NemotronTakesItsLayersFromThePattern) {
  const ModelConfig model = Read(Tiny("nemotron_h"));
  EXPECT_EQ(Read(Without(Tiny("nemotron_h"), {"num_hidden_layers"})), model);
}

}  // namespace
}  // namespace sluice
