// Reader of tokenizer.model: SentencePiece's ModelProto, read from its protobuf wire form (the sentencepiece
// library cannot share a process with protobuf). Supports only BPE models with the identity normalizer.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/tokenizer_config.h"

namespace sluice {

// `bytes` is untrusted. The result encodes as SentencePiece does, except that control pieces written in the
// text are recognised (they are special added tokens). BOS is prepended unless `config` disables it, the
// default of LlamaTokenizer. InvalidArgument for malformed content; Unimplemented, by name, for other model
// types, character maps and options.
absl::StatusOr<TokenizerSpec> ParseSentencePieceModel(std::string_view bytes, const TokenizerConfig& config);

}  // namespace sluice
