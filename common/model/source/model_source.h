// Opening a model as people hold it: a Hugging Face folder, plain or quantized, or a GGUF file. What comes
// out is the same for all: a description, a checkpoint under the names that the families know, tokenizer
// files.
//
// Thread safety: a free function; a ModelSource is const after it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/families/hf_config.h"

namespace sluice {

struct ModelSource {
  HfConfig hf;
  std::unique_ptr<Checkpoint> checkpoint;
  std::map<std::string, std::string> tokenizer_files;  // by base name, as a folder has them
};

// `path`: a folder, or a file that ends in ".gguf" (of a split one: the first). Reads headers and small files
// only. NotFound naming what is missing; InvalidArgument and Unimplemented naming file and field or tensor.
absl::StatusOr<ModelSource> OpenModelSource(const std::string& path);

// What a model is like, without its weights: of a folder, a config.json, or the head of a GGUF file, which
// need not have more than that. Errors as OpenModelSource's.
absl::StatusOr<HfConfig> ReadModelConfig(const std::string& path);

}  // namespace sluice
