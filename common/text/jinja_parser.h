// Parser of the template language: tree, tokens, Parse.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/text/jinja_value.h"

namespace sluice::jinja {

// Syntax tree of a template. Built by the parser, walked by the interpreter
// (jinja_interpreter.h).
//
// Thread safety: immutable after parsing; may be walked by any number of threads.

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr list;     // behind `*`; null: absent
  ExpressionPtr mapping;  // behind `**`
};

struct Expression {
  enum class Kind {
    kLiteral,      // literal
    kName,         // name
    kList,         // items
    kTuple,        // items
    kMap,          // items: key, value, key, value, ...
    kAttribute,    // items[0] . name
    kSubscript,    // items[0] [ items[1] ]
    kSlice,        // items[0] [ items[1] : items[2] : items[3] ], null where absent
    kCall,         // items[0] ( arguments )
    kFilter,       // items[0] | name ( arguments )
    kTest,         // items[0] is name ( arguments ); negated: is not
    kUnary,        // name: "-", "+", "not"
    kBinary,       // name: the operator
    kComparison,   // items compared pairwise by `operators`, as Python chains them
    kConditional,  // items[0] if items[1] else items[2] (may be null)
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  std::string name;
  bool negated = false;
  Value literal;
  std::vector<ExpressionPtr> items;
  std::vector<std::string> operators;
  CallArguments arguments;
};

struct Statement;
using Block = std::vector<Statement>;

// Target of an assignment: a name, or several for the items of a list.
struct Target {
  std::string name;
  std::vector<Target> items;  // empty: `name`
};

struct Branch {
  ExpressionPtr condition;  // null: else
  Block body;
};

struct Statement {
  enum class Kind {
    kText,         // text
    kOutput,       // expression
    kIf,           // branches
    kFor,          // target, expression (the iterable), condition (may be null), body, else_body, recursive
    kSet,          // target (or its attribute), expression; with a body: the chain of filters over its text
    kMacro,        // name, parameters, body
    kCallBlock,    // expression (a call), parameters, body: the callee's caller()
    kFilterBlock,  // expression: a filter chain whose innermost value is the literal undefined; body
    kWith,         // parameters: names and values of a scope of its own; body (also block and generation)
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  std::string name;
  std::string attribute;
  Target target;
  bool captures = false;  // kSet: of the body's text
  bool recursive = false;
  bool uses_loop = false;  // kFor: the body reads `loop`, which costs more than an empty iteration
  // Names that a macro's body uses: it takes further arguments only then.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::vector<Branch> branches;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // default may be null
  Block body;
  Block else_body;
};

// Tokenize: splits a template into text and tokens, with Jinja's white-space control: trim_blocks and
// lstrip_blocks are on, as chat templates expect, and `-`/`+` at a tag overrides them.
//
// Thread safety: a pure function.

struct Token {
  enum class Kind {
    kText,
    kStatementBegin,
    kStatementEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// INVALID_ARGUMENT with the line: unclosed tag, comment or string; a character that starts no token.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// Parser: template source to syntax tree. Supports the subset that chat templates use: output, if, for (with
// else, condition, recursive, break, continue), set (also blocks and namespace attributes), macro, call,
// filter blocks, with, block, raw, generation; all of Jinja's expressions. All other tags (import, include,
// extends, ...) are UNIMPLEMENTED, named with their line.
//
// Thread safety: a pure function.

absl::StatusOr<Block> Parse(std::string_view source);

}  // namespace sluice::jinja
