// Normalizer, the patterns that it and the pre-tokenizer search for, and helpers over marks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/regex.h"
#include "common/text/tokenizer_spec.h"

namespace sluice {

// Marks: one byte per byte of a text, 1 for a client's byte and 0 for the template's own.
//
// Thread safety: pure functions.

// Returns the end of the run of equal marks that begins at `begin`.
inline size_t EndOfRun(std::string_view marks, size_t begin) {
  const size_t end = marks.find(marks[begin] == 0 ? '\1' : '\0', begin);
  return end == std::string_view::npos ? marks.size() : end;
}

// Replaces each run of `*text` by `change` of it, so that no change reaches across a border.
template <typename Change>
void TransformRuns(std::string* text, std::string* marks, Change change) {
  std::string new_text;
  std::string new_marks;
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = EndOfRun(*marks, begin);
    new_text += change(std::string_view(*text).substr(begin, end - begin));
    new_marks.resize(new_text.size(), (*marks)[begin]);
    begin = end;
  }
  *text = std::move(new_text);
  *marks = std::move(new_marks);
}

// TextPattern: the pattern of Split and Replace, a literal or a regex.
//
// Thread safety: immutable; FindAll may be called from any thread at once, each with a scratch of its own.

class TextPattern {
 public:
  // Errors of Regex::Compile; UNIMPLEMENTED for an empty literal.
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

// Normalizer: changes a text before it is split, for example by Unicode normalization.
//
// Thread safety: immutable; Apply may be called from any thread at once, each with a scratch of its own.

class Normalizer {
 public:
  // Creates the steps in order. Errors of TextPattern::Create.
  static absl::StatusOr<std::unique_ptr<const Normalizer>> Create(const std::vector<NormalizerSpec>& specs);

  // `text` is well-formed UTF-8, so is the result. RESOURCE_EXHAUSTED from a regex. `marks`, if given, has a
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
