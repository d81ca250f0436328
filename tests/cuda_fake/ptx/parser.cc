#include "tests/cuda_fake/ptx/parser.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cuda_fake/ptx/lexer.h"

namespace sluice::cuda_fake {
namespace {

// Bytes of a type's name, as in ".u32"; -1 if it is none.
int TypeBytes(absl::string_view type) {
  if (type == ".pred") {
    return 0;
  }
  for (const auto& [suffix, bytes] : {std::pair{"128", 16}, {"64", 8}, {"32", 4}, {"16", 2}, {"8", 1}}) {
    if (type.size() >= 3 && absl::EndsWith(type, suffix)) {
      return bytes;
    }
  }
  return -1;
}

class Parser {
 public:
  explicit Parser(absl::string_view source) : tokens_(Tokenize(source)) {}

  absl::StatusOr<Module> Run() {
    while (error_.ok() && at_ < tokens_.size()) {
      TopLevel();
    }
    if (!error_.ok()) {
      return error_;
    }
    return std::move(module_);
  }

 private:
  static constexpr Token kEnd = {TokenKind::kSign, "", 0};

  const Token& Peek(size_t ahead = 0) const {
    return at_ + ahead < tokens_.size() ? tokens_[at_ + ahead] : kEnd;
  }
  Token Next() {
    const Token token = Peek();
    at_ = std::min(at_ + 1, tokens_.size());
    return token;
  }
  bool Accept(absl::string_view text) {
    if (Peek().text != text || Peek().kind == TokenKind::kString) {
      return false;
    }
    ++at_;
    return true;
  }
  void Expect(absl::string_view text) {
    if (!Accept(text)) {
      Fail(absl::StrCat("\"", text, "\" expected before \"", Peek().text, "\""));
    }
  }
  void Fail(absl::string_view what) {
    if (error_.ok()) {
      const int line = at_ < tokens_.size() ? tokens_[at_].line : -1;
      error_ = absl::InvalidArgumentError(absl::StrCat("PTX line ", line, ": ", what));
    }
    at_ = tokens_.size();
  }
  int64_t Number() {
    const bool negative = Accept("-");
    const Token token = Next();
    const absl::StatusOr<uint64_t> value = ParseLiteral(token.text);
    if (!value.ok()) {
      Fail(value.status().message());
      return 0;
    }
    return negative ? -static_cast<int64_t>(*value) : static_cast<int64_t>(*value);
  }

  void TopLevel();
  void SkipLine();
  void File();
  void VariableDeclaration(Space space, std::vector<Variable>* into);
  void Initializer(uint64_t element, Variable* variable);
  void Entry();
  void Params(Kernel* kernel);
  void Body(Kernel* kernel);
  bool BodyDirective(Kernel* kernel);
  void RegisterDeclaration(Kernel* kernel);
  void ReadStatement(Kernel* kernel);
  Operand ReadOperand();
  Operand ReadSimpleOperand();
  int FindRegister(absl::string_view name) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  Module module_;
  absl::Status error_;
  std::vector<std::map<std::string, int, std::less<>>> scopes_;  // register names of the open braces
  int source_file_ = 0;
  int source_line_ = 0;
  int caller_file_ = 0;
  int caller_line_ = 0;
};

// A directive whose arguments stand on its line.
void Parser::SkipLine() {
  const int line = Next().line;
  while (at_ < tokens_.size() && Peek().line == line) {
    ++at_;
  }
}

void Parser::File() {
  Next();
  const int number = static_cast<int>(Number());
  module_.files[number] = std::string(Next().text);
  while (Accept(",")) {
    Number();
  }
}

void Parser::TopLevel() {
  const absl::string_view word = Peek().text;
  if (word == ".version" || word == ".address_size") {
    SkipLine();
  } else if (word == ".target") {
    Next();
    const absl::string_view target = Next().text;
    std::from_chars(target.data() + 3, target.data() + target.size(), module_.target);
    while (Accept(",")) {
      Next();
    }
  } else if (word == ".file") {
    File();
  } else if (word == ".section") {
    while (at_ < tokens_.size() && !Accept("}")) {
      ++at_;
    }
  } else if (word == ".visible" || word == ".weak" || word == ".extern") {
    Next();
  } else if (word == ".entry") {
    Entry();
  } else if (word == ".global" || word == ".const" || word == ".shared") {
    Next();
    VariableDeclaration(word == ".global"  ? Space::kGlobal
                        : word == ".const" ? Space::kConst
                                           : Space::kShared,
                        &module_.variables);
  } else {
    Fail(absl::StrCat("cannot read \"", word, "\" here"));
  }
}

// .align 4 .b8 name[16] = {1, 2};
void Parser::VariableDeclaration(Space space, std::vector<Variable>* into) {
  Variable variable;
  variable.space = space;
  uint64_t element = 0;
  while (Peek().kind == TokenKind::kWord && Peek().text[0] == '.') {
    const absl::string_view word = Next().text;
    if (word == ".align") {
      variable.align = static_cast<uint32_t>(Number());
    } else if (word == ".ptr" || word == ".global" || word == ".attribute") {
      continue;  // what a pointer parameter points to
    } else if (const int bytes = TypeBytes(word); bytes > 0) {
      element = static_cast<uint64_t>(bytes);
    } else {
      Fail(absl::StrCat("unknown type \"", word, "\" of a variable"));
    }
  }
  variable.name = std::string(Next().text);
  variable.bytes = element;
  variable.align = std::max(variable.align, static_cast<uint32_t>(element));
  while (Accept("[")) {
    variable.bytes *= Peek().text == "]" ? 0 : static_cast<uint64_t>(Number());
    Expect("]");
  }
  if (Accept("=")) {
    Initializer(element, &variable);
  }
  if (space != Space::kParam) {
    Expect(";");
  }
  into->push_back(std::move(variable));
}

void Parser::Initializer(uint64_t element, Variable* variable) {
  const bool braces = Accept("{");
  do {
    if (Peek().kind == TokenKind::kWord) {
      Fail(absl::StrCat("addresses in the initial value of ", variable->name, " are not built"));
      return;
    }
    const uint64_t value = static_cast<uint64_t>(Number());
    for (uint64_t i = 0; i < element; ++i) {
      variable->initial.push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
  } while (braces && Accept(","));
  if (braces) {
    Expect("}");
  }
  variable->initial.resize(variable->bytes);
}

void Parser::Entry() {
  Expect(".entry");
  Kernel kernel;
  kernel.name = std::string(Next().text);
  Params(&kernel);
  while (error_.ok() && Peek().text != "{") {
    const Token word = Next();
    uint32_t product = 1;
    do {
      product *= static_cast<uint32_t>(Number());
    } while (Accept(","));
    if (word.text == ".maxntid" || word.text == ".reqntid") {
      kernel.max_threads = product;
    } else if (word.text != ".minnctapersm") {
      Fail(absl::StrCat("unknown directive \"", word.text, "\" of a kernel"));
    }
  }
  Body(&kernel);
  module_.kernels[kernel.name] = std::move(kernel);
}

void Parser::Params(Kernel* kernel) {
  if (!Accept("(")) {
    return;
  }
  while (error_.ok() && !Accept(")")) {
    Expect(".param");
    VariableDeclaration(Space::kParam, &kernel->params);
    Variable& param = kernel->params.back();
    // ".ptr .align 1 name" says how the target is aligned, not the parameter.
    const uint64_t align = param.bytes <= 8 ? std::max<uint64_t>(param.bytes, 1) : param.align;
    param.offset = (kernel->param_bytes + align - 1) / align * align;
    kernel->param_bytes = param.offset + param.bytes;
    Accept(",");
  }
}

void Parser::Body(Kernel* kernel) {
  Expect("{");
  scopes_.assign(1, {});
  while (error_.ok() && !scopes_.empty()) {
    if (at_ >= tokens_.size()) {
      Fail("the file ends inside a kernel");
    } else if (Accept("{")) {
      scopes_.emplace_back();
    } else if (Accept("}")) {
      scopes_.pop_back();
    } else if (Peek().kind == TokenKind::kWord && Peek(1).text == ":") {
      kernel->labels[std::string(Next().text)] = static_cast<uint32_t>(kernel->statements.size());
      Next();
    } else if (!BodyDirective(kernel)) {
      ReadStatement(kernel);
    }
  }
}

bool Parser::BodyDirective(Kernel* kernel) {
  const absl::string_view word = Peek().text;
  if (word.empty() || word[0] != '.') {
    return false;
  }
  if (word == ".loc") {
    const int line = Next().line;
    source_file_ = static_cast<int>(Number());
    source_line_ = static_cast<int>(Number());
    caller_file_ = caller_line_ = 0;
    while (at_ < tokens_.size() && Peek().line == line) {
      if (Next().text == "inlined_at") {
        caller_file_ = static_cast<int>(Number());
        caller_line_ = static_cast<int>(Number());
      }
    }
  } else if (word == ".pragma") {
    SkipLine();
  } else if (word == ".reg") {
    RegisterDeclaration(kernel);
  } else if (word == ".shared" || word == ".local") {
    Next();
    VariableDeclaration(word == ".shared" ? Space::kShared : Space::kLocal, &kernel->variables);
  } else {
    Fail(absl::StrCat("unknown directive \"", word, "\" in a kernel"));
  }
  return true;
}

// .reg .b32 %r<21>;  or  .reg .b32 lo, hi;
void Parser::RegisterDeclaration(Kernel* kernel) {
  Expect(".reg");
  const Token type = Next();
  const int bytes = TypeBytes(type.text);
  if (bytes < 0) {
    Fail(absl::StrCat("unknown type \"", type.text, "\" of a register"));
    return;
  }
  do {
    const std::string name(Next().text);
    const bool many = Accept("<");
    const int64_t count = many ? Number() : 1;
    if (many) {
      Expect(">");
    }
    for (int64_t i = 0; error_.ok() && i < count; ++i) {
      const std::string full = many ? absl::StrCat(name, i) : name;
      scopes_.back()[full] = static_cast<int>(kernel->registers.size());
      kernel->registers.push_back({full, static_cast<uint32_t>(bytes)});
    }
  } while (Accept(","));
  Expect(";");
}

int Parser::FindRegister(absl::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->find(name); it != scope->end()) {
      return it->second;
    }
  }
  return -1;
}

void Parser::ReadStatement(Kernel* kernel) {
  Statement statement;
  statement.line = Peek().line;
  statement.source_file = source_file_;
  statement.source_line = source_line_;
  statement.caller_file = caller_file_;
  statement.caller_line = caller_line_;
  if (Accept("@")) {
    statement.guard_negated = Accept("!");
    const Token guard = Next();
    statement.guard = FindRegister(guard.text);
    if (statement.guard < 0) {
      Fail(absl::StrCat("unknown predicate ", guard.text));
    }
  }
  statement.opcode = std::string(Next().text);
  statement.words = absl::StrSplit(statement.opcode, '.');
  while (error_.ok() && !Accept(";")) {
    statement.operands.push_back(ReadOperand());
    Accept(",");
  }
  kernel->statements.push_back(std::move(statement));
}

Operand Parser::ReadOperand() {
  Operand operand;
  if (Accept("[")) {
    operand = ReadSimpleOperand();
    operand.kind = Operand::Kind::kAddress;
    if (Accept("+")) {
      operand.offset = Number();
    } else if (Peek().text == "-") {
      operand.offset = Number();
    }
    Expect("]");
    return operand;
  }
  if (Accept("{")) {
    operand.kind = Operand::Kind::kVector;
    do {
      operand.parts.push_back(ReadSimpleOperand());
    } while (Accept(","));
    Expect("}");
    return operand;
  }
  operand = ReadSimpleOperand();
  if (Accept("|")) {
    Operand pair;
    pair.kind = Operand::Kind::kPair;
    pair.parts = {operand, ReadSimpleOperand()};
    return pair;
  }
  if (operand.kind == Operand::Kind::kSymbol && Accept("+")) {
    operand.offset = Number();
  }
  return operand;
}

Operand Parser::ReadSimpleOperand() {
  Operand operand;
  operand.negated = Accept("!");
  const bool minus = Accept("-");
  const Token token = Next();
  operand.text = minus ? absl::StrCat("-", token.text) : std::string(token.text);
  if (token.kind == TokenKind::kNumber) {
    operand.kind = Operand::Kind::kImmediate;
  } else if (token.kind != TokenKind::kWord) {
    Fail(absl::StrCat("operand expected, found \"", token.text, "\""));
  } else if (token.text == "_") {
    operand.kind = Operand::Kind::kSink;
  } else if (operand.reg = FindRegister(token.text); operand.reg >= 0) {
    operand.kind = Operand::Kind::kRegister;
  } else {
    operand.kind = Operand::Kind::kSymbol;
  }
  return operand;
}

}  // namespace

absl::StatusOr<uint64_t> ParseLiteral(absl::string_view text) {
  const absl::string_view all = text;
  const bool negative = !text.empty() && text[0] == '-';
  text.remove_prefix(negative ? 1 : 0);
  int base = 10;
  if (absl::StartsWith(text, "0f") || absl::StartsWith(text, "0F") || absl::StartsWith(text, "0d") ||
      absl::StartsWith(text, "0D") || absl::StartsWith(text, "0x") || absl::StartsWith(text, "0X")) {
    text.remove_prefix(2);
    base = 16;
  }
  if (absl::EndsWith(text, "U")) {
    text.remove_suffix(1);
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", all, "\" is no number"));
  }
  return negative ? 0 - value : value;
}

absl::StatusOr<Module> ParsePtx(absl::string_view source) { return Parser(source).Run(); }

}  // namespace sluice::cuda_fake
