// A GGUF model: its config in the hub's words, its weights as a Checkpoint under the hub's names, and its
// tokenizer as the hub's files.
//
// Thread safety: a free function; the Checkpoint is immutable.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"

namespace sluice {

struct GgufModel {
  std::string config_json;      // what config.json would say
  std::string generation_json;  // what generation_config.json would say; empty: nothing
  std::string chat_template;    // empty: none
  std::map<std::string, std::string> tokenizer_files;  // by base name
  std::unique_ptr<Checkpoint> checkpoint;
};

// Opens `path`, of a split model the first file. Reads heads and the few numbers of rope tensors.
// InvalidArgument naming file and key or tensor; Unimplemented naming the architecture, tokenizer or setting
// that is not supported.
absl::StatusOr<GgufModel> OpenGguf(const std::string& path);

// The two JSON texts and the template alone, by the first file's head, which may be all there is of the
// model.
absl::StatusOr<GgufModel> ReadGgufHead(const std::string& path);

}  // namespace sluice
