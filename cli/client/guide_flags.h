// Flags of structured output, turned into the request's grammar.
//
// Thread safety: plain values; used by the main thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cli/ui/args.h"
#include "sluice/inference/v1/generation.pb.h"

namespace sluice::cli {

struct GrammarFlags {
  bool json_object = false;
  std::optional<std::string> json_schema;  // files
  std::optional<std::string> grammar;
  std::optional<std::string> regex;
  std::optional<std::string> choice;

  void Declare(ArgParser* parser);

  // More than one of them.
  bool Ambiguous() const;

  // Fills the request; reads the file that a flag names. InvalidArgument for --choice without a text.
  absl::Status Fill(::sluice::inference::v1::GenerationSpec* spec) const;
};

}  // namespace sluice::cli
