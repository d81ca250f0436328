// Marks: one byte per byte of a text, 1 for a client's byte and 0 for the template's own.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "common/text/unicode/regex.h"

namespace sluice {

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

}  // namespace sluice
