// Reader of what stands beside the vocabulary: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and of vocabularies that need them: vocab.json + merges.txt.
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
  std::string tokenizer_class;  // empty: not said
  std::optional<bool> add_bos;  // nullopt: not said
  std::optional<bool> add_eos;
  std::optional<bool> legacy;  // LlamaTokenizer: a space before text behind special tokens, too
  bool add_prefix_space = false;
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::vector<std::string> named_tokens;     // bos, eos, unk, pad and additional special tokens
  std::map<std::string, std::string> names;  // {"bos_token": "<s>", ..}, those of extra_special_tokens, too
  std::vector<AddedToken> added_tokens;      // added_tokens_decoder and added_tokens.json
};

// All fields keep their defaults where the files are missing. InvalidArgument naming file and field.
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const TokenizerFiles& files);

// Adds the config's added tokens, and makes special those of the vocabulary that it names.
absl::Status ApplyAddedTokens(const TokenizerConfig& config, TokenizerSpec* spec);

// Sets bos and eos, and what is put around a text: add_bos_token and add_eos_token, where said, overrule the
// template of tokenizer.json. InvalidArgument if a token to be added is not known.
absl::Status ApplySpecialTokenRules(const TokenizerConfig& config, TokenizerSpec* spec);

// The config's names, and bos_token and eos_token where only the vocabulary's own file knows them.
std::map<std::string, std::string> NamesOfSpecialTokens(const TokenizerConfig& config,
                                                        const TokenizerSpec& spec);

// GPT-2's and Qwen2's byte-level BPE; Unimplemented for another `tokenizer_class`.
absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(const std::string& vocab_json,
                                                  const std::string& merges_txt,
                                                  const TokenizerConfig& config);

}  // namespace sluice
