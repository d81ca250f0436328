// Interpreter of the template language: expressions, then statements.

#include "common/text/jinja_interpreter.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
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

// One name space, within its parent. Loops, macros and `with` open one; `if` does not.
struct Scope {
  Names names;
  std::shared_ptr<Scope> parent;
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
  std::shared_ptr<Scope>& scope() { return scope_; }
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
  std::shared_ptr<Scope> scope_;  // innermost
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
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* found = FindName(scope->names, name)) {
      return *found;
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
    SetName(values.named, name, std::move(value));
  }
  if (arguments.list != nullptr) {
    ASSIGN_OR_RETURN(const Value list, Evaluate(*arguments.list));
    ASSIGN_OR_RETURN(const List items, Items(list));
    values.positional.insert(values.positional.end(), items.begin(), items.end());
  }
  if (arguments.mapping != nullptr) {
    ASSIGN_OR_RETURN(const Value mapping, Evaluate(*arguments.mapping));
    if (mapping.map() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("'**' needs a mapping, got ", mapping.TypeName()));
    }
    for (const auto& [name, value] : *mapping.map()) {
      SetName(values.named, ToString(name).text, value);
    }
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
    case Expression::Kind::kTuple:
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
  list.kind = expression.kind == Expression::Kind::kTuple ? List::Kind::kTuple : List::Kind::kList;
  return Value(std::move(list));
}

absl::StatusOr<Value> Evaluator::EvaluateMap(const Expression& expression) {
  Map map;
  for (size_t i = 0; i + 1 < expression.items.size(); i += 2) {
    ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.items[i]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expression.items[i + 1]));
    if (key.map() != nullptr || key.undefined() || (key.list() != nullptr && !key.list()->tuple())) {
      return absl::InvalidArgumentError(absl::StrCat("a value of type ", key.TypeName(), " is no key"));
    }
    SetItem(map, key, std::move(value));
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
    CountWork(object);
    if (object.undefined()) {
      return absl::InvalidArgumentError(absl::StrCat("'", object.As<Undefined>()->name, "' is undefined"));
    }
    if (Map* map = object.map()) {
      const Value* found = FindKey(*map, callee.name);
      if (found != nullptr && found->function() != nullptr) {
        return (*found->function())(arguments);
      }
    }
    return CallMethod(object, callee.name, arguments);
  }
  ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  if (const Map* map = function.map(); map != nullptr && map->call != nullptr) {
    return (*map->call)(arguments);
  }
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
  if (const double* real = operand.As<double>(); real != nullptr && expression.name == "-") {
    return Value(-*real);  // 0 - 0.0 would lose the sign
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
  Interpreter(const Names& variables, absl::Time now, const RenderLimits& limits) : evaluator_(limits) {
    // The globals are the outermost scope, the conversation's variables the second, the template's own
    // assignments the third: a template may shadow a variable but not change it.
    Names globals;
    AddGlobals(now, &globals);
    evaluator_.scope() = std::make_shared<Scope>(Scope{std::move(globals), nullptr});
    evaluator_.scope() = std::make_shared<Scope>(Scope{variables, evaluator_.scope()});
    evaluator_.scope() = std::make_shared<Scope>(Scope{{}, evaluator_.scope()});
  }

  absl::StatusOr<String> Run(const Block& block) {
    String out;
    ASSIGN_OR_RETURN(const Flow flow, RunBlock(block, &out));
    (void)flow;
    return out;
  }

 private:
  // Opens a scope below `parent` during its lifetime.
  class ScopeGuard {
   public:
    ScopeGuard(Evaluator* evaluator, std::shared_ptr<Scope> parent)
        : evaluator_(evaluator), before_(std::move(evaluator->scope())) {
      evaluator_->scope() = std::make_shared<Scope>(Scope{{}, std::move(parent)});
    }
    ~ScopeGuard() { evaluator_->scope() = std::move(before_); }
    ScopeGuard(const ScopeGuard&) = delete;
    ScopeGuard& operator=(const ScopeGuard&) = delete;

   private:
    Evaluator* const evaluator_;
    std::shared_ptr<Scope> before_;
  };
  std::shared_ptr<Scope> scope() { return evaluator_.scope(); }

  void Assign(const std::string& name, Value value) {
    SetName(evaluator_.scope()->names, name, std::move(value));
  }

  absl::Status AssignTarget(const Target& target, Value value, int line) {
    if (target.items.empty()) {
      Assign(target.name, std::move(value));
      return absl::OkStatus();
    }
    absl::StatusOr<List> items = Items(value);
    if (!items.ok() || items->size() != target.items.size()) {
      return absl::InvalidArgumentError(absl::StrCat("template line ", line,
                                                     ": cannot unpack a value of type ", value.TypeName(),
                                                     " into ", target.items.size(), " names"));
    }
    for (size_t i = 0; i < target.items.size(); ++i) {
      RETURN_IF_ERROR(AssignTarget(target.items[i], (*items)[i], line));
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
        ASSIGN_OR_RETURN(const Value value, FilteredBody(statement));
        RETURN_IF_ERROR(Emit(ToString(value), out, statement.line));
        return Flow::kNormal;
      }
      case Statement::Kind::kWith:
        return RunWith(statement, out);
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

  // Renders the body in a scope of its own, then applies the statement's chain of filters to the text.
  absl::StatusOr<Value> FilteredBody(const Statement& statement) {
    String body;
    {
      const ScopeGuard guard(&evaluator_, scope());
      RETURN_IF_ERROR(RunBlock(statement.body, &body).status());
    }
    evaluator_.set_filter_body(Value(std::move(body)));
    return evaluator_.Evaluate(*statement.expression);
  }

  absl::StatusOr<Flow> RunWith(const Statement& statement, String* out) {
    Names values;
    for (const auto& [name, expression] : statement.parameters) {
      ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(*expression));
      SetName(values, name, std::move(value));
    }
    const ScopeGuard guard(&evaluator_, scope());
    evaluator_.scope()->names = std::move(values);
    return RunBlock(statement.body, out);
  }

  // Returns the items that pass the loop's own condition. They are selected before the loop runs, because
  // loop.length and loop.last count only these.
  absl::StatusOr<List> LoopItems(const Statement& statement, const Value& iterable) {
    ASSIGN_OR_RETURN(List items, Items(iterable));
    if (statement.condition == nullptr) {
      return items;
    }
    List chosen;
    for (const Value& item : items) {
      RETURN_IF_ERROR(evaluator_.Step(statement.line));
      const ScopeGuard guard(&evaluator_, scope());
      RETURN_IF_ERROR(AssignTarget(statement.target, item, statement.line));
      ASSIGN_OR_RETURN(const Value keep, evaluator_.Evaluate(*statement.condition));
      if (keep.Truthy()) {
        chosen.push_back(item);
      }
    }
    return chosen;
  }

  static void AddFunction(const char* name, Function function, Map* map) {
    SetItem(*map, Value(name), Value(std::move(function)));
  }

  // State of a loop that is shared by its iterations.
  struct LoopState {
    std::optional<std::vector<Value>> last_changed;
  };

  static Map LoopVariable(const List& items, size_t i, int level, const std::shared_ptr<LoopState>& state) {
    const auto index = static_cast<int64_t>(i);
    const auto length = static_cast<int64_t>(items.size());
    Map loop;
    loop.kind = Map::Kind::kObject;
    const std::pair<const char*, Value> members[] = {
        {"index", Value(index + 1)},
        {"index0", Value(index)},
        {"revindex", Value(length - index)},
        {"revindex0", Value(length - index - 1)},
        {"first", Value(i == 0)},
        {"last", Value(index + 1 == length)},
        {"length", Value(length)},
        {"depth", Value(level)},
        {"depth0", Value(level - 1)},
        {"previtem", i > 0 ? items[i - 1] : Value::MakeUndefined("loop.previtem")},
        {"nextitem", index + 1 < length ? items[i + 1] : Value::MakeUndefined("loop.nextitem")}};
    for (const auto& [name, value] : members) {
      loop.emplace_back(Value(name), value);
    }
    AddFunction(
        "cycle",
        [i](const Arguments& arguments) -> absl::StatusOr<Value> {
          if (arguments.positional.empty()) {
            return absl::InvalidArgumentError("loop.cycle: needs items");
          }
          return arguments.positional[i % arguments.positional.size()];
        },
        &loop);
    AddFunction(
        "changed",
        [state](const Arguments& arguments) -> absl::StatusOr<Value> {
          const bool same =
              state->last_changed.has_value() &&
              Equal(Value(List::Tuple(*state->last_changed)), Value(List::Tuple(arguments.positional)));
          state->last_changed = arguments.positional;
          return Value(!same);
        },
        &loop);
    return loop;
  }

  absl::StatusOr<Flow> RunFor(const Statement& statement, String* out) {
    ASSIGN_OR_RETURN(const Value iterable, evaluator_.Evaluate(*statement.expression));
    return RunLoop(statement, iterable, /*level=*/1, out);
  }

  absl::StatusOr<Flow> RunLoop(const Statement& statement, const Value& iterable, int level, String* out) {
    ASSIGN_OR_RETURN(const List items, LoopItems(statement, iterable));
    const std::shared_ptr<Scope> around = scope();
    const auto state = std::make_shared<LoopState>();
    bool completed = false;  // as in Jinja2, an iteration ended by `continue` or `break` does not count
    for (size_t i = 0; i < items.size(); ++i) {
      RETURN_IF_ERROR(evaluator_.Step(statement.line));
      const ScopeGuard guard(&evaluator_, around);
      if (statement.uses_loop) {
        Map loop = LoopVariable(items, i, level, state);
        if (statement.recursive) {
          loop.call =
              std::make_shared<Function>([this, &statement, level, around](const Arguments& arguments) {
                return CallLoop(statement, arguments, level + 1, around);
              });
        }
        Assign("loop", Value(std::move(loop)));
      }
      RETURN_IF_ERROR(AssignTarget(statement.target, items[i], statement.line));
      ASSIGN_OR_RETURN(const Flow flow, RunBlock(statement.body, out));
      if (flow == Flow::kBreak) {
        break;
      }
      completed = completed || flow == Flow::kNormal;
    }
    if (completed) {
      return Flow::kNormal;
    }
    const ScopeGuard guard(&evaluator_, around);
    return RunBlock(statement.else_body, out);
  }

  // Implements loop(items) of a recursive loop: runs it over other items, in the scope around it.
  absl::StatusOr<Value> CallLoop(const Statement& statement, const Arguments& arguments, int level,
                                 const std::shared_ptr<Scope>& around) {
    RETURN_IF_ERROR(evaluator_.Step(statement.line));
    const DepthGuard depth(evaluator_.depth());
    if (arguments.positional.size() != 1) {
      return absl::InvalidArgumentError("loop: takes what to loop over");
    }
    const ScopeGuard guard(&evaluator_, around);
    String out;
    RETURN_IF_ERROR(RunLoop(statement, arguments.positional[0], level, &out).status());
    return Value(std::move(out));
  }

  absl::Status RunSet(const Statement& statement) {
    ASSIGN_OR_RETURN(Value value, statement.captures ? FilteredBody(statement)
                                                     : evaluator_.Evaluate(*statement.expression));
    if (statement.attribute.empty()) {
      return AssignTarget(statement.target, std::move(value), statement.line);
    }
    const Value object = evaluator_.Lookup(statement.target.name);
    if (object.map() == nullptr || object.map()->kind != Map::Kind::kNamespace) {
      return absl::InvalidArgumentError(absl::StrCat("'", statement.target.name, "' is not a namespace"));
    }
    SetItem(*object.map(), Value(String::FromTemplate(statement.attribute)), std::move(value));
    return absl::OkStatus();
  }

  // The function refers to the statement, which outlives every call: the tree lives as long as the rendering.
  // It runs in the scope where the macro stands, which is kept to the end: a scope that held itself through
  // its macros would never be freed.
  Value MakeMacro(const Statement& statement) {
    if (captured_.empty() || captured_.back() != scope()) {
      captured_.push_back(scope());
    }
    const size_t around = captured_.size() - 1;
    return Value(Function([this, &statement, around](const Arguments& arguments) {
      return CallMacro(statement, arguments, captured_[around]);
    }));
  }

  absl::StatusOr<Value> CallMacro(const Statement& statement, const Arguments& arguments,
                                  std::shared_ptr<Scope> around) {
    RETURN_IF_ERROR(evaluator_.Step(statement.line));
    const DepthGuard depth(evaluator_.depth());
    const ScopeGuard guard(&evaluator_, std::move(around));
    RETURN_IF_ERROR(BindArguments(statement, arguments));
    String out;
    RETURN_IF_ERROR(RunBlock(statement.body, &out).status());
    return Value(std::move(out));
  }

  // Assigns a macro's parameters in its scope. Arguments that it has no parameter for are `varargs` and
  // `kwargs`, or an error if its body does not use these.
  absl::Status BindArguments(const Statement& statement, const Arguments& arguments) {
    const size_t count = statement.parameters.size();
    for (size_t i = 0; i < count; ++i) {
      const auto& [name, otherwise] = statement.parameters[i];
      if (const Value* given = arguments.Find(i, name)) {
        Assign(name, *given);
      } else if (otherwise != nullptr) {
        ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(*otherwise));
        Assign(name, std::move(value));
      } else {
        Assign(name, Value::MakeUndefined(name));
      }
    }
    if (arguments.positional.size() > count && !statement.uses_varargs) {
      return absl::InvalidArgumentError(absl::StrCat("macro '", statement.name, "' takes ", count,
                                                     " arguments, got ", arguments.positional.size()));
    }
    if (statement.uses_varargs) {
      const size_t bound = std::min(count, arguments.positional.size());
      Assign("varargs", Value(List::Tuple({arguments.positional.begin() + static_cast<ptrdiff_t>(bound),
                                           arguments.positional.end()})));
    }
    Map further;
    const Value* caller = nullptr;
    for (const auto& [name, value] : arguments.named) {
      if (name == "caller" && statement.uses_caller) {
        caller = &value;
      } else if (std::none_of(statement.parameters.begin(), statement.parameters.end(),
                              [&own = name](const auto& parameter) { return parameter.first == own; })) {
        further.emplace_back(Value(String::FromTemplate(name)), value);
      }
    }
    if (!further.empty() && !statement.uses_kwargs) {
      return absl::InvalidArgumentError(absl::StrCat("macro '", statement.name, "' takes no argument '",
                                                     further.front().first.string()->text, "'"));
    }
    if (statement.uses_kwargs) {
      Assign("kwargs", Value(std::move(further)));
    }
    if (statement.uses_caller) {
      Assign("caller", caller != nullptr ? *caller : Value::MakeUndefined("caller"));
    }
    return absl::OkStatus();
  }

  absl::Status RunCallBlock(const Statement& statement, String* out) {
    const Expression& call = *statement.expression;
    ASSIGN_OR_RETURN(Arguments arguments, evaluator_.EvaluateArguments(call.arguments));
    SetName(arguments.named, "caller", MakeMacro(statement));
    ASSIGN_OR_RETURN(const Value callee, evaluator_.Evaluate(*call.items[0]));
    if (callee.function() == nullptr) {
      return absl::InvalidArgumentError("call needs a macro");
    }
    ASSIGN_OR_RETURN(const Value value, (*callee.function())(arguments));
    return Emit(ToString(value), out, statement.line);
  }

  std::vector<std::shared_ptr<Scope>> captured_;  // scopes of macros
  Evaluator evaluator_;
};

}  // namespace

absl::StatusOr<String> Render(const Block& block, const Names& variables, absl::Time now,
                              const RenderLimits& limits) {
  return Interpreter(variables, now, limits).Run(block);
}

}  // namespace sluice::jinja
