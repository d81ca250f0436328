// Parser of the template language: tokens, expressions, statements.

#include "common/text/jinja_parser.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::jinja {

// TokenReader: the token list of a template with a read position; base of both halves of the parser.
//
// Thread safety: used by one thread.

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
  size_t position() const { return at_; }
  // Returns true if a token between `begin` and the present one is this name.
  bool UsesName(size_t begin, const char* name) const {
    return std::any_of(
        tokens_.begin() + static_cast<ptrdiff_t>(begin), tokens_.begin() + static_cast<ptrdiff_t>(at_),
        [name](const Token& token) { return token.kind == Kind::kName && token.text == name; });
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

// ExpressionParser: the half of the parser that reads expressions, with Jinja's precedence.
//
// Thread safety: used by one thread.

class ExpressionParser : public TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  ExpressionPtr Node(Expression::Kind kind, std::string name = "") const;
  ExpressionPtr Binary(std::string name, ExpressionPtr left, ExpressionPtr right) const;
  // Parses `a, b`: a tuple without parentheses.
  absl::StatusOr<ExpressionPtr> ParseTuple();
  absl::StatusOr<ExpressionPtr> ParseExpression();
  absl::StatusOr<ExpressionPtr> ParseOr();
  absl::StatusOr<ExpressionPtr> ParseAnd();
  absl::StatusOr<ExpressionPtr> ParseNot();
  absl::StatusOr<ExpressionPtr> ParseComparison();
  absl::StatusOr<ExpressionPtr> ParseSum();
  absl::StatusOr<ExpressionPtr> ParseConcat();
  absl::StatusOr<ExpressionPtr> ParseProduct();
  absl::StatusOr<ExpressionPtr> ParsePower();
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
// next: tuple, if-else, or, and, not, comparison, + -, ~, * / // %, **, unary, then names, calls and
// subscripts. The levels are Jinja's, which differ from Python's.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTuple() {
  ASSIGN_OR_RETURN(ExpressionPtr first, ParseExpression());
  if (!IsOperator(",")) {
    return first;
  }
  ExpressionPtr node = Node(Expression::Kind::kTuple);
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
  ASSIGN_OR_RETURN(ExpressionPtr left, ParsePower());
  while (IsOperator("*") || IsOperator("/") || IsOperator("//") || IsOperator("%")) {
    const std::string name = Next().text;
    ASSIGN_OR_RETURN(ExpressionPtr right, ParsePower());
    left = Binary(name, std::move(left), std::move(right));
  }
  return left;
}

// Unlike Python's, this power is left-associative, and a sign binds tighter: -2 ** 2 is 4.
absl::StatusOr<ExpressionPtr> ExpressionParser::ParsePower() {
  ASSIGN_OR_RETURN(ExpressionPtr left, ParseUnary());
  while (TakeOperator("**")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, ParseUnary());
    left = Binary("**", std::move(left), std::move(right));
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
             IsOperator("[") || IsOperator("{") || IsOperator("(") ||
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
    if (TakeOperator("*")) {
      ASSIGN_OR_RETURN(arguments->list, ParseExpression());
    } else if (TakeOperator("**")) {
      ASSIGN_OR_RETURN(arguments->mapping, ParseExpression());
    } else if (Peek().kind == Kind::kName && Peek(1).kind == Kind::kOperator && Peek(1).text == "=") {
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
      node->literal = IntegerOf(Next().text);
      return node;
    }
    case Kind::kFloat: {
      node->literal = Value(std::strtod(Next().text.c_str(), nullptr));
      return node;
    }
    case Kind::kName:
      return ParseNameOrConstant(std::move(node));
    default:
      break;
  }
  if (TakeOperator("(")) {
    if (TakeOperator(")")) {
      return Node(Expression::Kind::kTuple);
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

namespace {

constexpr size_t kMaxTagTokens = 1000;  // a chain a + b + c ... is as deep as it is long

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  absl::StatusOr<Block> Run() {
    ASSIGN_OR_RETURN(Block block, ParseBlock({}));
    if (Peek().kind != Kind::kEnd) {
      return Error(absl::StrCat("unexpected '", Peek(1).text, "'"));
    }
    return block;
  }

 private:
  // Reads statements up to the template's end or to a tag that begins with one of `ends`; does not consume
  // that tag's StatementBegin.
  absl::StatusOr<Block> ParseBlock(std::initializer_list<const char*> ends) {
    const NestingGuard nesting(this);
    RETURN_IF_ERROR(CheckNesting());
    Block block;
    while (Peek().kind != Kind::kEnd) {
      if (Peek().kind == Kind::kStatementBegin &&
          std::any_of(ends.begin(), ends.end(), [this](const char* end) { return Peek(1).text == end; })) {
        break;
      }
      ASSIGN_OR_RETURN(Statement statement, ParseStatement());
      block.push_back(std::move(statement));
    }
    return block;
  }

  absl::Status ExpectEnd(const char* name) {
    if (Peek().kind != Kind::kStatementBegin || Peek(1).text != name) {
      return Error(absl::StrCat("expected ", name));
    }
    Next();
    Next();
    return ExpectStatementEnd();
  }

  Statement Make(Statement::Kind kind) const {
    Statement statement;
    statement.kind = kind;
    statement.line = Peek().line;
    return statement;
  }

  absl::StatusOr<Statement> ParseStatement() {
    if (Peek().kind == Kind::kText) {
      Statement statement = Make(Statement::Kind::kText);
      statement.text = Next().text;
      return statement;
    }
    if (Peek().kind == Kind::kOutputBegin) {
      Statement statement = Make(Statement::Kind::kOutput);
      Next();
      ASSIGN_OR_RETURN(statement.expression, ParseTuple());
      if (Peek().kind != Kind::kOutputEnd) {
        return Error(absl::StrCat("expected '}}' before '", Peek().text, "'"));
      }
      Next();
      return statement;
    }
    Next();
    ASSIGN_OR_RETURN(const std::string name, ExpectName());
    return ParseTag(name);
  }

  absl::StatusOr<Statement> ParseTag(const std::string& name) {
    if (name == "if") {
      return ParseIf();
    }
    if (name == "for") {
      return ParseFor();
    }
    if (name == "set") {
      return ParseSet();
    }
    if (name == "macro") {
      return ParseMacro();
    }
    if (name == "call") {
      return ParseCallBlock();
    }
    if (name == "filter") {
      return ParseFilterBlock();
    }
    if (name == "with") {
      return ParseWith();
    }
    if (name == "block") {
      return ParseNamedBlock();
    }
    if (name == "generation") {
      Statement statement = Make(Statement::Kind::kWith);
      RETURN_IF_ERROR(ExpectStatementEnd());
      ASSIGN_OR_RETURN(statement.body, ParseBlock({"endgeneration"}));
      RETURN_IF_ERROR(ExpectEnd("endgeneration"));
      return statement;
    }
    if (name == "break" || name == "continue") {
      Statement statement = Make(name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue);
      RETURN_IF_ERROR(ExpectStatementEnd());
      return statement;
    }
    return absl::UnimplementedError(
        absl::StrCat("template line ", Peek().line, ": the tag '", name, "' is not supported"));
  }

  absl::StatusOr<Statement> ParseIf() {
    Statement statement = Make(Statement::Kind::kIf);
    bool last = false;
    while (true) {
      Branch branch;
      if (!last) {
        ASSIGN_OR_RETURN(branch.condition, ParseTuple());
      }
      RETURN_IF_ERROR(ExpectStatementEnd());
      ASSIGN_OR_RETURN(branch.body, last ? ParseBlock({"endif"}) : ParseBlock({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      if (Peek().kind != Kind::kStatementBegin || Peek(1).text == "endif") {
        break;
      }
      last = Peek(1).text == "else";
      Next();
      Next();
    }
    RETURN_IF_ERROR(ExpectEnd("endif"));
    return statement;
  }

  absl::StatusOr<Target> ParseTarget() {
    const NestingGuard nesting(this);
    RETURN_IF_ERROR(CheckNesting());
    Target target;
    if (TakeOperator("(") || TakeOperator("[")) {
      ASSIGN_OR_RETURN(target, ParseTargets());
      if (!TakeOperator("]")) {
        RETURN_IF_ERROR(ExpectOperator(")"));
      }
      return target;
    }
    ASSIGN_OR_RETURN(target.name, ExpectName());
    return target;
  }

  // Parses `a`, `a, b` or `(a, b), c`.
  absl::StatusOr<Target> ParseTargets() {
    ASSIGN_OR_RETURN(Target first, ParseTarget());
    if (!IsOperator(",")) {
      return first;
    }
    Target all;
    all.items.push_back(std::move(first));
    while (TakeOperator(",") && (Peek().kind == Kind::kName || IsOperator("(") || IsOperator("["))) {
      ASSIGN_OR_RETURN(Target next, ParseTarget());
      all.items.push_back(std::move(next));
    }
    return all;
  }

  // Parses what a loop runs over: a tuple without conditionals, since `if` filters the loop.
  absl::StatusOr<ExpressionPtr> ParseIterable() {
    ASSIGN_OR_RETURN(ExpressionPtr first, ParseOr());
    if (!IsOperator(",")) {
      return first;
    }
    ExpressionPtr node = Node(Expression::Kind::kTuple);
    node->items.push_back(std::move(first));
    while (TakeOperator(",")) {
      ASSIGN_OR_RETURN(ExpressionPtr item, ParseOr());
      node->items.push_back(std::move(item));
    }
    return node;
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement = Make(Statement::Kind::kFor);
    ASSIGN_OR_RETURN(statement.target, ParseTargets());
    if (!TakeName("in")) {
      return Error("expected 'in' in for");
    }
    ASSIGN_OR_RETURN(statement.expression, ParseIterable());
    if (TakeName("if")) {
      ASSIGN_OR_RETURN(statement.condition, ParseExpression());
    }
    statement.recursive = TakeName("recursive");
    RETURN_IF_ERROR(ExpectStatementEnd());
    const size_t begin = position();
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"else", "endfor"}));
    statement.uses_loop = UsesName(begin, "loop");
    if (Peek(1).text == "else") {
      Next();
      Next();
      RETURN_IF_ERROR(ExpectStatementEnd());
      ASSIGN_OR_RETURN(statement.else_body, ParseBlock({"endfor"}));
    }
    RETURN_IF_ERROR(ExpectEnd("endfor"));
    return statement;
  }

  absl::StatusOr<Statement> ParseSet() {
    Statement statement = Make(Statement::Kind::kSet);
    ASSIGN_OR_RETURN(statement.target, ParseTargets());
    if (TakeOperator(".")) {
      ASSIGN_OR_RETURN(statement.attribute, ExpectName());
    }
    if (TakeOperator("=")) {
      ASSIGN_OR_RETURN(statement.expression, ParseTuple());
      RETURN_IF_ERROR(ExpectStatementEnd());
      return statement;
    }
    statement.expression = std::make_unique<Expression>();  // replaced by the body's text
    while (TakeOperator("|")) {
      ASSIGN_OR_RETURN(statement.expression, ParseFilter(std::move(statement.expression)));
    }
    statement.captures = true;
    RETURN_IF_ERROR(ExpectStatementEnd());
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"endset"}));
    RETURN_IF_ERROR(ExpectEnd("endset"));
    return statement;
  }

  absl::Status ParseParameters(Statement* statement) {
    RETURN_IF_ERROR(ExpectOperator("("));
    while (!TakeOperator(")")) {
      ASSIGN_OR_RETURN(std::string name, ExpectName());
      ExpressionPtr value;
      if (TakeOperator("=")) {
        ASSIGN_OR_RETURN(value, ParseExpression());
      }
      statement->parameters.emplace_back(std::move(name), std::move(value));
      if (!IsOperator(")")) {
        RETURN_IF_ERROR(ExpectOperator(","));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseMacroBody(const char* end, Statement* statement) {
    const size_t begin = position();
    ASSIGN_OR_RETURN(statement->body, ParseBlock({end}));
    statement->uses_caller = UsesName(begin, "caller");
    statement->uses_varargs = UsesName(begin, "varargs");
    statement->uses_kwargs = UsesName(begin, "kwargs");
    return absl::OkStatus();
  }

  absl::StatusOr<Statement> ParseMacro() {
    Statement statement = Make(Statement::Kind::kMacro);
    ASSIGN_OR_RETURN(statement.name, ExpectName());
    RETURN_IF_ERROR(ParseParameters(&statement));
    RETURN_IF_ERROR(ExpectStatementEnd());
    RETURN_IF_ERROR(ParseMacroBody("endmacro", &statement));
    RETURN_IF_ERROR(ExpectEnd("endmacro"));
    return statement;
  }

  absl::StatusOr<Statement> ParseCallBlock() {
    Statement statement = Make(Statement::Kind::kCallBlock);
    if (IsOperator("(")) {
      RETURN_IF_ERROR(ParseParameters(&statement));
    }
    ASSIGN_OR_RETURN(statement.expression, ParseExpression());
    if (statement.expression->kind != Expression::Kind::kCall) {
      return Error("call needs a call of a macro");
    }
    RETURN_IF_ERROR(ExpectStatementEnd());
    RETURN_IF_ERROR(ParseMacroBody("endcall", &statement));
    RETURN_IF_ERROR(ExpectEnd("endcall"));
    return statement;
  }

  absl::StatusOr<Statement> ParseWith() {
    Statement statement = Make(Statement::Kind::kWith);
    while (Peek().kind == Kind::kName) {
      std::string name = Next().text;
      RETURN_IF_ERROR(ExpectOperator("="));
      ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      statement.parameters.emplace_back(std::move(name), std::move(value));
      if (!TakeOperator(",")) {
        break;
      }
    }
    RETURN_IF_ERROR(ExpectStatementEnd());
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"endwith"}));
    RETURN_IF_ERROR(ExpectEnd("endwith"));
    return statement;
  }

  // A block renders in place: no template of ours extends another.
  absl::StatusOr<Statement> ParseNamedBlock() {
    Statement statement = Make(Statement::Kind::kWith);
    RETURN_IF_ERROR(ExpectName().status());
    RETURN_IF_ERROR(ExpectStatementEnd());
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"endblock"}));
    Next();
    Next();
    if (Peek().kind == Kind::kName) {
      Next();
    }
    RETURN_IF_ERROR(ExpectStatementEnd());
    return statement;
  }

  absl::StatusOr<Statement> ParseFilterBlock() {
    Statement statement = Make(Statement::Kind::kFilterBlock);
    auto chain = std::make_unique<Expression>();  // replaced by the body's text
    do {
      ASSIGN_OR_RETURN(chain, ParseFilter(std::move(chain)));
    } while (TakeOperator("|"));
    statement.expression = std::move(chain);
    RETURN_IF_ERROR(ExpectStatementEnd());
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"endfilter"}));
    RETURN_IF_ERROR(ExpectEnd("endfilter"));
    return statement;
  }
};

}  // namespace

absl::StatusOr<Block> Parse(std::string_view source) {
  // Trees are walked recursively, so the maximum length of a tag bounds the stack, as the maximum nesting
  // does for blocks.
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  size_t begin = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind == Token::Kind::kStatementBegin || tokens[i].kind == Token::Kind::kOutputBegin) {
      begin = i;
    } else if (tokens[i].kind != Token::Kind::kText && i - begin > kMaxTagTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("template line ", tokens[i].line, ": a tag of more than ", kMaxTagTokens, " tokens"));
    }
  }
  return StatementParser(std::move(tokens)).Run();
}

}  // namespace sluice::jinja
