// Interpreter of the template language: expressions, then statements.

#include "common/text/jinja_interpreter.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja_builtins.h"
#include "common/text/jinja_parser.h"

namespace sluice::jinja {

// Evaluator: evaluates expressions in a stack of name spaces, within the limits of a rendering.
//
// Thread safety: thread-compatible.

// One name space. Loops and macros open one; `if` does not.
struct Frame {
  Map names;
  bool function = false;  // frame of a macro: hides the names of the frames below, except the globals'
};

// Counts one level of nesting during its lifetime.
class DepthGuard {
 public:
  explicit DepthGuard(int* depth) : depth_(depth) { ++*depth_; }
  ~DepthGuard() { --*depth_; }

 private:
  int* depth_;
};

class Evaluator {
 public:
  explicit Evaluator(const RenderLimits& limits) : limits_(limits) {}

  absl::StatusOr<Value> Evaluate(const Expression& expression);
  absl::StatusOr<Arguments> EvaluateArguments(const CallArguments& arguments);
  Value Lookup(const std::string& name);

  // Counts one step of work at a line of the template. RESOURCE_EXHAUSTED: too many steps, or too deep
  // nesting.
  absl::Status Step(int line);
  // Adds the line to the error, unless it already has one.
  static absl::Status WithLine(const absl::Status& status, int line);

  const RenderLimits& limits() const { return limits_; }
  std::vector<Frame>& frames() { return frames_; }
  int* depth() { return &depth_; }
  // Sets the initial value of a filter block's chain.
  void set_filter_body(Value body) { filter_body_ = std::move(body); }

 private:
  void CountWork(const Value& value);
  absl::StatusOr<Value> EvaluateKind(const Expression& expression);
  absl::StatusOr<Value> EvaluateList(const Expression& expression);
  absl::StatusOr<Value> EvaluateMap(const Expression& expression);
  absl::StatusOr<Value> EvaluateAttribute(const Expression& expression);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression);
  absl::StatusOr<Value> EvaluateCall(const Expression& expression);
  absl::StatusOr<Value> EvaluateUnary(const Expression& expression);
  absl::StatusOr<Value> EvaluateComparison(const Expression& expression);
  absl::StatusOr<Value> EvaluateBinary(const Expression& expression);

  const RenderLimits limits_;
  std::vector<Frame>
      frames_;  // [0] globals and variables, [1] the template's own names, then loops and macros
  Value filter_body_;
  uint64_t steps_ = 0;
  int depth_ = 0;
};

absl::Status Evaluator::Step(int line) {
  if (++steps_ > limits_.steps) {
    return absl::ResourceExhaustedError(
        absl::StrCat("template line ", line, ": more than ", limits_.steps, " steps"));
  }
  if (depth_ > limits_.depth) {
    return absl::ResourceExhaustedError(
        absl::StrCat("template line ", line, ": nested deeper than ", limits_.depth));
  }
  return absl::OkStatus();
}

// Copying and searching a large value costs steps too: otherwise a template that doubles a string in a loop
// would stay within its steps.
void Evaluator::CountWork(const Value& value) {
  constexpr size_t kPerStep = 256;  // bytes, or items of a list
  if (const String* text = value.string()) {
    steps_ += text->text.size() / kPerStep;
  } else if (const List* list = value.list()) {
    steps_ += list->size() / (kPerStep / 16);
  }
}

absl::Status Evaluator::WithLine(const absl::Status& status, int line) {
  const std::string message(status.message());
  return message.rfind("template line ", 0) == 0 ? status
                                                 : Annotate(status, absl::StrCat("template line ", line));
}

Value Evaluator::Lookup(const std::string& name) {
  // Innermost frame first. A macro's body sees its own names, the template's and the globals, but not its
  // caller's.
  for (size_t i = frames_.size(); i-- > 0;) {
    if (const Value* found = FindKey(frames_[i].names, name)) {
      return *found;
    }
    if (frames_[i].function) {
      i = std::min<size_t>(i, 2);  // skips to the template's own names and the globals
    }
  }
  return Value::MakeUndefined(name);
}

absl::StatusOr<Arguments> Evaluator::EvaluateArguments(const CallArguments& arguments) {
  Arguments values;
  for (const ExpressionPtr& argument : arguments.positional) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    values.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : arguments.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    SetKey(values.named, name, std::move(value));
  }
  return values;
}

absl::StatusOr<Value> Evaluator::Evaluate(const Expression& expression) {
  RETURN_IF_ERROR(Step(expression.line));
  const DepthGuard depth(&depth_);
  absl::StatusOr<Value> value = EvaluateKind(expression);
  if (!value.ok()) {
    return WithLine(value.status(), expression.line);
  }
  if (value->string() != nullptr && value->string()->text.size() > limits_.output_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "template line ", expression.line, ": a text of more than ", limits_.output_bytes, " bytes"));
  }
  CountWork(*value);
  return value;
}

absl::StatusOr<Value> Evaluator::EvaluateKind(const Expression& expression) {
  switch (expression.kind) {
    case Expression::Kind::kLiteral:
      return expression.literal.undefined() ? filter_body_ : expression.literal;
    case Expression::Kind::kName:
      return Lookup(expression.name);
    case Expression::Kind::kList:
      return EvaluateList(expression);
    case Expression::Kind::kMap:
      return EvaluateMap(expression);
    case Expression::Kind::kAttribute:
      return EvaluateAttribute(expression);
    case Expression::Kind::kSubscript: {
      ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.items[0]));
      ASSIGN_OR_RETURN(const Value index, Evaluate(*expression.items[1]));
      CountWork(object);
      return Subscript(object, index);
    }
    case Expression::Kind::kSlice:
      return EvaluateSlice(expression);
    case Expression::Kind::kCall:
      return EvaluateCall(expression);
    case Expression::Kind::kFilter: {
      ASSIGN_OR_RETURN(const Value subject, Evaluate(*expression.items[0]));
      ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression.arguments));
      return ApplyFilter(expression.name, subject, arguments);
    }
    case Expression::Kind::kTest: {
      ASSIGN_OR_RETURN(const Value subject, Evaluate(*expression.items[0]));
      ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression.arguments));
      ASSIGN_OR_RETURN(const bool result, ApplyTest(expression.name, subject, arguments));
      return Value(result != expression.negated);
    }
    case Expression::Kind::kUnary:
      return EvaluateUnary(expression);
    case Expression::Kind::kBinary:
      return EvaluateBinary(expression);
    case Expression::Kind::kComparison:
      return EvaluateComparison(expression);
    case Expression::Kind::kConditional: {
      ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.items[1]));
      const ExpressionPtr& chosen = expression.items[condition.Truthy() ? 0 : 2];
      return chosen == nullptr ? absl::StatusOr<Value>(Value::MakeUndefined("if without else"))
                               : Evaluate(*chosen);
    }
  }
  return absl::InternalError("unknown expression");
}

absl::StatusOr<Value> Evaluator::EvaluateList(const Expression& expression) {
  List list;
  for (const ExpressionPtr& item : expression.items) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*item));
    list.push_back(std::move(value));
  }
  return Value(std::move(list));
}

absl::StatusOr<Value> Evaluator::EvaluateMap(const Expression& expression) {
  Map map;
  for (size_t i = 0; i + 1 < expression.items.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.items[i]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expression.items[i + 1]));
    const bool integer = key.As<int64_t>() != nullptr;
    if ((!integer && key.string() == nullptr) || (i > 0 && integer != map.integer_keys)) {
      return absl::UnimplementedError(
          absl::StrCat("a mapping whose keys are not all strings or all integers (", key.TypeName(),
                       ") is not supported"));
    }
    map.integer_keys = integer;
    const String name = ToString(key);
    // Keys carry no marks of their own. One key from a client marks all keys as the client's, which is the
    // safe side.
    map.client = map.client || name.marks.find(1) != std::string::npos;
    SetKey(map, name.text, std::move(value));
  }
  return Value(std::move(map));
}

absl::StatusOr<Value> Evaluator::EvaluateAttribute(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.items[0]));
  int64_t index = 0;
  if (expression.name.find_first_not_of("0123456789") == std::string::npos && expression.name.size() < 9) {
    index = std::stoll(expression.name);
    return Subscript(object, Value(index));
  }
  return Subscript(object, Value(String::FromTemplate(expression.name)));
}

absl::StatusOr<Value> Evaluator::EvaluateSlice(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.items[0]));
  Value bounds[3];
  for (int i = 0; i < 3; ++i) {
    if (expression.items[i + 1] != nullptr) {
      ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.items[i + 1]));
    }
  }
  return SliceOf(object, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Value> Evaluator::EvaluateCall(const Expression& expression) {
  ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression.arguments));
  const Expression& callee = *expression.items[0];
  if (callee.kind == Expression::Kind::kAttribute) {
    ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.items[0]));
    if (Map* map = object.map()) {
      const Value* found = FindKey(*map, callee.name);
      if (found != nullptr && found->function() != nullptr) {
        return (*found->function())(arguments);
      }
    }
    return CallMethod(object, callee.name, arguments);
  }
  ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  if (function.function() == nullptr) {
    if (function.undefined()) {
      return absl::UnimplementedError(absl::StrCat("the function '", callee.name, "' is not supported"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", function.TypeName(), " cannot be called"));
  }
  return (*function.function())(arguments);
}

absl::StatusOr<Value> Evaluator::EvaluateUnary(const Expression& expression) {
  ASSIGN_OR_RETURN(const Value operand, Evaluate(*expression.items[0]));
  if (expression.name == "not") {
    return Value(!operand.Truthy());
  }
  return ApplyBinary(expression.name, Value(0), operand);
}

absl::StatusOr<Value> Evaluator::EvaluateComparison(const Expression& expression) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expression.items[0]));
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expression.items[i + 1]));
    ASSIGN_OR_RETURN(const Value holds, ApplyBinary(expression.operators[i], left, right));
    if (!holds.Truthy()) {
      return Value(false);
    }
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Value> Evaluator::EvaluateBinary(const Expression& expression) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expression.items[0]));
  if ((expression.name == "and" && !left.Truthy()) || (expression.name == "or" && left.Truthy())) {
    return left;
  }
  ASSIGN_OR_RETURN(Value right, Evaluate(*expression.items[1]));
  if (expression.name == "and" || expression.name == "or") {
    return right;
  }
  return ApplyBinary(expression.name, left, right);
}

namespace {

// Exit of a block: normal, or by break or continue of the innermost loop.
enum class Flow { kNormal, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const Map& variables, absl::Time now, const RenderLimits& limits) : evaluator_(limits) {
    // The globals and the conversation's variables are the outermost frame, the template's own assignments
    // the second: a template may shadow a variable but not change it.
    evaluator_.frames().push_back({variables, false});
    AddGlobals(now, &evaluator_.frames()[0].names);
    evaluator_.frames().push_back({{}, false});
  }

  absl::StatusOr<String> Run(const Block& block) {
    String out;
    ASSIGN_OR_RETURN(const Flow flow, RunBlock(block, &out));
    (void)flow;
    return out;
  }

 private:
  void Assign(const std::string& name, Value value) {
    SetKey(evaluator_.frames().back().names, name, std::move(value));
  }

  absl::Status AssignTargets(const std::vector<std::string>& targets, Value value, int line) {
    if (targets.size() == 1) {
      Assign(targets[0], std::move(value));
      return absl::OkStatus();
    }
    const List* items = value.list();
    if (items == nullptr || items->size() != targets.size()) {
      return absl::InvalidArgumentError(absl::StrCat("template line ", line,
                                                     ": cannot unpack a value of type ", value.TypeName(),
                                                     " into ", targets.size(), " names"));
    }
    for (size_t i = 0; i < targets.size(); ++i) {
      Assign(targets[i], (*items)[i]);
    }
    return absl::OkStatus();
  }

  absl::Status Emit(const String& text, String* out, int line) {
    out->Append(text);
    if (out->text.size() > evaluator_.limits().output_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("template line ", line, ": more than ",
                                                       evaluator_.limits().output_bytes, " bytes of output"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Flow> RunBlock(const Block& block, String* out) {
    const DepthGuard depth(evaluator_.depth());
    for (const Statement& statement : block) {
      RETURN_IF_ERROR(evaluator_.Step(statement.line));
      absl::StatusOr<Flow> flow = RunStatement(statement, out);
      if (!flow.ok()) {
        return Evaluator::WithLine(flow.status(), statement.line);
      }
      if (*flow != Flow::kNormal) {
        return flow;
      }
    }
    return Flow::kNormal;
  }

  absl::StatusOr<Flow> RunStatement(const Statement& statement, String* out) {
    switch (statement.kind) {
      case Statement::Kind::kText:
        RETURN_IF_ERROR(Emit(String::FromTemplate(statement.text), out, statement.line));
        return Flow::kNormal;
      case Statement::Kind::kOutput: {
        ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.expression));
        RETURN_IF_ERROR(Emit(ToString(value), out, statement.line));
        return Flow::kNormal;
      }
      case Statement::Kind::kIf:
        return RunIf(statement, out);
      case Statement::Kind::kFor:
        return RunFor(statement, out);
      case Statement::Kind::kSet:
        RETURN_IF_ERROR(RunSet(statement));
        return Flow::kNormal;
      case Statement::Kind::kMacro:
        Assign(statement.name, MakeMacro(statement));
        return Flow::kNormal;
      case Statement::Kind::kCallBlock:
        RETURN_IF_ERROR(RunCallBlock(statement, out));
        return Flow::kNormal;
      case Statement::Kind::kFilterBlock: {
        String body;
        ASSIGN_OR_RETURN(const Flow flow, RunBlock(statement.body, &body));
        (void)flow;
        evaluator_.set_filter_body(Value(std::move(body)));
        ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.expression));
        RETURN_IF_ERROR(Emit(ToString(value), out, statement.line));
        return Flow::kNormal;
      }
      case Statement::Kind::kBlock:
        return RunBlock(statement.body, out);
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return absl::InternalError("unknown statement");
  }

  absl::StatusOr<Flow> RunIf(const Statement& statement, String* out) {
    for (const Branch& branch : statement.branches) {
      if (branch.condition != nullptr) {
        ASSIGN_OR_RETURN(const Value condition, evaluator_.Evaluate(*branch.condition));
        if (!condition.Truthy()) {
          continue;
        }
      }
      return RunBlock(branch.body, out);
    }
    return Flow::kNormal;
  }

  // Returns the items that pass the loop's own condition. They are selected before the loop runs, because
  // loop.length and loop.last count only these.
  absl::StatusOr<List> LoopItems(const Statement& statement) {
    ASSIGN_OR_RETURN(const Value iterable, evaluator_.Evaluate(*statement.expression));
    ASSIGN_OR_RETURN(List items, Items(iterable));
    if (statement.condition == nullptr) {
      return items;
    }
    List chosen;
    evaluator_.frames().push_back({});
    absl::Status status;
    for (const Value& item : items) {
      status = evaluator_.Step(statement.line);
      if (status.ok()) {
        status = AssignTargets(statement.targets, item, statement.line);
      }
      absl::StatusOr<Value> keep = status.ok() ? evaluator_.Evaluate(*statement.condition) : status;
      if (!keep.ok()) {
        status = keep.status();
        break;
      }
      if (keep->Truthy()) {
        chosen.push_back(item);
      }
    }
    evaluator_.frames().pop_back();
    RETURN_IF_ERROR(status);
    return chosen;
  }

  static Map LoopVariable(const List& items, size_t i) {
    const int64_t index = static_cast<int64_t>(i);
    const int64_t length = static_cast<int64_t>(items.size());
    Map loop;
    loop.emplace_back("index", Value(index + 1));
    loop.emplace_back("index0", Value(index));
    loop.emplace_back("revindex", Value(length - index));
    loop.emplace_back("revindex0", Value(length - index - 1));
    loop.emplace_back("first", Value(i == 0));
    loop.emplace_back("last", Value(index + 1 == length));
    loop.emplace_back("length", Value(length));
    loop.emplace_back("previtem", i > 0 ? items[i - 1] : Value::MakeUndefined("loop.previtem"));
    loop.emplace_back("nextitem", index + 1 < length ? items[i + 1] : Value::MakeUndefined("loop.nextitem"));
    return loop;
  }

  absl::StatusOr<Flow> RunFor(const Statement& statement, String* out) {
    ASSIGN_OR_RETURN(const List items, LoopItems(statement));
    bool completed = false;  // as in Jinja2, an iteration ended by `continue` or `break` does not count
    for (size_t i = 0; i < items.size(); ++i) {
      RETURN_IF_ERROR(evaluator_.Step(statement.line));
      evaluator_.frames().push_back({});
      Assign("loop", Value(LoopVariable(items, i)));
      const absl::Status status = AssignTargets(statement.targets, items[i], statement.line);
      absl::StatusOr<Flow> flow = status.ok() ? RunBlock(statement.body, out) : status;
      evaluator_.frames().pop_back();
      if (!flow.ok()) {
        return flow;
      }
      if (*flow == Flow::kBreak) {
        break;
      }
      completed = completed || *flow == Flow::kNormal;
    }
    return completed ? absl::StatusOr<Flow>(Flow::kNormal) : RunBlock(statement.else_body, out);
  }

  absl::Status RunSet(const Statement& statement) {
    Value value;
    if (statement.expression != nullptr) {
      ASSIGN_OR_RETURN(value, evaluator_.Evaluate(*statement.expression));
    } else {
      String body;
      ASSIGN_OR_RETURN(const Flow flow, RunBlock(statement.body, &body));
      (void)flow;
      value = Value(std::move(body));
    }
    if (statement.attribute.empty()) {
      return AssignTargets(statement.targets, std::move(value), statement.line);
    }
    const Value object = evaluator_.Lookup(statement.targets[0]);
    if (object.map() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("'", statement.targets[0], "' is not a namespace"));
    }
    SetKey(*object.map(), statement.attribute, std::move(value));
    return absl::OkStatus();
  }

  // The function refers to the statement, which outlives every call: the tree lives as long as the rendering.
  Value MakeMacro(const Statement& statement) {
    return Value(
        Function([this, &statement](const Arguments& arguments) { return CallMacro(statement, arguments); }));
  }

  absl::StatusOr<Value> CallMacro(const Statement& statement, const Arguments& arguments) {
    RETURN_IF_ERROR(evaluator_.Step(statement.line));
    const DepthGuard depth(evaluator_.depth());
    if (arguments.positional.size() > statement.parameters.size()) {
      return absl::InvalidArgumentError(absl::StrCat("macro '", statement.name, "' takes ",
                                                     statement.parameters.size(), " arguments, got ",
                                                     arguments.positional.size()));
    }
    Frame frame;
    frame.function = true;
    for (size_t i = 0; i < statement.parameters.size(); ++i) {
      const auto& [name, otherwise] = statement.parameters[i];
      if (const Value* given = arguments.Find(i, name)) {
        SetKey(frame.names, name, *given);
      } else if (otherwise != nullptr) {
        ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(*otherwise));
        SetKey(frame.names, name, std::move(value));
      } else {
        SetKey(frame.names, name, Value::MakeUndefined(name));
      }
    }
    if (const Value* caller = arguments.Find(statement.parameters.size(), "caller")) {
      SetKey(frame.names, "caller", *caller);
    }
    evaluator_.frames().push_back(std::move(frame));
    String out;
    const absl::StatusOr<Flow> flow = RunBlock(statement.body, &out);
    evaluator_.frames().pop_back();
    RETURN_IF_ERROR(flow.status());
    return Value(std::move(out));
  }

  absl::Status RunCallBlock(const Statement& statement, String* out) {
    const Expression& call = *statement.expression;
    ASSIGN_OR_RETURN(Arguments arguments, evaluator_.EvaluateArguments(call.arguments));
    SetKey(arguments.named, "caller", MakeMacro(statement));
    ASSIGN_OR_RETURN(const Value callee, evaluator_.Evaluate(*call.items[0]));
    if (callee.function() == nullptr) {
      return absl::InvalidArgumentError("call needs a macro");
    }
    ASSIGN_OR_RETURN(const Value value, (*callee.function())(arguments));
    return Emit(ToString(value), out, statement.line);
  }

  Evaluator evaluator_;
};

}  // namespace

absl::StatusOr<String> Render(const Block& block, const Map& variables, absl::Time now,
                              const RenderLimits& limits) {
  return Interpreter(variables, now, limits).Run(block);
}

}  // namespace sluice::jinja
