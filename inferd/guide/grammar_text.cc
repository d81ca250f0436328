#include "inferd/guide/grammar_text.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::inferd {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return absl::StrCat(quoted, "\"");
}

}  // namespace

std::string ChoiceGrammar(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    absl::StrAppend(&grammar, i == 0 ? "" : " | ", Quoted(choices[i]));
  }
  return absl::StrCat(grammar, "\n");
}

absl::Status CheckCounts(std::string_view text, uint64_t maximum) {
  for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
    for (size_t begin = at + 1; begin < text.size();) {
      size_t end = begin;
      while (end < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) {
        ++end;
      }
      uint64_t count = 0;
      const std::string digits(text.substr(begin, end - begin));
      if (!digits.empty() && (!absl::SimpleAtoi(digits, &count) || count > maximum)) {
        return absl::InvalidArgumentError(absl::StrCat("a repetition of ", digits.substr(0, 40),
                                                       " times at byte ", at, "; at most ", maximum,
                                                       " are supported"));
      }
      // Spaces are allowed within; the second number of {n,m} follows.
      while (end < text.size() && (text[end] == ' ' || text[end] == ',')) {
        ++end;
      }
      if (end == begin || end >= text.size() || !absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) {
        break;
      }
      begin = end;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
