// TokenReader: the token list of a template with a read position; base of both halves of the parser.
//
// Thread safety: used by one thread.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/text/jinja/lexer.h"

namespace sluice::jinja {

class TokenReader {
 public:
  // REQUIRES: `tokens` ends with kEnd, as Tokenize's do.
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  using Kind = Token::Kind;
  static constexpr int kMaxNesting = 200;  // of blocks and of expressions: the parser recurses

  // Counts one level of recursion during its lifetime.
  class NestingGuard {
   public:
    explicit NestingGuard(TokenReader* reader) : reader_(reader) { ++reader_->depth_; }
    ~NestingGuard() { --reader_->depth_; }
    NestingGuard(const NestingGuard&) = delete;
    NestingGuard& operator=(const NestingGuard&) = delete;

   private:
    TokenReader* const reader_;
  };
  absl::Status CheckNesting() const {
    return depth_ <= kMaxNesting ? absl::OkStatus() : Error(absl::StrCat("nested deeper than ", kMaxNesting));
  }

  const Token& Peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& Next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool IsOperator(const char* text) const { return Peek().kind == Kind::kOperator && Peek().text == text; }
  bool IsName(const char* text) const { return Peek().kind == Kind::kName && Peek().text == text; }
  bool TakeOperator(const char* text) { return IsOperator(text) && (Next(), true); }
  bool TakeName(const char* text) { return IsName(text) && (Next(), true); }

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("template line ", Peek().line, ": ", what));
  }
  absl::Status ExpectOperator(const char* text) {
    return TakeOperator(text) ? absl::OkStatus()
                              : Error(absl::StrCat("expected '", text, "' before '", Peek().text, "'"));
  }
  absl::Status ExpectStatementEnd() {
    if (Peek().kind != Kind::kStatementEnd) {
      return Error(absl::StrCat("expected the end of the tag before '", Peek().text, "'"));
    }
    Next();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Peek().kind != Kind::kName) {
      return Error(absl::StrCat("expected a name before '", Peek().text, "'"));
    }
    return Next().text;
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace sluice::jinja
