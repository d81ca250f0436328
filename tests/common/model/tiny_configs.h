// Configs of the tiny families with changed members, and the resulting ModelConfigs.
//
// Thread safety: free functions.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/base/json_reader.h"
#include "common/model/hf_config.h"
#include "tests/support/folder_bytes.h"

namespace sluice {

using nlohmann::json;

inline constexpr const char* kTinyFamilies[] = {"deepseek_v2", "deepseek_v3", "glm4_moe",  "gpt_oss",
                                                "granitemoe",  "llama4",      "mixtral",   "olmoe",
                                                "phimoe",      "qwen2_moe",   "qwen3_moe", "qwen3_5_moe"};

inline json Tiny(const std::string& family) {
  // Some have a bare Infinity, as published; this is its strict JSON form.
  return json::parse(absl::StrReplaceAll(ReadAll("tests/data/tiny/" + family + "/config.json"),
                                         {{" Infinity", R"({"__float__": "Infinity"})"}}));
}

inline absl::StatusOr<ModelConfig> Parse(const json& config) {
  auto parsed = ParseHfConfig(config.dump(), "", "dir");
  if (!parsed.ok()) return parsed.status();
  return parsed->config;
}

inline ModelConfig Read(const json& config) {
  const auto model = Parse(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelConfig{.layers = {{}}};
}

// Returns the tiny family's config with some members replaced.
inline json With(const std::string& family, const json& changes) {
  json config = Tiny(family);
  for (const auto& [key, value] : changes.items()) config[key] = value;
  return config;
}

inline json Without(json config, const std::vector<const char*>& keys) {
  for (const char* key : keys) config.erase(key);
  return config;
}

// Returns the same model as transformers 4 wrote it.
inline json OldGeneration(json config) {
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

inline absl::Status Error(const json& config) { return Parse(config).status(); }

inline void ExpectRefused(const json& config, const char* word) {
  const absl::Status status = Error(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(word));
}

}  // namespace sluice
