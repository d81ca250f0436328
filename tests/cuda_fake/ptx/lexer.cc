#include "tests/cuda_fake/ptx/lexer.h"

#include <cctype>

namespace sluice::cuda_fake {
namespace {

bool BeginsWord(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
}

bool ContinuesWord(char c) { return BeginsWord(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Where the comment or white space at `at` ends; `at` if there is none. Counts lines.
size_t SkipBlank(absl::string_view source, size_t at, int* line) {
  while (at < source.size()) {
    if (source.substr(at, 2) == "//") {
      at = std::min(source.find('\n', at), source.size());
    } else if (source.substr(at, 2) == "/*") {
      const size_t end = std::min(source.find("*/", at + 2), source.size());
      for (; at < end; ++at) {
        *line += source[at] == '\n' ? 1 : 0;
      }
      at = std::min(end + 2, source.size());
    } else if (std::isspace(static_cast<unsigned char>(source[at])) != 0) {
      *line += source[at] == '\n' ? 1 : 0;
      ++at;
    } else {
      break;
    }
  }
  return at;
}

}  // namespace

std::vector<Token> Tokenize(absl::string_view source) {
  std::vector<Token> tokens;
  int line = 1;
  size_t at = SkipBlank(source, 0, &line);
  while (at < source.size() && source[at] != '\0') {
    const size_t begin = at;
    TokenKind kind = TokenKind::kSign;
    if (source[at] == '"') {
      const size_t end = std::min(source.find('"', at + 1), source.size() - 1);
      tokens.push_back({TokenKind::kString, source.substr(at + 1, end - at - 1), line});
      at = SkipBlank(source, end + 1, &line);
      continue;
    }
    if (BeginsWord(source[at])) {
      kind = TokenKind::kWord;
      while (at < source.size() && (ContinuesWord(source[at]) || source.substr(at, 2) == "::")) {
        at += source[at] == ':' ? 2 : 1;  // "cp.async.shared::cta"
      }
    } else if (std::isdigit(static_cast<unsigned char>(source[at])) != 0) {
      kind = TokenKind::kNumber;
      while (at < source.size() && std::isalnum(static_cast<unsigned char>(source[at])) != 0) {
        ++at;
      }
    } else {
      ++at;
    }
    tokens.push_back({kind, source.substr(begin, at - begin), line});
    at = SkipBlank(source, at, &line);
  }
  return tokens;
}

}  // namespace sluice::cuda_fake
