// ReadGgufConfig: converts a GGUF model's keys to the config.json that the family's reader expects.
//
// Private to common/model. Thread safety: a free function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model/gguf/gguf_architecture.h"
#include "common/model/gguf/gguf_files.h"
#include "common/model/gguf/gguf_views.h"

namespace sluice {

struct GgufConfig {
  const GgufArchitecture* architecture = nullptr;
  GgufShape shape;
  std::string config_json;
  std::string generation_json;  // empty: none
  std::string chat_template;    // empty: none
};

// InvalidArgument naming a key that is missing or wrong; Unimplemented naming an unsupported setting.
absl::StatusOr<GgufConfig> ReadGgufConfig(const GgufFiles& files);

}  // namespace sluice
