// Flags of the prompt and the sampler, turned into fields of the request.
//
// Thread safety: plain values; used by the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/ui/args.h"
#include "sluice/inference/v1/generation.pb.h"

namespace sluice::cli {

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

  // `default_tokens` is what the help says of --max-tokens.
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

  // Both --prompt and --token-ids, or neither and standard input is a terminal.
  bool Ambiguous(bool stdin_is_terminal) const;

  // Fills the request; reads standard input to its end if no prompt was given. InvalidArgument naming what is
  // wrong with it. Ill-formed UTF-8 in a prompt becomes U+FFFD, as the tokenizer would have it.
  absl::Status Fill(::sluice::inference::v1::GenerationSpec* spec) const;
};

}  // namespace sluice::cli
