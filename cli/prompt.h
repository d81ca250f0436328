// Prompts of commands: the source of the tokenizer, and the flags for prompt, sampling and grammar.
//
// Thread safety: free functions may be called from any thread; flags are plain values of the main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command_line.h"
#include "common/text/tokenizer.h"
#include "sluice/inference/v1/generation.pb.h"

namespace sluice::cli {

struct TokenizerSource {
  std::string pack;
  std::string dir;

  // Declares `--pack` and `--tokenizer`; exactly one must be given (GivenOnce).
  void Declare(ArgParser* parser);
  bool GivenOnce() const { return pack.empty() != dir.empty(); }
};

// FAILED_PRECONDITION if the pack has no tokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const TokenizerSource& source);

// Returns the first `max_tokens` tokens of a text file, by the pack's tokenizer, without BOS or EOS and with
// special tokens as text. INVALID_ARGUMENT for an empty text.
absl::StatusOr<std::vector<int32_t>> EncodeTextFile(const std::string& pack, const std::string& path,
                                                    uint64_t max_tokens);

// Flags of prompt and sampling, converted to fields of the request.
//
// Thread safety: plain values; used by the main thread.

// Sampling options given by the user.
struct SamplingFlags {
  std::optional<uint64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  // `default_tokens`: the default of --max-tokens in the help.
  void Declare(ArgParser* parser, const std::string& default_tokens);
  void Fill(::sluice::inference::v1::GenerationSpec* spec) const;
};

struct GenerationFlags {
  std::optional<std::string> prompt;
  std::optional<std::string> token_ids;
  SamplingFlags sampling;
  bool no_special = false;
  bool plain = false;

  void Declare(ArgParser* parser);

  // True if both --prompt and --token-ids are given, or neither and standard input is a terminal.
  bool Ambiguous(bool stdin_is_terminal) const;

  // Fills the request; without a prompt reads standard input to its end. INVALID_ARGUMENT naming the flag.
  // Ill-formed UTF-8 in a prompt becomes U+FFFD, as in the tokenizer.
  absl::Status Fill(::sluice::inference::v1::GenerationSpec* spec) const;
};

// Flags of structured output, converted to the request's grammar.
//
// Thread safety: plain values; used by the main thread.

struct GrammarFlags {
  bool json_object = false;
  std::optional<std::string> json_schema;  // files
  std::optional<std::string> grammar;
  std::optional<std::string> regex;
  std::optional<std::string> choice;

  void Declare(ArgParser* parser);

  // True if more than one of them is given.
  bool Ambiguous() const;

  // Fills the request; reads the file that a flag names. INVALID_ARGUMENT for --choice without a text.
  absl::Status Fill(::sluice::inference::v1::GenerationSpec* spec) const;
};

}  // namespace sluice::cli
