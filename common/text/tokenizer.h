// Tokenizer: text to token ids and back, from the tokenizer files of a Hugging Face folder.
//
// Semantics are those of Hugging Face `tokenizers` for BPE models (byte-level and SentencePiece-style);
// common/text/README.md lists the supported components. All others are refused by name at load time.
//
// Thread safety: a Tokenizer is immutable after Load; all const methods may be called from any thread at
// once. A StreamDecoder belongs to one stream and is used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"

namespace sluice {

struct EncodeOptions {
  // Adds the tokens that the tokenizer puts around a text (BOS, EOS).
  bool add_special_tokens = true;
  // Special tokens (control tokens such as <s>, <|im_end|>) written in the text become the token; false
  // treats them as plain text. Added tokens that are not special (runs of spaces, tool tags) are always
  // matched.
  bool parse_special = true;
};

// The tokenizer files of a folder by base name: the input of LoadFromFiles, and a part of every pack.
using TokenizerFiles = std::map<std::string, std::string>;

// Reads the tokenizer files that `dir` has (tokenizer.json, tokenizer.model, vocab.json, merges.txt,
// tokenizer_config.json, special_tokens_map.json, added_tokens.json). NOT_FOUND if no vocabulary is among
// them; INVALID_ARGUMENT naming a file above 256 MiB.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& dir);

class Tokenizer {
 public:
  // Calls ReadTokenizerFiles, then LoadFromFiles. Errors name the folder.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& dir);

  // Uses tokenizer.json if present, else tokenizer.model, else vocab.json + merges.txt. The contents are
  // untrusted. INVALID_ARGUMENT: malformed, naming file and field; UNIMPLEMENTED: an unsupported component,
  // behaviour or regex construct, by name.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFromFiles(const TokenizerFiles& files);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the token ids of `text`, any bytes: ill-formed UTF-8 is first replaced by U+FFFD, one for each
  // maximal ill-formed part (Unicode's and Python's `errors="replace"` rule). A character that neither the
  // vocabulary, byte tokens nor an unknown token can represent is left out, as in Hugging Face `tokenizers`.
  // INVALID_ARGUMENT for a text of 1 GiB or more; RESOURCE_EXHAUSTED if a regex exceeds its match limit.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Returns the control tokens of a model that uses the chat template `template_source`: all special tokens,
  // and the added tokens in the template's text except white space (such as <think>), special or not.
  absl::flat_hash_set<int32_t> ControlTokens(std::string_view template_source) const;

  // Returns the token ids of a rendered chat, without BOS and EOS. `marks` has a byte per byte of `text`: 0
  // for the template's own, 1 for a client's. The tokens in `control` are recognised only where all of their
  // bytes are the template's own; elsewhere, and across a border of marks, they are plain text. Other added
  // tokens are matched everywhere. INVALID_ARGUMENT if the sizes differ; else as Encode.
  absl::StatusOr<std::vector<int32_t>> EncodeMarked(std::string_view text, std::string_view marks,
                                                    const absl::flat_hash_set<int32_t>& control) const;

  // Returns the text of `ids`, always well-formed UTF-8. `skip_special` leaves special tokens out.
  // INVALID_ARGUMENT, naming id and vocabulary size, for an id that is not in [0, vocab_size()).
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;

  // Returns the largest id + 1, including added tokens. Ids below it may be unused (they decode to nothing).
  // A model's embedding can have more rows than this.
  int32_t vocab_size() const;

  // Tokens that begin and end a text by the tokenizer's files, even if Encode does not add them. Models can
  // have further end tokens (generation_config.json).
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  // Special tokens by the names that chat templates use for them ("bos_token": "<s>").
  const std::map<std::string, std::string>& special_token_names() const;

  // Returns the token's spelling in the vocabulary ("Ġthe", "▁the", "<0x0A>"); nullopt for an id that is out
  // of range or unused. The view lives as long as the tokenizer.
  std::optional<std::string_view> IdToToken(int32_t id) const;
  std::optional<int32_t> TokenToId(std::string_view token) const;

  // Returns the bytes that the token adds in the middle of a text, special tokens left out; they need not be
  // whole characters. Empty for an id that is special, unused or out of range.
  std::string TokenBytes(int32_t id) const;

  // True for a control token, which Decode's `skip_special` leaves out. False for ids out of range.
  bool is_special(int32_t id) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// StreamDecoder: incremental Decode of one stream of tokens. Push returns the newly completed text: whole
// UTF-8 characters only, each as soon as the token with its last byte arrives. All pieces and Flush joined
// equal Decode of the ids. One exception: if SentencePiece byte tokens (<0xE2>) encode ill-formed UTF-8,
// Decode replaces each byte of the whole run of byte tokens, while the stream has already emitted the
// characters that were complete before the ill-formed byte.
class StreamDecoder {
 public:
  // REQUIRES: `tokenizer` outlives the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  // Returns nothing for an id out of range or unused (Decode's error has no place in a running stream).
  std::string Push(int32_t id);

  // Ends the stream: an unfinished character becomes U+FFFD, as in Decode. The decoder can then be reused.
  std::string Flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
