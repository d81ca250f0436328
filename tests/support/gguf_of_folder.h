// A GGUF file of a folder's model, as llama.cpp's converter names its keys and tensors: DeepSeek-V3,
// GLM-4-MoE and Qwen3-Next, with their MTP layers (`nextn`). Values stay as they are; norms are float32.
//
// Thread safety: a free function.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace sluice {

// Reads config.json and model.safetensors of `folder`, a test's own, and writes the file `path`.
absl::Status WriteGgufOfFolder(const std::string& folder, const std::string& path);

}  // namespace sluice
