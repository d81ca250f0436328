#include "common/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "common/status.h"
#include "common/text/jinja/expression_parser.h"

namespace sluice::jinja {
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
    if (name == "generation") {
      Statement statement = Make(Statement::Kind::kBlock);
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

  absl::StatusOr<std::vector<std::string>> ParseTargets() {
    std::vector<std::string> targets;
    const bool parenthesised = TakeOperator("(");
    do {
      ASSIGN_OR_RETURN(std::string target, ExpectName());
      targets.push_back(std::move(target));
    } while (TakeOperator(","));
    if (parenthesised) {
      RETURN_IF_ERROR(ExpectOperator(")"));
    }
    return targets;
  }

  absl::StatusOr<Statement> ParseFor() {
    Statement statement = Make(Statement::Kind::kFor);
    ASSIGN_OR_RETURN(statement.targets, ParseTargets());
    if (!TakeName("in")) {
      return Error("expected 'in' in for");
    }
    ASSIGN_OR_RETURN(statement.expression, ParseOr());  // not a conditional: `if` filters the loop
    if (TakeName("if")) {
      ASSIGN_OR_RETURN(statement.condition, ParseExpression());
    }
    if (IsName("recursive")) {
      return absl::UnimplementedError(
          absl::StrCat("template line ", Peek().line, ": recursive loops are not supported"));
    }
    RETURN_IF_ERROR(ExpectStatementEnd());
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"else", "endfor"}));
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
    ASSIGN_OR_RETURN(statement.targets, ParseTargets());
    if (TakeOperator(".")) {
      ASSIGN_OR_RETURN(statement.attribute, ExpectName());
    }
    if (TakeOperator("=")) {
      ASSIGN_OR_RETURN(statement.expression, ParseTuple());
      RETURN_IF_ERROR(ExpectStatementEnd());
      return statement;
    }
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

  absl::StatusOr<Statement> ParseMacro() {
    Statement statement = Make(Statement::Kind::kMacro);
    ASSIGN_OR_RETURN(statement.name, ExpectName());
    RETURN_IF_ERROR(ParseParameters(&statement));
    RETURN_IF_ERROR(ExpectStatementEnd());
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"endmacro"}));
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
    ASSIGN_OR_RETURN(statement.body, ParseBlock({"endcall"}));
    RETURN_IF_ERROR(ExpectEnd("endcall"));
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
