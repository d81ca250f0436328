// Operators, subscripts and loops over values (jinja_builtins.h).

#include "common/text/jinja_builtins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja_strings.h"

namespace sluice::jinja {
namespace {

constexpr size_t kMaxRepeat = 1 << 20;      // maximum characters or items of a `*` result
constexpr size_t kMaxCharacters = 1 << 20;  // of a string in a loop
constexpr int kMaxOrderDepth = 64;          // maximum depth of lists that are compared

absl::Status UnsupportedOperands(const std::string& op, const Value& left, const Value& right) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", op, "' is not defined between ", left.TypeName(), " and ", right.TypeName()));
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const size_t size = value.string() != nullptr ? value.string()->text.size() : value.list()->size();
  if (count > kMaxRepeat || count * std::max<size_t>(size, 1) > kMaxRepeat) {
    return absl::InvalidArgumentError(
        absl::StrCat("'*' makes more than ", kMaxRepeat, " characters or items"));
  }
  String text;
  std::vector<Value> items;
  for (size_t i = 0; i < count; ++i) {
    if (value.string() != nullptr) {
      text.Append(*value.string());
    } else {
      items.insert(items.end(), value.list()->begin(), value.list()->end());
    }
  }
  return value.string() != nullptr ? Value(std::move(text))
                                   : Value(List::Of(value.list()->kind, std::move(items)));
}

// Returns base ** exponent, or none if it has more than 128 bits.
std::optional<Integer> Power(Integer base, int64_t exponent) {
  Integer power = 1;
  for (int64_t i = 0; i < exponent && base != 1 && (power != 0 || i == 0); ++i) {
    if (base == -1) {
      return exponent % 2 == 0 ? 1 : -1;
    }
    if (__builtin_mul_overflow(power, base, &power)) {
      return std::nullopt;
    }
  }
  return power;
}

absl::StatusOr<Value> WholeArithmetic(const std::string& op, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    const std::optional<Integer> power = Power(a, static_cast<int64_t>(std::min<Integer>(b, 1 << 20)));
    overflow = !power.has_value();
    result = power.value_or(0);
  } else if (b == -1) {  // the only quotient that overflows
    overflow = op == "//" && __builtin_sub_overflow(Integer{0}, a, &result);
  } else {
    // Python rounds the quotient down and gives the remainder the divisor's sign; C++ rounds towards zero.
    const Integer quotient = a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
    result = op == "//" ? quotient : a - quotient * b;
  }
  return overflow ? absl::StatusOr<Value>(absl::InvalidArgumentError(
                        absl::StrCat("'", op, "' makes an integer of more than 128 bits")))
                  : Value(result);
}

absl::StatusOr<Value> Arithmetic(const std::string& op, const Value& left, const Value& right) {
  double x = 0;
  double y = 0;
  if (!left.number(&x) || !right.number(&y)) {
    return UnsupportedOperands(op, left, right);
  }
  Integer a = 0;
  Integer b = 0;
  const bool whole = left.integer(&a) && right.integer(&b);
  if (y == 0 && (op == "/" || op == "//" || op == "%")) {
    return absl::InvalidArgumentError(absl::StrCat("'", op, "' by zero"));
  }
  if (op == "/") {
    return Value(x / y);
  }
  if (whole && (op != "**" || b >= 0)) {
    return WholeArithmetic(op, a, b);
  }
  if (op == "+") {
    return Value(x + y);
  }
  if (op == "-") {
    return Value(x - y);
  }
  if (op == "*") {
    return Value(x * y);
  }
  if (op == "//") {
    return Value(std::floor(x / y));
  }
  if (op == "%") {
    return Value(x - std::floor(x / y) * y);
  }
  return Value(std::pow(x, y));
}

absl::StatusOr<int> Order(const std::string& op, const Value& left, const Value& right, int depth) {
  Integer a = 0;
  Integer b = 0;
  double x = 0;
  double y = 0;
  if (left.integer(&a) && right.integer(&b)) {
    return a < b ? -1 : a > b ? 1 : 0;
  }
  if (left.number(&x) && right.number(&y)) {
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (left.string() != nullptr && right.string() != nullptr) {  // UTF-8 sorts as its code points
    const int compared = left.string()->text.compare(right.string()->text);
    return compared < 0 ? -1 : compared > 0 ? 1 : 0;
  }
  const List* first = left.list();
  const List* second = right.list();
  if (first == nullptr || second == nullptr || first->tuple() != second->tuple() || depth > kMaxOrderDepth) {
    return UnsupportedOperands(op, left, right);
  }
  for (size_t i = 0; i < std::min(first->size(), second->size()); ++i) {
    if (!Equal((*first)[i], (*second)[i])) {
      return Order(op, (*first)[i], (*second)[i], depth + 1);
    }
  }
  return first->size() < second->size() ? -1 : first->size() > second->size() ? 1 : 0;
}

absl::StatusOr<Value> Compare(const std::string& op, const Value& left, const Value& right) {
  double x = 0;
  if ((left.number(&x) && std::isnan(x)) || (right.number(&x) && std::isnan(x))) {
    return Value(false);
  }
  ASSIGN_OR_RETURN(const int order, Order(op, left, right, 0));
  return Value(op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0);
}

absl::StatusOr<bool> Contains(const Value& container, const Value& item) {
  if (const String* text = container.string()) {
    if (item.string() == nullptr) {
      return UnsupportedOperands("in", item, container);
    }
    return text->text.find(item.string()->text) != std::string::npos;
  }
  if (const List* list = container.list()) {
    return std::any_of(list->begin(), list->end(), [&](const Value& other) { return Equal(other, item); });
  }
  if (Map* map = container.map(); map != nullptr && map->kind == Map::Kind::kDict) {
    return FindItem(*map, item) != nullptr;
  }
  if (container.undefined()) {
    return false;
  }
  return UnsupportedOperands("in", item, container);
}

struct Range {
  int64_t begin;
  int64_t end;
  int64_t step;
};

// Implements Python's slice.indices(): first index, end index and step; negative bounds count from the end,
// and all are clamped to the length.
absl::StatusOr<Range> SliceRange(int64_t length, const Value& begin, const Value& end, const Value& step) {
  Range range{0, 0, 1};
  const auto given = [](const Value& value) { return !value.undefined() && !value.none(); };
  if (given(step) && (!step.integer(&range.step) || range.step == 0)) {
    return absl::InvalidArgumentError("a slice's step must be an integer other than 0");
  }
  range.step =
      std::clamp(range.step, -length - 1, length + 1);  // a longer step visits no more and could overflow
  const int64_t low = range.step > 0 ? 0 : -1;
  const int64_t high = range.step > 0 ? length : length - 1;
  const auto bound = [&](const Value& value, int64_t otherwise, int64_t* out) -> absl::Status {
    *out = otherwise;
    if (!given(value)) {
      return absl::OkStatus();
    }
    if (!value.integer(out)) {
      return absl::InvalidArgumentError(absl::StrCat("a slice's bound is of type ", value.TypeName()));
    }
    *out = std::clamp(*out < 0 ? *out + length : *out, low, high);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(bound(begin, range.step > 0 ? low : high, &range.begin));
  RETURN_IF_ERROR(bound(end, range.step > 0 ? high : low, &range.end));
  return range;
}

}  // namespace

absl::StatusOr<Value> ApplyBinary(const std::string& op, const Value& left, const Value& right) {
  if (op == "==" || op == "!=") {
    return Value(Equal(left, right) == (op == "=="));
  }
  if (op == "in" || op == "not in") {
    ASSIGN_OR_RETURN(const bool found, Contains(right, left));
    return Value(found == (op == "in"));
  }
  if (op == "<" || op == "<=" || op == ">" || op == ">=") {
    return Compare(op, left, right);
  }
  if (op == "~" || (op == "+" && left.string() != nullptr && right.string() != nullptr)) {
    String joined = ToString(left);
    joined.Append(ToString(right));
    return Value(std::move(joined));
  }
  if (op == "%" && left.string() != nullptr) {
    ASSIGN_OR_RETURN(String formatted, FormatPercent(*left.string(), right));
    return Value(std::move(formatted));
  }
  if (op == "+" && left.list() != nullptr && right.list() != nullptr && left.list()->indexed() &&
      right.list()->indexed() && left.list()->tuple() == right.list()->tuple()) {
    List joined = *left.list();
    joined.insert(joined.end(), right.list()->begin(), right.list()->end());
    return Value(std::move(joined));
  }
  const auto repeats = [](const Value& value) {
    return value.string() != nullptr || (value.list() != nullptr && value.list()->indexed());
  };
  int64_t times = 0;
  if (op == "*" && repeats(left) && right.integer(&times)) {
    return Repeat(left, times);
  }
  if (op == "*" && repeats(right) && left.integer(&times)) {
    return Repeat(right, times);
  }
  return Arithmetic(op, left, right);
}

absl::StatusOr<List> Items(const Value& value) {
  if (List* list = value.list()) {
    if (list->kind == List::Kind::kGenerator) {  // it can be read once
      List items = List::Of(List::Kind::kList, std::move(*list));
      list->clear();
      return items;
    }
    return List::Of(List::Kind::kList, *list);
  }
  List items;
  if (const Map* map = value.map(); map != nullptr && map->kind == Map::Kind::kDict) {
    for (const auto& [key, unused] : *map) {
      items.push_back(key);
    }
    return items;
  }
  if (const String* text = value.string()) {
    const int64_t count = CharacterCount(text->text);
    if (count > static_cast<int64_t>(kMaxCharacters)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a text of ", count, " characters, more than ", kMaxCharacters));
    }
    for (size_t at = 0; at < text->text.size();) {
      const size_t length = ByteOfCharacter(std::string_view(text->text).substr(at, 5), 1);
      items.push_back(Value(text->Slice(at, length)));
      at += length;
    }
    return items;
  }
  if (value.undefined()) {
    return items;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.TypeName(), " cannot be looped over"));
}

absl::StatusOr<Value> Subscript(const Value& value, const Value& index) {
  if (Map* map = value.map()) {
    if (const Value* found = FindItem(*map, index)) {
      return *found;
    }
    return Value::MakeUndefined(ToString(index).text);
  }
  if (value.undefined()) {
    return absl::InvalidArgumentError(absl::StrCat("'", value.As<Undefined>()->name, "' is undefined"));
  }
  const List* list = value.list();
  if (list != nullptr && list->kind == List::Kind::kGroup && index.string() != nullptr) {
    const std::string& name = index.string()->text;
    return name == "grouper" ? (*list)[0] : name == "list" ? (*list)[1] : Value::MakeUndefined(name);
  }
  int64_t at = 0;
  if (!index.integer(&at)) {
    return Value::MakeUndefined(ToString(index).text);
  }
  const Value missing = Value::MakeUndefined(absl::StrCat("[", at, "]"));
  if (list != nullptr && list->indexed()) {
    const auto length = static_cast<int64_t>(list->size());
    at = at < 0 ? at + length : at;
    return at >= 0 && at < length ? (*list)[static_cast<size_t>(at)] : missing;
  }
  if (const String* text = value.string()) {
    const int64_t length = CharacterCount(text->text);
    at = at < 0 ? at + length : at;
    if (at < 0 || at >= length) {
      return missing;
    }
    const size_t begin = ByteOfCharacter(text->text, at);
    return Value(text->Slice(begin, ByteOfCharacter(std::string_view(text->text).substr(begin, 5), 1)));
  }
  return missing;
}

absl::StatusOr<Value> SliceOf(const Value& value, const Value& begin, const Value& end, const Value& step) {
  const String* text = value.string();
  const List* list = value.list();
  if (text == nullptr && (list == nullptr || !list->indexed())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", value.TypeName(), " cannot be sliced"));
  }
  const int64_t length = text != nullptr ? CharacterCount(text->text) : static_cast<int64_t>(list->size());
  ASSIGN_OR_RETURN(const Range range, SliceRange(length, begin, end, step));
  if (text != nullptr && range.step == 1) {
    const size_t first = ByteOfCharacter(text->text, range.begin);
    const size_t last = ByteOfCharacter(text->text, std::max(range.begin, range.end));
    return Value(text->Slice(first, last - first));
  }
  List all;
  if (text != nullptr) {
    ASSIGN_OR_RETURN(all, Items(value));
    list = &all;
  }
  String characters;
  std::vector<Value> items;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end; i += range.step) {
    const Value& item = (*list)[static_cast<size_t>(i)];
    if (text != nullptr) {
      characters.Append(*item.string());
    } else {
      items.push_back(item);
    }
  }
  return text != nullptr ? Value(std::move(characters)) : Value(List::Of(list->kind, std::move(items)));
}

// Methods of lists and mappings. Those that change a value are refused: transformers renders in Jinja's
// immutable sandbox.

namespace {

absl::StatusOr<Value> CallMap(Map& map, const std::string& method, const Arguments& arguments) {
  if (method == "get") {
    const Value* key = arguments.Find(0, "key");
    if (key == nullptr) {
      return absl::InvalidArgumentError("get: needs a key");
    }
    const Value* otherwise = arguments.Find(1, "default");
    const Value* found = FindItem(map, *key);
    return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value(None{});
  }
  if (method == "copy") {
    return Value(Map(map));
  }
  std::vector<Value> out;
  for (const auto& [key, value] : map) {
    out.push_back(method == "items" ? Value(List::Tuple({key, value})) : method == "keys" ? key : value);
  }
  return Value(List::Of(List::Kind::kView, std::move(out)));
}

constexpr std::array<std::string_view, 5> kMapMethods = {"get", "items", "keys", "values", "copy"};

absl::StatusOr<Value> CallList(const List& list, const std::string& method, const Arguments& arguments) {
  const Value* sought = arguments.Find(0, "value");
  if (method == "index" && sought != nullptr) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (Equal(list[i], *sought)) {
        return Value(static_cast<int64_t>(i));
      }
    }
    return absl::InvalidArgumentError("index: the value is not in the list");
  }
  if (method == "count" && sought != nullptr) {
    return Value(static_cast<int64_t>(
        std::count_if(list.begin(), list.end(), [&](const Value& item) { return Equal(item, *sought); })));
  }
  if (method == "copy" && !list.tuple()) {
    return Value(List(list));
  }
  return absl::UnimplementedError(absl::StrCat("the method '", method, "' of a list is not supported"));
}

}  // namespace

absl::StatusOr<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments) {
  if (const String* text = object.string()) {
    return CallString(*text, name, arguments);
  }
  if (Map* map = object.map(); map != nullptr && map->kind == Map::Kind::kDict &&
                               std::find(kMapMethods.begin(), kMapMethods.end(), name) != kMapMethods.end()) {
    return CallMap(*map, name, arguments);
  }
  if (const List* list = object.list(); list != nullptr && list->indexed()) {
    return CallList(*list, name, arguments);
  }
  return absl::UnimplementedError(
      absl::StrCat("the method '", name, "' of a value of type ", object.TypeName(), " is not supported"));
}

namespace {

constexpr int64_t kMaxRange = 100'000;

absl::StatusOr<Value> RaiseException(const Arguments& arguments) {
  const Value* message = arguments.Find(0, "message");
  return absl::InvalidArgumentError(message == nullptr ? "the template refused the conversation"
                                                       : ToString(*message).text);
}

// dict() and namespace() make a mapping of the optional argument, a mapping or pairs, overridden by the named
// arguments.
absl::StatusOr<Value> MakeMap(const Arguments& arguments, Map::Kind kind) {
  Map made;
  if (arguments.positional.size() > 1) {
    return absl::InvalidArgumentError("dict and namespace take one mapping or list of pairs");
  }
  if (!arguments.positional.empty() && arguments.positional[0].map() != nullptr) {
    made = *arguments.positional[0].map();
  } else if (!arguments.positional.empty()) {
    ASSIGN_OR_RETURN(const List pairs, Items(arguments.positional[0]));
    for (const Value& pair : pairs) {
      if (pair.list() == nullptr || pair.list()->size() != 2) {
        return absl::InvalidArgumentError("dict: an item is not a pair");
      }
      SetItem(made, (*pair.list())[0], (*pair.list())[1]);
    }
  }
  made.kind = kind;
  for (const auto& [name, value] : arguments.named) {
    SetItem(made, Value(String::FromTemplate(name)), value);
  }
  return Value(std::move(made));
}

// cycler('a', 'b'): next() gives the items in turn, reset() begins anew.
absl::StatusOr<Value> MakeCycler(const Arguments& arguments) {
  if (arguments.positional.empty()) {
    return absl::InvalidArgumentError("cycler: needs items");
  }
  auto at = std::make_shared<size_t>(0);
  Map cycler;
  cycler.kind = Map::Kind::kObject;
  SetItem(cycler, Value("next"),
          Value(Function([at, items = arguments.positional](const Arguments&) -> absl::StatusOr<Value> {
            const Value item = items[*at];
            *at = (*at + 1) % items.size();
            return item;
          })));
  SetItem(cycler, Value("reset"), Value(Function([at](const Arguments&) -> absl::StatusOr<Value> {
            *at = 0;
            return Value(None{});
          })));
  return Value(std::move(cycler));
}

// joiner(', ') prints nothing at its first call and the separator at all others.
absl::StatusOr<Value> MakeJoiner(const Arguments& arguments) {
  const Value* given = arguments.Find(0, "sep");
  auto used = std::make_shared<bool>(false);
  return Value(Function(
      [used, separator = given != nullptr ? *given : Value(", ")](const Arguments&) -> absl::StatusOr<Value> {
        return std::exchange(*used, true) ? separator : Value("");
      }));
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

void AddGlobals(absl::Time now, Names* globals) {
  SetName(*globals, "raise_exception", Value(Function(&RaiseException)));
  SetName(*globals, "namespace",
          Value(Function([](const Arguments& a) { return MakeMap(a, Map::Kind::kNamespace); })));
  SetName(*globals, "dict", Value(Function([](const Arguments& a) { return MakeMap(a, Map::Kind::kDict); })));
  SetName(*globals, "range", Value(Function(&MakeRange)));
  SetName(*globals, "cycler", Value(Function(&MakeCycler)));
  SetName(*globals, "joiner", Value(Function(&MakeJoiner)));
  SetName(*globals, "strftime_now",
          Value(Function([now](const Arguments& arguments) -> absl::StatusOr<Value> {
            const Value* format = arguments.Find(0, "format");
            if (format == nullptr || format->string() == nullptr) {
              return absl::InvalidArgumentError("strftime_now: needs a format");
            }
            return Value(
                String::FromTemplate(absl::FormatTime(format->string()->text, now, absl::UTCTimeZone())));
          })));
}

}  // namespace sluice::jinja
