// A GGUF file's tokenizer as the files that a folder of the hub would have: tokenizer.json for byte-level
// BPE, tokenizer.model for SentencePiece, and tokenizer_config.json.
//
// Private to common/model/gguf. Thread safety: a free function.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/gguf/gguf_header.h"

namespace sluice {

// By base name; empty if the file has no tokenizer. InvalidArgument naming the key; Unimplemented naming a
// model or pre-tokenizer that is not supported.
absl::StatusOr<std::map<std::string, std::string>> GgufTokenizerFiles(const GgufKeys& keys);

}  // namespace sluice
