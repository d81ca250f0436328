// Opening a model: a Hugging Face folder, plain or quantized, or a GGUF file.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "common/model/hf_config.h"
#include "common/model/quantization.h"

namespace sluice {

// OpenCheckpointFolder: a Hugging Face folder as a Checkpoint. Plain tensors are read unchanged, quantized
// layers as their dequantized matrices.
//
// Thread safety: a free function; the Checkpoint is immutable.

// Opens the safetensors of `dir`; reads headers, and a few numbers of layers that store their shape in a
// tensor. Errors as TensorFolder::Open's and FindQuantizedLayer's.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpointFolder(const std::string& dir,
                                                                 const Quantization& quantization);

// OpenModelSource: opens a published model: a Hugging Face folder, plain or quantized, or a GGUF file. The
// result has one form: a description, a checkpoint under the hub's names, and tokenizer files.
//
// Thread safety: a free function; a ModelSource is const after it.

struct ModelSource {
  HfConfig hf;
  std::string no_mtp;  // why MTP layers of the folder are left out; empty: they are not
  std::unique_ptr<Checkpoint> checkpoint;
  std::map<std::string, std::string> tokenizer_files;  // by base name, as in a folder
};

// Opens `path`: a folder, or a file that ends in ".gguf" (of a split model the first part). Reads headers and
// small files only. NotFound naming the missing file; InvalidArgument and Unimplemented naming file and field
// or tensor.
absl::StatusOr<ModelSource> OpenModelSource(const std::string& path);

// Reads a model's description without its weights: from a folder, a config.json, or the head of a GGUF file
// (the rest of the file may be missing). Errors as OpenModelSource's.
absl::StatusOr<HfConfig> ReadModelConfig(const std::string& path);

}  // namespace sluice
