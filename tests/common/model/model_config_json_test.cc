// ModelConfig as JSON: every field survives a round trip, and unknown members are refused.
#include "common/model/model_config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json_reader.h"

namespace sluice {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

RopeConfig LongRope(uint32_t dimensions) {
  RopeConfig rope;
  rope.kind = RopeKind::kLongRope;
  rope.theta = 5e5;
  rope.factor = 8;
  rope.original_max_position = 512;
  rope.dimensions = dimensions;
  rope.interleaved = true;
  rope.attention_factor = 1.19;
  rope.beta_fast = 31;
  rope.beta_slow = 2;
  rope.truncate = false;
  rope.low_freq_factor = 1.5;
  rope.high_freq_factor = 3.5;
  rope.short_factors.assign(dimensions / 2, 1.25);
  rope.long_factors.assign(dimensions / 2, 7.5);
  rope.long_attention_factor = 1.24;
  return rope;
}

LayerConfig GroupedLayer() {
  LayerConfig layer;
  AttentionConfig& a = layer.attention;
  a.heads = 4;
  a.kv_heads = 2;
  a.head_dim = 16;
  a.sliding_window = 9;
  a.scale = 0.3f;
  a.qkv_bias = a.output_bias = a.sinks = a.output_gate = true;
  a.qk_norm = QkNorm::kAcrossHeads;
  a.chunk = 64;
  a.clip_qkv = 8;
  a.temperature_scale = 0.1f;
  a.temperature_floor = 8192;
  a.gate_per_head = true;
  a.gate_activation = GateActivation::kSoftplus;
  a.value_dim = 12;
  a.value_scale = 0.5f;
  a.rope = LongRope(8);
  MoeConfig& m = layer.moe;
  m.experts = 8;
  m.top_k = 3;
  m.expert_width = 48;
  m.shared_width = 32;
  m.router = RouterKind::kSigmoidTopK;
  m.norm_topk_prob = false;
  m.routed_scale = 2.5f;
  m.shared_gate = m.router_bias = m.router_correction = m.expert_bias = true;
  m.router_jitter = 0.01f;
  m.router_cap = 30;
  m.output_scale = 0.5f;
  m.ffn_bias = true;
  layer.parallel = true;
  m.groups = 4;
  m.top_groups = 2;
  m.group_score = GroupScore::kTopTwoSum;
  m.activation = Activation::kClampedSwiglu;
  m.activation_alpha = 1.5f;
  m.activation_limit = 6;
  return layer;
}

LayerConfig LatentLayer() {
  LayerConfig layer;
  AttentionConfig& a = layer.attention;
  a.kind = AttentionKind::kLatent;
  a.heads = a.kv_heads = 4;
  a.head_dim = 24;
  a.scale = 0.2f;
  a.rope.dimensions = 8;
  a.latent = {.q_rank = 24, .kv_rank = 32, .nope_dim = 16, .value_dim = 12, .norm_epsilon = 1e-5f};
  layer.moe.dense_width = 160;
  return layer;
}

LayerConfig DeltaLayer() {
  LayerConfig layer;
  layer.attention.kind = AttentionKind::kGatedDelta;
  layer.attention.delta = {.key_heads = 2,
                           .value_heads = 4,
                           .key_dim = 16,
                           .value_dim = 8,
                           .conv_kernel = 4,
                           .channel_decay = true,
                           .gate_rank = 8,
                           .decay_floor = -5,
                           .sigmoid_gate = true};
  layer.moe.dense_width = 160;
  return layer;
}

LayerConfig SelectiveLayer() {
  LayerConfig layer;
  layer.attention.kind = AttentionKind::kSelective;
  layer.attention.selective = {.channels = 128, .state = 16, .step_rank = 4, .conv_kernel = 4};
  MoeConfig& m = layer.moe;
  m.experts = 8;
  m.top_k = 2;
  m.expert_width = 32;
  m.shared_width = 16;
  m.shared_apart = layer.late_experts = true;
  m.zero_experts = 4;
  m.activation = Activation::kClampedSilu;
  m.shared_limit = 0.5f;
  return layer;
}

LayerConfig ConvLayer() {
  LayerConfig layer;
  layer.attention.kind = AttentionKind::kShortConv;
  layer.attention.conv = {.width = 64, .kernel = 3, .bias = true};
  layer.moe.dense_width = 160;
  layer.pre_norms = false;
  return layer;
}

// Every field differs from its default in some layer.
ModelConfig Everything() {
  ModelConfig config;
  config.family = "all";
  config.vocab = 512;
  config.hidden = 64;
  config.max_position = 4096;
  config.norm = NormKind::kLayer;
  config.norm_epsilon = 1e-6f;
  config.tied_embeddings = config.head_bias = true;
  config.embedding_scale = 12;
  config.residual_scale = 0.22f;
  config.logit_scale = 1 / 6.0f;
  config.norm_bias = false;
  config.layers = {GroupedLayer(), LatentLayer(), DeltaLayer(), SelectiveLayer(), ConvLayer()};
  config.bos_ids = {1};
  config.eos_ids = {2, 5};
  return config;
}

absl::StatusOr<ModelConfig> Read(const json& value) {
  const json parsed = json::parse(value.dump());
  const auto object = JsonObject::Of(parsed, "config");
  return ModelConfigFromJson(*object);
}

TEST(ModelConfigJson, EveryFieldComesBack) {
  const ModelConfig config = Everything();
  const json text = ModelConfigToJson(config);
  const auto read = Read(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, config);
  EXPECT_EQ(ModelConfigToJson(*read), text);
}

// Residual streams, and layers whose keys are compressed.
ModelConfig Streams() {
  ModelConfig config;
  config.family = "streams";
  config.vocab = 512;
  config.hidden = 64;
  config.max_position = 4096;
  config.streams = {.count = 4, .iterations = 20, .epsilon = 1e-5f, .mean_output = true};
  LayerConfig layer;
  AttentionConfig& a = layer.attention;
  a.kind = AttentionKind::kCompressed;
  a.heads = 4;
  a.kv_heads = 1;
  a.head_dim = 32;
  a.scale = 0.2f;
  a.sliding_window = 16;
  a.qk_norm = QkNorm::kWeightedKey;
  a.rope.dimensions = 8;
  a.compress = {.rate = 4, .overlap = true, .q_rank = 24, .groups = 2, .o_rank = 16};
  a.index = {.heads = 8, .head_dim = 16, .top = 4, .block = 4, .weighted = true, .pooled = true};
  layer.moe.experts = 8;
  layer.moe.top_k = 2;
  layer.moe.expert_width = 32;
  layer.moe.router = RouterKind::kSqrtSoftplusTopK;
  layer.moe.token_experts = true;
  layer.moe.activation = Activation::kLimitedSilu;
  config.layers = {layer};
  return config;
}

TEST(ModelConfigJson, StreamsAndEntriesComeBack) {
  const auto read = Read(ModelConfigToJson(Streams()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Streams());
  const auto refused = [](const char* path, const json& value, const char* word) {
    json text = ModelConfigToJson(Streams());
    text[json::json_pointer(path)] = value;
    EXPECT_THAT(std::string(Read(text).status().message()), HasSubstr(word)) << path;
  };
  refused("/streams/count", 17, "residual streams");
  refused("/streams/iterations", 0, "iterations");
  refused("/layers/0/attention/compress/rate", 5, "divisor");
  refused("/layers/0/attention/compress/groups", 3, "in 3 groups");
  refused("/layers/0/attention/sliding_window", 0, "window");
  refused("/layers/0/attention/index/block", 8, "entries are of 4");
  refused("/layers/0/attention/index/top", 1, "chosen blocks");
  refused("/layers/0/attention/kind", "grouped", "entries");
  refused("/layers/0/moe/router", "sigmoid_topk", "tokens name");
}

TEST(ModelConfigJson, LaterFieldsWithDefaultValueAreOmitted) {
  const json text = ModelConfigToJson(Everything());
  EXPECT_TRUE(text["layers"][0]["attention"].contains("sinks"));
  EXPECT_FALSE(text["layers"][0]["attention"].contains("latent"));
  EXPECT_FALSE(text["layers"][1]["attention"].contains("sinks"));
  EXPECT_TRUE(text["layers"][1]["attention"].contains("latent"));
  EXPECT_FALSE(text["layers"][1]["moe"].contains("groups"));
}

TEST(ModelConfigJson, TheFirstVersionsQkNormIsRead) {
  json text = ModelConfigToJson(Everything());
  text["layers"][0]["attention"]["qk_norm"] = true;
  EXPECT_EQ(Read(text)->layers[0].attention.qk_norm, QkNorm::kPerHead);
  text["layers"][0]["attention"]["qk_norm"] = false;
  EXPECT_EQ(Read(text)->layers[0].attention.qk_norm, QkNorm::kNone);
}

TEST(ModelConfigJson, MembersThatAreNotKnownAreRefused) {
  const json good = ModelConfigToJson(Everything());
  for (const char* path : {"", "/layers/0", "/layers/0/attention", "/layers/0/attention/rope",
                           "/layers/0/moe", "/layers/1/attention/latent", "/layers/2/attention/delta"}) {
    json text = good;
    text[json::json_pointer(path)]["surprise"] = 1;
    EXPECT_THAT(std::string(Read(text).status().message()), HasSubstr("surprise")) << path;
  }
}

TEST(ModelConfigJson, NumbersThatDoNotAddUpAreRefused) {
  const json good = ModelConfigToJson(Everything());
  const auto refused = [&](const char* path, const json& value, const char* word) {
    json text = good;
    text[json::json_pointer(path)] = value;
    const auto read = Read(text);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(word)) << path;
  };
  refused("/logit_scale", 0, "logit scale");
  refused("/latent_width", 32, "experts of 32 values");
  refused("/layers/0/attention/value_dim", 17, "values of a head");
  refused("/layers/0/post_norms", true, "FFN beside attention");
  refused("/layers/2/attention/delta/decay_floor", 1, "log decay");
  refused("/layers/3/moe/shared_width", 0, "shared expert apart");
  refused("/layers/4/post_norms", true, "added late");
  refused("/layers/3/attention/selective/conv_kernel", 1, "selective convolution kernel");
  refused("/layers/0/moe/groups", 3, "in 3 groups");
  refused("/layers/0/moe/groups", 8, "in 8 groups");
  refused("/layers/0/moe/top_groups", 5, "take part");
  refused("/layers/0/moe/top_k", 5, "cannot give 5");
  refused("/layers/0/attention/rope/long_factors", json::array({1.0}), "1 rope factors");
  refused("/layers/0/attention/rope/short_factors/2", 0.0, "rope factor");
  refused("/layers/0/attention/rope/original_max_position", 0, "original_max_position");
  refused("/layers/0/attention/rope/dimensions", 7, "odd");
  refused("/layers/0/attention/temperature_floor", 0, "temperature");
  refused("/layers/1/attention/latent/kv_rank", 0, "kv rank");
  refused("/layers/1/attention/latent/nope_dim", 17, "does not add up");
  refused("/layers/1/attention/kv_heads", 2, "does not add up");
  refused("/layers/1/attention/rope/kind", "none", "does not add up");
  refused("/layers/2/attention/delta/key_heads", 3, "do not divide");
  refused("/layers/2/attention/delta/conv_kernel", 65, "kernel");
  refused("/layers/2/attention/heads", 4, "no attention heads");
  refused("/layers/2/moe/dense_width", 1u << 25, "dense width");
}

}  // namespace
}  // namespace sluice
