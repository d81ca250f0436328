// TextPattern: the pattern of Split and Replace, a literal or a regex.
//
// Thread safety: immutable; FindAll may be called from any thread at once, each with a scratch of its own.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/stages/tokenizer_spec.h"
#include "common/text/unicode/regex.h"

namespace sluice {

class TextPattern {
 public:
  // Errors of Regex::Compile; Unimplemented for an empty literal.
  static absl::StatusOr<TextPattern> Create(const PatternSpec& spec);

  // Behaves as Regex::FindAll.
  absl::Status FindAll(std::string_view text, RegexScratch* scratch, std::vector<ByteRange>* matches) const;

  // Replaces every match in `text` by `content`, taken literally.
  absl::StatusOr<std::string> ReplaceAll(std::string_view text, const std::string& content,
                                         RegexScratch* scratch) const;

 private:
  std::string literal_;                 // empty if regex_ is set
  std::shared_ptr<const Regex> regex_;  // shared only to make the pattern copyable
};

}  // namespace sluice
