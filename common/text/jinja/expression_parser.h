// ExpressionParser: the half of the parser that reads expressions, with Jinja's precedence.
//
// Thread safety: used by one thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/token_reader.h"

namespace sluice::jinja {

class ExpressionParser : public TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  ExpressionPtr Node(Expression::Kind kind, std::string name = "") const;
  ExpressionPtr Binary(std::string name, ExpressionPtr left, ExpressionPtr right) const;
  // Parses `a, b`: a list without brackets.
  absl::StatusOr<ExpressionPtr> ParseTuple();
  absl::StatusOr<ExpressionPtr> ParseExpression();
  absl::StatusOr<ExpressionPtr> ParseOr();
  absl::StatusOr<ExpressionPtr> ParseAnd();
  absl::StatusOr<ExpressionPtr> ParseNot();
  absl::StatusOr<ExpressionPtr> ParseComparison();
  absl::StatusOr<ExpressionPtr> ParseSum();
  absl::StatusOr<ExpressionPtr> ParseConcat();
  absl::StatusOr<ExpressionPtr> ParseProduct();
  // Filters and tests bind to the signed value: -3|abs is (-3)|abs.
  absl::StatusOr<ExpressionPtr> ParseUnary(bool filters = true);
  absl::StatusOr<ExpressionPtr> ParseFiltersAndTests(ExpressionPtr value);
  absl::StatusOr<ExpressionPtr> ParseFilter(ExpressionPtr value);
  absl::StatusOr<ExpressionPtr> ParseTest(ExpressionPtr value);
  // Starts after the opening parenthesis.
  absl::Status ParseArguments(CallArguments* arguments);
  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr value);
  absl::StatusOr<ExpressionPtr> ParseSubscript(ExpressionPtr value);
  absl::StatusOr<ExpressionPtr> ParsePrimary();
  absl::StatusOr<ExpressionPtr> ParseNameOrConstant(ExpressionPtr node);
  absl::StatusOr<ExpressionPtr> ParseListLiteral();
  absl::StatusOr<ExpressionPtr> ParseMapLiteral();
};

}  // namespace sluice::jinja
