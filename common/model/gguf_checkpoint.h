// OpenGguf: a GGUF model with its config in the hub's terms, its weights as a Checkpoint under the hub's
// names, and its tokenizer as the hub's files.
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
  std::string config_json;                             // equivalent config.json
  std::string generation_json;                         // equivalent generation_config.json; empty: none
  std::string chat_template;                           // empty: none
  std::map<std::string, std::string> tokenizer_files;  // by base name
  std::unique_ptr<Checkpoint> checkpoint;
  bool mtp_layers = false;  // the checkpoint has tensors of MTP layers
};

// Opens `path`, for a split model the first file. Reads headers and the few numbers of rope tensors.
// InvalidArgument naming file and key or tensor; Unimplemented naming the unsupported architecture, tokenizer
// or setting. `mtp_layers`: the checkpoint has the tensors of MTP layers too, where the architecture's are
// known; otherwise they are left out, and so they are from the config in any case.
absl::StatusOr<GgufModel> OpenGguf(const std::string& path, bool mtp_layers);

// Reads only the two JSON texts and the chat template from the head of the first file; the rest of the model
// may be missing.
absl::StatusOr<GgufModel> ReadGgufMetadata(const std::string& path);

}  // namespace sluice
