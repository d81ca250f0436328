// Normalizer: changes a text before it is split, for example by Unicode normalization.
//
// Thread safety: immutable; Apply may be called from any thread at once, each with a scratch of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/stages/text_pattern.h"
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/unicode/regex.h"

namespace sluice {

class Normalizer {
 public:
  // Creates the steps in order. Errors of TextPattern::Create.
  static absl::StatusOr<std::unique_ptr<const Normalizer>> Create(const std::vector<NormalizerSpec>& specs);

  // `text` is well-formed UTF-8, so is the result. ResourceExhausted from a regex. `marks`, if given, has a
  // byte per byte of `text` (normalizer.h) and is changed with it; then no character is composed across a
  // border of marks, and a replacement is the client's if any byte of its match was.
  absl::StatusOr<std::string> Apply(std::string text, RegexScratch* scratch,
                                    std::string* marks = nullptr) const;

 private:
  struct Step {
    NormalizerSpec spec;
    std::optional<TextPattern> pattern;  // of Replace
  };
  std::vector<Step> steps_;
};

}  // namespace sluice
