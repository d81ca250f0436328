// Reader of tokenizer.json (Hugging Face `tokenizers`, version 1.0, model BPE).
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"

namespace sluice {

// `bytes` is untrusted. InvalidArgument naming the field for what is malformed or inconsistent, Unimplemented
// naming the component for what is not supported. `truncation` and `padding` are not applied: they are
// settings of the last caller of the library that wrote the file. `bos` and `eos` stay unset.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& bytes);

}  // namespace sluice
