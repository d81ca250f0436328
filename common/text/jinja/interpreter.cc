#include "common/text/jinja/interpreter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/jinja/builtins.h"
#include "common/text/jinja/evaluator.h"
#include "common/text/jinja/globals.h"

namespace sluice::jinja {
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
