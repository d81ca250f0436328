// Reader of tokenizer.model: SentencePiece's ModelProto, read from its protobuf wire form (the library itself
// cannot live in a process with protobuf). Only BPE models with the identity normalizer are taken.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/tokenizer_config.h"

namespace sluice {

// `bytes` is untrusted. The result encodes as SentencePiece does, except that control pieces spelt in the
// text are recognised (they are special added tokens). BOS is put in front unless `config` says otherwise,
// the default of LlamaTokenizer. InvalidArgument for what is malformed; Unimplemented, by name, for other
// model types, character maps and options.
absl::StatusOr<TokenizerSpec> ParseSentencePieceModel(std::string_view bytes, const TokenizerConfig& config);

}  // namespace sluice
