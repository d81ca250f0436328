#include "common/text/jinja/globals.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

absl::StatusOr<Value> RaiseException(const Arguments& arguments) {
  const Value* message = arguments.Find(0, "message");
  return absl::InvalidArgumentError(message == nullptr ? "the template refused the conversation"
                                                       : ToString(*message).text);
}

// dict() and namespace() make a mapping: a copy of the optional argument, overridden by the named arguments.
absl::StatusOr<Value> MakeMap(const Arguments& arguments) {
  Map made;
  if (!arguments.positional.empty()) {
    if (arguments.positional.size() > 1 || arguments.positional[0].map() == nullptr) {
      return absl::UnimplementedError("dict and namespace of anything but one mapping are not supported");
    }
    made = *arguments.positional[0].map();
  }
  for (const auto& [name, value] : arguments.named) {
    SetKey(made, name, value);
  }
  return Value(std::move(made));
}

absl::StatusOr<Value> MakeRange(const Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3) {
    return absl::InvalidArgumentError("range: takes one to three integers");
  }
  for (size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].integer(&bounds[count == 1 ? 1 : i])) {
      return absl::InvalidArgumentError("range: takes integers");
    }
  }
  if (bounds[2] == 0) {
    return absl::InvalidArgumentError("range: the step is 0");
  }
  List items;
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return absl::ResourceExhaustedError(absl::StrCat("range: more than ", kMaxRange, " items"));
    }
    items.push_back(Value(i));
    if (__builtin_add_overflow(i, bounds[2], &i)) {
      break;
    }
  }
  return Value(std::move(items));
}

}  // namespace

void AddGlobals(absl::Time now, Map* globals) {
  SetKey(*globals, "raise_exception", Value(Function(&RaiseException)));
  SetKey(*globals, "namespace", Value(Function(&MakeMap)));
  SetKey(*globals, "dict", Value(Function(&MakeMap)));
  SetKey(*globals, "range", Value(Function(&MakeRange)));
  SetKey(*globals, "strftime_now", Value(Function([now](const Arguments& arguments) -> absl::StatusOr<Value> {
    const Value* format = arguments.Find(0, "format");
    if (format == nullptr || format->string() == nullptr) {
      return absl::InvalidArgumentError("strftime_now: needs a format");
    }
    return Value(String::FromTemplate(absl::FormatTime(format->string()->text, now, absl::UTCTimeZone())));
  })));
}

}  // namespace sluice::jinja
