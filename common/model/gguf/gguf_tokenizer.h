// GgufTokenizerFiles: a GGUF file's tokenizer converted to the hub's files: tokenizer.json for byte-level
// BPE, tokenizer.model for SentencePiece, and tokenizer_config.json.
//
// Private to common/model. Thread safety: a free function.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/gguf/gguf_header.h"

namespace sluice {

// Returns the files by base name; empty if the file has no tokenizer. InvalidArgument naming the key;
// Unimplemented naming an unsupported model or pre-tokenizer.
absl::StatusOr<std::map<std::string, std::string>> GgufTokenizerFiles(const GgufKeys& keys);

}  // namespace sluice
