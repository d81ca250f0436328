// PreTokenizer: splits a normalized text into the words that the model encodes one by one.
//
// Thread safety: immutable; Apply may be called from any thread at once, each with a scratch of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/normalizer.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// A text and its pieces, in order, not empty. Steps narrow the pieces or rewrite both.
struct PreTokenizedText {
  std::string text;
  std::vector<ByteRange> pieces;
  // The first piece begins at the start of the whole input (Metaspace's scheme "first").
  bool starts_input = false;
};

class PreTokenizer {
 public:
  // Creates the steps in order. Errors of TextPattern::Create.
  static absl::StatusOr<std::unique_ptr<const PreTokenizer>> Create(
      const std::vector<PreTokenizerSpec>& specs);

  // `input` holds one piece, its whole text. RESOURCE_EXHAUSTED from a regex.
  absl::Status Apply(PreTokenizedText* input, RegexScratch* scratch) const;

 private:
  struct Step {
    PreTokenizerSpec spec;
    std::optional<TextPattern> pattern;  // of Split and of ByteLevel with use_regex
  };
  std::vector<Step> steps_;
};

}  // namespace sluice
