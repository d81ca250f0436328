// Hugging Face model folders: config.json, generation_config.json, chat template -> ModelConfig.
//
// Families are rows of a table in hf_config.cc: a name and a reader. Both generations of config.json are
// read: rope_theta / rope_scaling / torch_dtype, and rope_parameters / dtype.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"
#include "common/model/quantization.h"
#include "common/model/tensor_mapper.h"

namespace sluice {

struct HfConfig {
  ModelConfig config;
  GenerationDefaults generation;
  Quantization quantization;  // of the folder's linear layers
  std::string chat_template;  // empty: none
};

// Parses the two texts; `generation_json` is empty if the folder has none. Its eos/bos ids override
// config.json's, as in transformers. `subject` (the folder) opens error messages. Unimplemented naming the
// unsupported architecture, activation, rope type or quantization; InvalidArgument naming field and value.
absl::StatusOr<HfConfig> ParseHfConfig(std::string_view config_json, std::string_view generation_json,
                                       const std::string& subject);

// Joins the template for conversations without tools and that for conversations with tools: one that renders
// each as its own template does. `plain` alone if either is empty.
std::string JoinChatTemplates(std::string_view plain, std::string_view tool_use);

// Reads config.json, generation_config.json and the chat template (chat_template.jinja, else the member of
// tokenizer_config.json, else that of chat_template.json) of `dir`. NotFound naming the missing file.
absl::StatusOr<HfConfig> ReadHfConfig(const std::string& dir);

// Returns the model_type of every supported family, sorted.
std::vector<std::string> SupportedFamilies();

// Returns the part of the family that the configuration of a pack of an earlier version lacks, for people;
// empty: none.
std::string_view LacksPart(const ModelConfig& config);

// MapTensors: maps a checkpoint's tensor names to the canonical dense tensors and expert matrices.
//
// Thread safety: a free function on immutable input.

// Finds every tensor that `config` needs in `checkpoint`. NotFound naming missing tensors, InvalidArgument
// naming unknown or misshapen ones (with both shapes), Unimplemented naming an element type other than 16-
// and 32-bit floats. The map points into `checkpoint`.
absl::StatusOr<SourceMap> MapTensors(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace sluice
