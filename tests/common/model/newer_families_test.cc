// Config of each newer family: its ModelConfig, switches and defaults.
#include <cmath>

#include "common/model/model_config_json.h"
#include "tests/common/model/tiny_configs.h"

namespace sluice {
namespace {

TEST(NewerFamilies, Gemma4HasWideHeadsAndParallelFfn) {
  const ModelConfig model = Read(Tiny("gemma4"));
  EXPECT_EQ(model.embedding_scale, 8.0f);
  EXPECT_EQ(model.logit_cap, 30.0f);
  EXPECT_TRUE(model.tied_embeddings);
  const AttentionConfig& sliding = model.layers[0].attention;
  EXPECT_EQ(sliding.sliding_window, 16u);
  EXPECT_EQ(sliding.scale, 1.0f);
  EXPECT_EQ(sliding.rope.kind, RopeKind::kDefault);
  EXPECT_TRUE(sliding.value_norm);
  EXPECT_FALSE(sliding.value_is_key);
  const AttentionConfig& full = model.layers[2].attention;
  EXPECT_EQ(full.sliding_window, 0u);
  EXPECT_EQ(full.head_dim, 32u);
  EXPECT_EQ(full.kv_heads, 1u);
  EXPECT_TRUE(full.value_is_key);
  EXPECT_EQ(full.rope.kind, RopeKind::kProportional);
  EXPECT_EQ(full.rope.dimensions, 32u);
  EXPECT_EQ(full.rope.turned, 8u);
  for (const LayerConfig& layer : model.layers) {
    EXPECT_TRUE(layer.post_norms && layer.layer_scale && layer.moe.expert_scale);
    EXPECT_EQ(layer.moe.dense_ffn_width, 96u);
    EXPECT_EQ(layer.moe.activation, Activation::kGeluTanh);
  }
  // The same heads in the form of transformers 5.
  const json newer =
      With("gemma4", {{"global_head_dim", nullptr},
                      {"num_global_key_value_heads", nullptr},
                      {"per_layer_config", {{"2", {{"head_dim", 32}, {"num_key_value_heads", 1}}}}}});
  EXPECT_EQ(Read(newer).layers[2], model.layers[2]);
  // Without the list of types every sixth layer is full, and so is the last.
  const ModelConfig untold = Read(Without(With("gemma4", {{"num_hidden_layers", 8}}), {"layer_types"}));
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(untold.layers[i].attention.sliding_window == 0, i == 5 || i == 7) << i;
}

TEST(NewerFamilies, Gemma4FeaturesOfDenseModelsAreRefused) {
  ExpectRefused(Without(Tiny("gemma4"), {"hidden_size_per_layer_input"}), "hidden_size_per_layer_input");
  ExpectRefused(With("gemma4", {{"num_kv_shared_layers", 2}}), "num_kv_shared_layers");
  ExpectRefused(With("gemma4", {{"use_double_wide_mlp", true}}), "use_double_wide_mlp");
  ExpectRefused(With("gemma4", {{"use_bidirectional_attention", "all"}}), "use_bidirectional_attention");
  ExpectRefused(With("gemma4", {{"enable_moe_block", false}}), "enable_moe_block");
  EXPECT_TRUE(Parse(With("gemma4", {{"use_bidirectional_attention", "vision"}})).ok());
}

TEST(NewerFamilies, Qwen3NextIsQwen35WithDenseLayers) {
  const ModelConfig model = Read(With("qwen3_next", {{"mlp_only_layers", {1}}, {"norm_topk_prob", false}}));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(model.layers[i].attention.kind, i == 3 ? AttentionKind::kGrouped : AttentionKind::kGatedDelta);
    EXPECT_EQ(model.layers[i].moe.experts, i == 1 ? 0u : 12u);
  }
  EXPECT_EQ(model.layers[1].moe.dense_width, 128u);
  EXPECT_FALSE(model.layers[0].moe.norm_topk_prob);
  EXPECT_TRUE(model.layers[3].attention.output_gate);
  EXPECT_EQ(Read(Without(Tiny("qwen3_next"), {"partial_rotary_factor"})).layers[3].attention.rope.dimensions,
            8u);
}

TEST(NewerFamilies, LatentFamiliesDifferInRoutersAndTemperature) {
  const ModelConfig glm = Read(With("glm4_moe_lite", {{"first_k_dense_replace", 2}}));
  EXPECT_EQ(glm.layers[0].moe.experts, 0u);
  EXPECT_EQ(glm.layers[1].moe.experts, 16u);  // the reference class does not read first_k_dense_replace
  EXPECT_EQ(glm.layers[1].moe.routed_scale, 1.8f);
  const ModelConfig typed = Read(With("glm4_moe_lite", {{"mlp_layer_types", {"sparse", "dense", "sparse"}}}));
  EXPECT_EQ(typed.layers[0].moe.experts, 16u);
  EXPECT_EQ(typed.layers[1].moe.dense_width, 160u);
  ExpectRefused(With("glm4_moe_lite", {{"attention_bias", true}}), "attention_bias");

  const AttentionConfig mistral = Read(Tiny("mistral4")).layers[0].attention;
  EXPECT_EQ(mistral.rope.dimensions, 16u);  // half of head_dim, which is the whole head here
  EXPECT_EQ(mistral.temperature_scale, 0.1f);
  EXPECT_EQ(mistral.temperature_floor, 16u);
  EXPECT_EQ(mistral.temperature_offset, 0u);
  json rope = Tiny("mistral4")["rope_parameters"];
  ExpectRefused(With("deepseek_v3", {{"rope_parameters", rope}}), "llama_4_scaling_beta");
}

TEST(NewerFamilies, IndexersChooseWhatLayersSee) {
  json config = With("deepseek_v3", {{"model_type", "deepseek_v32"},
                                     {"architectures", {"DeepseekV32ForCausalLM"}},
                                     {"index_topk", 64},
                                     {"index_head_dim", 16},
                                     {"index_n_heads", 4}});
  const ModelConfig model = Read(config);
  const ModelConfig plain = Read(Tiny("deepseek_v3"));
  EXPECT_EQ(model.max_position, plain.max_position);
  ASSERT_EQ(model.layers.size(), 3u);
  const IndexConfig index = {.heads = 4, .head_dim = 16, .top = 64, .weighted = true};
  for (size_t i = 0; i < 3; ++i) {
    LayerConfig layer = plain.layers[i];
    layer.attention.index = index;
    EXPECT_EQ(model.layers[i], layer) << i;
  }
  config.update({{"model_type", "glm_moe_dsa"},
                 {"architectures", {"GlmMoeDsaForCausalLM"}},
                 {"indexer_rope_interleave", true}});
  const auto shared = [&](const char* key, const json& value) {
    json changed = config;
    changed[key] = value;
    std::vector<bool> layers;
    for (const LayerConfig& layer : Read(changed).layers) layers.push_back(layer.attention.index.shared);
    return layers;
  };
  EXPECT_TRUE(Read(config).layers[0].attention.index.interleaved);
  EXPECT_EQ(shared("index_topk_freq", 1), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(shared("index_topk_freq", 2), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(shared("index_topk_pattern", "FSS"), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(shared("indexer_types", {"full", "full", "shared"}), (std::vector<bool>{false, false, true}));
  for (const char* pattern : {"SFF", "FF", "FXF"}) {
    json changed = config;
    changed["index_topk_pattern"] = pattern;
    EXPECT_FALSE(Parse(changed).ok()) << pattern;
  }
  config["q_lora_rank"] = nullptr;
  EXPECT_FALSE(Parse(config).ok());
}

TEST(NewerFamilies, NemotronHPairsEachMixerWithItsFfn) {
  const ModelConfig model =
      Read(With("nemotron_h", {{"hybrid_override_pattern", "EM*EM-M"}, {"num_hidden_layers", 7}}));
  ASSERT_EQ(model.layers.size(), 5u);
  const AttentionKind kinds[] = {AttentionKind::kNone, AttentionKind::kMamba, AttentionKind::kGrouped,
                                 AttentionKind::kMamba, AttentionKind::kMamba};
  const bool ffns[] = {true, false, true, true, false};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(model.layers[i].attention.kind, kinds[i]) << i;
    EXPECT_EQ(HasFfn(model.layers[i]), ffns[i]) << i;
  }
  EXPECT_EQ(model.layers[2].attention.rope.kind, RopeKind::kNone);
  EXPECT_EQ(model.layers[0].moe.shared_width, 64u);
  EXPECT_EQ(model.layers[3].moe.dense_width, 80u);
  EXPECT_EQ(model.layers[3].moe.activation, Activation::kRelu2);
  const json typed = Without(With("nemotron_h", {{"num_hidden_layers", 3},
                                                 {"layers_block_type", {"linear_attention", "moe", "mlp"}}}),
                             {"hybrid_override_pattern"});
  EXPECT_EQ(Read(typed).layers.size(), 2u);
  EXPECT_FALSE(Parse(With("nemotron_h", {{"num_hidden_layers", 5}})).ok());
  EXPECT_FALSE(Parse(With("nemotron_h", {{"hybrid_override_pattern", "MXE"}})).ok());
}

TEST(NewerFamilies, TimeStepsHaveLimits) {
  const MambaConfig mamba = Read(Tiny("nemotron_h")).layers[0].attention.mamba;
  EXPECT_EQ(mamba.min_step, 0.0f);
  EXPECT_EQ(mamba.max_step, 0.0f);  // no limit
  const MambaConfig limited =
      Read(With("nemotron_h", {{"time_step_limit", {0.25, 2.0}}})).layers[0].attention.mamba;
  EXPECT_EQ(limited.min_step, 0.25f);
  EXPECT_EQ(limited.max_step, 2.0f);
  EXPECT_FALSE(Parse(With("nemotron_h", {{"time_step_limit", {2.0, 0.25}}})).ok());
  EXPECT_FALSE(Parse(With("nemotron_h", {{"time_step_limit", {0.0}}})).ok());
}

TEST(NewerFamilies, GraniteHybridDefaultsToMamba) {
  const ModelConfig model = Read(Tiny("granitemoehybrid"));
  EXPECT_EQ(model.layers[0].attention.kind, AttentionKind::kMamba);
  EXPECT_EQ(model.layers[2].attention.kind, AttentionKind::kGrouped);
  EXPECT_EQ(model.layers[2].attention.rope.kind, RopeKind::kNone);
  EXPECT_EQ(model.layers[0].moe.shared_width, 64u);
  EXPECT_EQ(
      Read(With("granitemoehybrid", {{"position_embedding_type", "rope"}})).layers[2].attention.rope.kind,
      RopeKind::kDefault);
  for (const LayerConfig& layer : Read(Without(Tiny("granitemoehybrid"), {"layer_types"})).layers) {
    EXPECT_EQ(layer.attention.kind, AttentionKind::kMamba);
  }
  EXPECT_EQ(Read(With("granitemoehybrid", {{"mamba_d_head", "auto"}})).layers, model.layers);
  const MoeConfig dense = Read(With("granitemoehybrid", {{"num_local_experts", 0}})).layers[0].moe;
  EXPECT_EQ(dense.experts, 0u);
  EXPECT_EQ(dense.dense_width, 64u);
}

TEST(NewerFamilies, Lfm2ConvolvesWhereItDoesNotAttend) {
  const ModelConfig model = Read(Tiny("lfm2_moe"));
  EXPECT_EQ(model.layers[0].attention.kind, AttentionKind::kShortConv);
  EXPECT_EQ(model.layers[0].attention.conv.width, 64u);
  EXPECT_EQ(model.layers[0].attention.conv.kernel, 3u);
  EXPECT_EQ(model.layers[0].moe.dense_width, 160u);
  EXPECT_EQ(model.layers[2].moe.norm_epsilon, 1e-6f);
  EXPECT_TRUE(model.layers[2].moe.router_correction);
  EXPECT_FALSE(Read(With("lfm2_moe", {{"use_expert_bias", false}})).layers[2].moe.router_correction);
  EXPECT_FALSE(Read(With("lfm2_moe", {{"tie_embedding", false}})).tied_embeddings);
}

TEST(NewerFamilies, ErnieIsSparseBetweenTwoLayers) {
  const auto sparse = [](const json& changes) {
    std::string layers;
    for (const LayerConfig& layer : Read(With("ernie4_5_moe", changes)).layers) {
      layers += layer.moe.experts > 0 ? 'E' : '-';
    }
    return layers;
  };
  EXPECT_EQ(sparse({}), "-EE");
  EXPECT_EQ(sparse({{"moe_layer_end_index", -1}}), "-EE");
  EXPECT_EQ(sparse({{"moe_layer_end_index", 1}}), "-E-");
  EXPECT_EQ(sparse({{"moe_layer_interval", 2}, {"num_hidden_layers", 5}, {"moe_layer_end_index", -1}}),
            "-E-E-");
  EXPECT_TRUE(Read(Tiny("ernie4_5_moe")).layers[0].attention.rope.interleaved);
  EXPECT_EQ(Read(With("ernie4_5_moe", {{"moe_num_shared_experts", 0}})).layers[1].moe.shared_width, 0u);
}

TEST(NewerFamilies, HunyuanStretchesThetaAndRepeatsItself) {
  const ModelConfig model = Read(Tiny("hunyuan_v1_moe"));
  EXPECT_EQ(model.layers[0].attention.qk_norm, QkNorm::kWeightedAfterRope);
  EXPECT_NEAR(model.layers[0].attention.rope.theta, 1e4 * std::pow(1000.0, 32.0 / 30), 1e-3);
  EXPECT_EQ(model.layers[0].moe.top_k, 3u);
  EXPECT_EQ(Read(With("hunyuan_v1_moe", {{"moe_topk", 3}})), model);
  ExpectRefused(With("hunyuan_v1_moe", {{"moe_topk", {3, 2}}}), "moe_topk");
  ExpectRefused(With("hunyuan_v1_moe", {{"moe_intermediate_size", {48, 50}}}), "moe_intermediate_size");
  EXPECT_TRUE(Parse(With("hunyuan_v1_moe", {{"num_shared_expert", {1, 1}}})).ok());
  json rope = Tiny("hunyuan_v1_moe")["rope_scaling"];
  rope.erase("alpha");
  ExpectRefused(With("hunyuan_v1_moe", {{"rope_scaling", rope}}), "dynamic");
}

TEST(NewerFamilies, AfmoeTurnsOnlyInItsWindows) {
  const ModelConfig model = Read(Tiny("afmoe"));
  for (size_t i = 0; i < 4; ++i) {
    const AttentionConfig& a = model.layers[i].attention;
    EXPECT_EQ(a.rope.kind, i == 3 ? RopeKind::kNone : RopeKind::kDefault);
    EXPECT_EQ(a.sliding_window, i == 3 ? 0u : 16u);
    EXPECT_TRUE(a.output_gate && model.layers[i].post_norms);
  }
  EXPECT_EQ(model.embedding_scale, 8.0f);
  EXPECT_EQ(Read(With("afmoe", {{"mup_enabled", false}})).embedding_scale, 1.0f);
  EXPECT_EQ(model.layers[1].moe.routed_scale, 2.826f);
  EXPECT_EQ(Read(Without(Tiny("afmoe"), {"layer_types"})), model);
  ExpectRefused(With("afmoe", {{"n_group", 2}}), "n_group");
}

TEST(NewerFamilies, DotsSlidesBehindItsFullLayers) {
  EXPECT_EQ(Read(Tiny("dots1")).layers[2].attention.sliding_window, 0u);
  const ModelConfig model =
      Read(Without(With("dots1", {{"max_window_layers", 2}, {"sliding_window", 32}}), {"layer_types"}));
  EXPECT_EQ(model.layers[1].attention.sliding_window, 0u);
  EXPECT_EQ(model.layers[2].attention.sliding_window, 32u);
  EXPECT_EQ(model.layers[1].moe.shared_width, 96u);
  EXPECT_TRUE(Parse(With("dots1", {{"scoring_func", "noaux_tc"}})).ok());
}

TEST(NewerFamilies, Qwen3VlIsQwen3OfItsTextConfig) {
  const ModelConfig model = Read(Tiny("qwen3_vl_moe"));
  EXPECT_EQ(model.family, "qwen3_vl_moe_text");
  EXPECT_EQ(model.layers[0].attention.rope.kind, RopeKind::kDefault);
  EXPECT_TRUE(model.layers[0].moe.norm_topk_prob);
}

// Packs keep the description as JSON.
TEST(NewerFamilies, DescriptionsSurviveTheManifest) {
  for (const char* family : {"afmoe", "gemma4", "granitemoehybrid", "hunyuan_v1_moe", "lfm2_moe", "mistral4",
                             "nemotron_h", "qwen3_next"}) {
    const ModelConfig model = Read(Tiny(family));
    const json written = json::parse(ModelConfigToJson(model).dump());
    const auto object = JsonObject::Of(written, "config");
    ASSERT_TRUE(object.ok());
    const auto read = ModelConfigFromJson(*object);
    ASSERT_TRUE(read.ok()) << family << ": " << read.status();
    EXPECT_EQ(*read, model) << family;
  }
}

}  // namespace
}  // namespace sluice
