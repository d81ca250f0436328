// Reader of the files beside the vocabulary: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and of the vocabularies that depend on them: vocab.json + merges.txt.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/tokenizer.h"

namespace sluice {

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

// All fields keep their defaults if the files are missing. InvalidArgument naming file and field.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerFiles& files);

// Adds the config's added tokens, and marks vocabulary tokens that it names as special.
absl::Status ApplyAddedTokens(const TokenizerConfig& config, TokenizerSpec* spec);

// Sets bos and eos, and the tokens around a text: add_bos_token and add_eos_token, if given, override the
// template of tokenizer.json. InvalidArgument if a token to be added is unknown.
absl::Status ApplySpecialTokenRules(const TokenizerConfig& config, TokenizerSpec* spec);

// Returns the config's names, plus bos_token and eos_token if only the vocabulary's own file defines them.
std::map<std::string, std::string> CollectSpecialTokenNames(const TokenizerConfig& config,
                                                            const TokenizerSpec& spec);

// Parses GPT-2's and Qwen2's byte-level BPE; Unimplemented for another `tokenizer_class`.
absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(const std::string& vocab_json,
                                                  const std::string& merges_txt,
                                                  const TokenizerConfig& config);

}  // namespace sluice
