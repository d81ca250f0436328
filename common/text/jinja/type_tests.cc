// Tests: the names that may follow `is` (builtins.h).
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/jinja/builtins.h"

namespace sluice::jinja {

absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& value, const Arguments& arguments) {
  const Value* other = arguments.Find(0, "other");
  int64_t whole = 0;
  double number = 0;
  const bool boolean = value.As<bool>() != nullptr;
  if (name == "defined" || name == "undefined") {
    return value.undefined() == (name == "undefined");
  }
  if (name == "none") {
    return value.none();
  }
  if (name == "boolean") {
    return boolean;
  }
  if (name == "true" || name == "false") {
    return boolean && *value.As<bool>() == (name == "true");
  }
  if (name == "string") {
    return value.string() != nullptr;
  }
  if (name == "mapping") {
    return value.map() != nullptr;
  }
  if (name == "iterable" || name == "sequence") {
    return value.list() != nullptr || value.map() != nullptr || value.string() != nullptr;
  }
  if (name == "number") {
    return value.number(&number);
  }
  if (name == "integer") {
    return value.integer(&whole) && !boolean;
  }
  if (name == "float") {
    return value.As<double>() != nullptr;
  }
  if (name == "callable") {
    return value.function() != nullptr;
  }
  if (name == "odd" || name == "even") {
    if (!value.integer(&whole)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected an integer, got ", value.TypeName()));
    }
    return (whole % 2 != 0) == (name == "odd");
  }
  if (other == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the test '", name, "' is not supported"));
  }
  const std::pair<std::string_view, const char*> kOperators[] = {
      {"equalto", "=="}, {"eq", "=="}, {"ne", "!="},      {"in", "in"},         {"lt", "<"},     {"le", "<="},
      {"gt", ">"},       {"ge", ">="}, {"lessthan", "<"}, {"greaterthan", ">"}, {"sameas", "=="}};
  for (const auto& [test, op] : kOperators) {
    if (test == name) {
      ASSIGN_OR_RETURN(const Value result, ApplyBinary(op, value, *other));
      return result.Truthy();
    }
  }
  if (name == "divisibleby") {
    ASSIGN_OR_RETURN(const Value rest, ApplyBinary("%", value, *other));
    return !rest.Truthy();
  }
  return absl::UnimplementedError(absl::StrCat("the test '", name, "' is not supported"));
}

}  // namespace sluice::jinja
