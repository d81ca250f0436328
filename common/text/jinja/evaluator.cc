#include "common/text/jinja/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/jinja/builtins.h"

namespace sluice::jinja {

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

}  // namespace sluice::jinja
