// Evaluator: evaluates expressions in a stack of name spaces, within the limits of a rendering.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/text/jinja/ast.h"
#include "common/text/jinja/interpreter.h"

namespace sluice::jinja {

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

}  // namespace sluice::jinja
