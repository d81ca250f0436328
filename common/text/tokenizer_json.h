// Reader of tokenizer.json (Hugging Face `tokenizers`, version 1.0, model BPE).
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"

namespace sluice {

// `bytes` is untrusted. InvalidArgument naming the field for malformed or inconsistent content, Unimplemented
// naming an unsupported component. `truncation` and `padding` are not applied: they are settings of the last
// user of the library that wrote the file. `bos` and `eos` stay unset.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& bytes);

}  // namespace sluice
