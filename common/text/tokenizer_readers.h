// Readers of tokenizer files: each gives a TokenizerSpec, or an error that names file and field.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/json_reader.h"
#include "common/text/tokenizer.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// Reader of the files beside the vocabulary: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and of the vocabularies that depend on them: vocab.json + merges.txt.
//
// Thread safety: free functions, safe to call from any thread.

struct TokenizerConfig {
  std::string tokenizer_class;  // empty: not given
  std::optional<bool> add_bos;  // nullopt: not given
  std::optional<bool> add_eos;
  std::optional<bool> legacy;  // LlamaTokenizer: a space before text after special tokens, too
  bool add_prefix_space = false;
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::vector<std::string> named_tokens;     // bos, eos, unk, pad and additional special tokens
  std::map<std::string, std::string> names;  // {"bos_token": "<s>", ..}, with extra_special_tokens
  std::vector<AddedToken> added_tokens;      // added_tokens_decoder and added_tokens.json
};

// All fields keep their defaults if the files are missing. INVALID_ARGUMENT naming file and field.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerFiles& files);

// Adds the config's added tokens, and marks vocabulary tokens that it names as special.
absl::Status ApplyAddedTokens(const TokenizerConfig& config, TokenizerSpec* spec);

// Sets bos and eos, and the tokens around a text: add_bos_token and add_eos_token, if given, override the
// template of tokenizer.json. INVALID_ARGUMENT if a token to be added is unknown.
absl::Status ApplySpecialTokenRules(const TokenizerConfig& config, TokenizerSpec* spec);

// Returns the config's names, plus bos_token and eos_token if only the vocabulary's own file defines them.
std::map<std::string, std::string> CollectSpecialTokenNames(const TokenizerConfig& config,
                                                            const TokenizerSpec& spec);

// Parses GPT-2's and Qwen2's byte-level BPE; UNIMPLEMENTED for another `tokenizer_class`.
absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(const std::string& vocab_json,
                                                  const std::string& merges_txt,
                                                  const TokenizerConfig& config);

// Reader of tokenizer.json (Hugging Face `tokenizers`, version 1.0, model BPE).
//
// Thread safety: a free function, safe to call from any thread.

// `bytes` is untrusted. INVALID_ARGUMENT naming the field for malformed or inconsistent content,
// UNIMPLEMENTED naming an unsupported component. `truncation` and `padding` are not applied: they are
// settings of the last user of the library that wrote the file. `bos` and `eos` stay unset.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& bytes);

// Reads the fields of an added token except its id. `normalized` defaults as in the library: true unless
// special.
absl::StatusOr<AddedToken> ParseAddedToken(const JsonObject& object);

// Reader of tokenizer.model: SentencePiece's ModelProto, read from its protobuf wire form (the sentencepiece
// library cannot share a process with protobuf). Supports only BPE models with the identity normalizer.
//
// Thread safety: a free function, safe to call from any thread.

// `bytes` is untrusted. The result encodes as SentencePiece does, except that control pieces written in the
// text are recognised (they are special added tokens). BOS is prepended unless `config` disables it, the
// default of LlamaTokenizer. INVALID_ARGUMENT for malformed content; UNIMPLEMENTED, by name, for other model
// types, character maps and options.
absl::StatusOr<TokenizerSpec> ParseSentencePieceModel(std::string_view bytes, const TokenizerConfig& config);

}  // namespace sluice
