#include "common/text/jinja/expression_parser.h"

#include <charconv>
#include <utility>

#include "common/status.h"

namespace sluice::jinja {

ExpressionPtr ExpressionParser::Node(Expression::Kind kind, std::string name) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = Peek().line;
  node->name = std::move(name);
  return node;
}

ExpressionPtr ExpressionParser::Binary(std::string name, ExpressionPtr left, ExpressionPtr right) const {
  ExpressionPtr node = Node(Expression::Kind::kBinary, std::move(name));
  node->items.push_back(std::move(left));
  node->items.push_back(std::move(right));
  return node;
}

// One function per level of precedence, from the weakest to the strongest; each parses its operands by the
// next: tuple, if-else, or, and, not, comparison, + -, ~, * / // %, unary and **, then names, calls and
// subscripts. The levels are Jinja's, which differ from Python's.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTuple() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseExpression());
  if (!IsOperator(",")) {
    return first;
  }
  ExpressionPtr node = Node(Expression::Kind::kList);
  node->items.push_back(std::move(first));
  while (TakeOperator(",")) {
    if (Peek().kind == Kind::kStatementEnd || Peek().kind == Kind::kOutputEnd || IsOperator(")")) {
      break;
    }
    ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    node->items.push_back(std::move(item));
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseExpression() {
  const NestingGuard nesting(this);
  RETURN_IF_ERROR(CheckNesting());
  ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
  while (TakeName("if")) {
    ExpressionPtr node = Node(Expression::Kind::kConditional);
    ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
    ExpressionPtr otherwise;
    if (TakeName("else")) {
      ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    node->items.push_back(std::move(value));
    node->items.push_back(std::move(condition));
    node->items.push_back(std::move(otherwise));
    value = std::move(node);
  }
  return value;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseOr() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
  while (TakeName("or")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
    left = Binary("or", std::move(left), std::move(right));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseAnd() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
  while (TakeName("and")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
    left = Binary("and", std::move(left), std::move(right));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNot() {
  const NestingGuard nesting(this);
  RETURN_IF_ERROR(CheckNesting());
  if (TakeName("not")) {
    ExpressionPtr node = Node(Expression::Kind::kUnary, "not");
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseNot());
    node->items.push_back(std::move(operand));
    return node;
  }
  return ParseComparison();
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseComparison() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseSum());
  // The chain a < b < c evaluates each operand once; it is not (a < b) < c.
  ExpressionPtr chain;
  while (true) {
    std::string name;
    if (Peek().kind == Kind::kOperator) {
      for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
        name = name.empty() && IsOperator(op) ? op : name;
      }
    } else if (IsName("in")) {
      name = "in";
    } else if (IsName("not") && Peek(1).text == "in") {
      Next();
      name = "not in";
    }
    if (name.empty()) {
      return chain == nullptr ? std::move(left) : std::move(chain);
    }
    if (chain == nullptr) {
      chain = Node(Expression::Kind::kComparison);
      chain->items.push_back(std::move(left));
    }
    Next();
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseSum());
    chain->operators.push_back(std::move(name));
    chain->items.push_back(std::move(right));
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSum() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseConcat());
  while (IsOperator("+") || IsOperator("-")) {
    const std::string name = Next().text;
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseConcat());
    left = Binary(name, std::move(left), std::move(right));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseConcat() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseProduct());
  while (TakeOperator("~")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseProduct());
    left = Binary("~", std::move(left), std::move(right));
  }
  return left;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseProduct() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary());
  while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
    const std::string name = Next().text;
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary());
    left = Binary(name, std::move(left), std::move(right));
  }
  return left;
}

// Filters bind tighter than binary operators but not than a sign: -1 | abs is (-1) | abs. So only the
// outermost of several signs applies the filters after the operand.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParseUnary(bool filters) {
  const NestingGuard nesting(this);
  RETURN_IF_ERROR(CheckNesting());
  if (IsOperator("-") || IsOperator("+")) {
    ExpressionPtr node = Node(Expression::Kind::kUnary, Next().text);
    ASSIGN_OR_RETURN(ExpressionPtr operand, ParseUnary(/*filters=*/false));
    node->items.push_back(std::move(operand));
    return filters ? ParseFiltersAndTests(std::move(node)) : absl::StatusOr<ExpressionPtr>(std::move(node));
  }
  ASSIGN_OR_RETURN(ExpressionPtr value, ParsePrimary());
  ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  if (TakeOperator("**")) {
    ASSIGN_OR_RETURN(ExpressionPtr exponent, ParseUnary());
    value = Binary("**", std::move(value), std::move(exponent));
  }
  return filters ? ParseFiltersAndTests(std::move(value)) : absl::StatusOr<ExpressionPtr>(std::move(value));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFiltersAndTests(ExpressionPtr value) {
  while (true) {
    if (TakeOperator("|")) {
      ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
      ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    } else if (TakeName("is")) {
      ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseFilter(ExpressionPtr value) {
  ExpressionPtr node = Node(Expression::Kind::kFilter);
  ASSIGN_OR_RETURN(node->name, ExpectName());
  node->items.push_back(std::move(value));
  if (TakeOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(&node->arguments));
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTest(ExpressionPtr value) {
  ExpressionPtr node = Node(Expression::Kind::kTest);
  node->negated = TakeName("not");
  ASSIGN_OR_RETURN(node->name, ExpectName());
  node->items.push_back(std::move(value));
  if (TakeOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(&node->arguments));
    // A test may have one argument without parentheses, as in `x is divisibleby 3`; keywords that continue
    // the expression are not arguments.
  } else if (Peek().kind == Kind::kString || Peek().kind == Kind::kInteger || Peek().kind == Kind::kFloat ||
             (Peek().kind == Kind::kName && !IsName("and") && !IsName("or") && !IsName("if") &&
              !IsName("else") && !IsName("is") && !IsName("in") && !IsName("not"))) {
    ASSIGN_OR_RETURN(ExpressionPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    node->arguments.positional.push_back(std::move(argument));
  }
  return node;
}

absl::Status ExpressionParser::ParseArguments(CallArguments* arguments) {
  while (!TakeOperator(")")) {
    if (Peek().kind == Kind::kName && Peek(1).kind == Kind::kOperator && Peek(1).text == "=") {
      std::string name = Next().text;
      Next();
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      arguments->named.emplace_back(std::move(name), std::move(value));
    } else {
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      arguments->positional.push_back(std::move(value));
    }
    if (!IsOperator(")")) {
      RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePostfix(ExpressionPtr value) {
  while (true) {
    if (TakeOperator(".")) {
      ExpressionPtr node = Node(Expression::Kind::kAttribute);
      if (Peek().kind == Kind::kInteger) {
        node->name = Next().text;
      } else {
        ASSIGN_OR_RETURN(node->name, ExpectName());
      }
      node->items.push_back(std::move(value));
      value = std::move(node);
    } else if (TakeOperator("[")) {
      ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
    } else if (TakeOperator("(")) {
      ExpressionPtr node = Node(Expression::Kind::kCall);
      node->items.push_back(std::move(value));
      RETURN_IF_ERROR(ParseArguments(&node->arguments));
      value = std::move(node);
    } else {
      return value;
    }
  }
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseSubscript(ExpressionPtr value) {
  // Reads up to three bounds, each optional; without a colon it is a plain subscript.
  ExpressionPtr bounds[3];
  int count = 0;
  while (true) {
    if (!IsOperator(":") && !IsOperator("]")) {
      ASSIGN_OR_RETURN(bounds[count], ParseExpression());
    }
    if (count == 2 || !TakeOperator(":")) {
      break;
    }
    ++count;
  }
  RETURN_IF_ERROR(ExpectOperator("]"));
  ExpressionPtr node = Node(count == 0 ? Expression::Kind::kSubscript : Expression::Kind::kSlice);
  if (count == 0 && bounds[0] == nullptr) {
    return Error("an empty subscript");
  }
  node->items.push_back(std::move(value));
  for (int i = 0; i < (count == 0 ? 1 : 3); ++i) {
    node->items.push_back(std::move(bounds[i]));
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePrimary() {
  const Token& token = Peek();
  ExpressionPtr node = Node(Expression::Kind::kLiteral);
  switch (token.kind) {
    case Kind::kString: {
      std::string text = Next().text;
      while (Peek().kind == Kind::kString) {  // adjacent strings are concatenated
        text += Next().text;
      }
      node->literal = Value(String::FromTemplate(text));
      return node;
    }
    case Kind::kInteger: {
      int64_t value = 0;
      const auto result = std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      if (result.ec != std::errc()) {
        return Error(absl::StrCat("the number ", token.text, " is too large"));
      }
      Next();
      node->literal = Value(value);
      return node;
    }
    case Kind::kFloat: {
      double value = 0;
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
      Next();
      node->literal = Value(value);
      return node;
    }
    case Kind::kName:
      return ParseNameOrConstant(std::move(node));
    default:
      break;
  }
  if (TakeOperator("(")) {
    if (TakeOperator(")")) {
      return Node(Expression::Kind::kList);
    }
    ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple());
    RETURN_IF_ERROR(ExpectOperator(")"));
    return inner;
  }
  if (TakeOperator("[")) {
    return ParseListLiteral();
  }
  if (TakeOperator("{")) {
    return ParseMapLiteral();
  }
  return Error(absl::StrCat("expected a value before '", token.text, "'"));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseNameOrConstant(ExpressionPtr node) {
  const std::string name = Next().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    node->literal = Value(name == "true" || name == "True");
  } else if (name == "none" || name == "None") {
    node->literal = Value(None{});
  } else {
    node->kind = Expression::Kind::kName;
    node->name = name;
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseListLiteral() {
  ExpressionPtr node = Node(Expression::Kind::kList);
  while (!TakeOperator("]")) {
    ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
    node->items.push_back(std::move(item));
    if (!IsOperator("]")) {
      RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  return node;
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseMapLiteral() {
  ExpressionPtr node = Node(Expression::Kind::kMap);
  while (!TakeOperator("}")) {
    ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
    RETURN_IF_ERROR(ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
    node->items.push_back(std::move(key));
    node->items.push_back(std::move(value));
    if (!IsOperator("}")) {
      RETURN_IF_ERROR(ExpectOperator(","));
    }
  }
  return node;
}

}  // namespace sluice::jinja
