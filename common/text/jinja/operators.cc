// Operators, subscripts and loops over values (builtins.h).
#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/jinja/builtins.h"

namespace sluice::jinja {
namespace {

constexpr size_t kMaxRepeat = 1 << 20;      // maximum characters or items of a `*` result
constexpr size_t kMaxCharacters = 1 << 20;  // of a string in a loop

absl::Status UnsupportedOperands(const std::string& op, const Value& left, const Value& right) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", op, "' is not defined between ", left.TypeName(), " and ", right.TypeName()));
}

absl::StatusOr<Value> Repeat(const Value& value, int64_t times, const Value& right) {
  const size_t count = static_cast<size_t>(std::max<int64_t>(times, 0));
  if (const String* text = value.string()) {
    if (count * std::max<size_t>(text->text.size(), 1) > kMaxRepeat || count > kMaxRepeat) {
      return absl::InvalidArgumentError(absl::StrCat("'*' makes more than ", kMaxRepeat, " characters"));
    }
    String out;
    for (size_t i = 0; i < count; ++i) {
      out.Append(*text);
    }
    return Value(std::move(out));
  }
  return UnsupportedOperands("*", value, right);
}

absl::StatusOr<Value> Arithmetic(const std::string& op, const Value& left, const Value& right) {
  double x = 0;
  double y = 0;
  if (!left.number(&x) || !right.number(&y)) {
    return UnsupportedOperands(op, left, right);
  }
  int64_t a = 0;
  int64_t b = 0;
  const bool whole = left.integer(&a) && right.integer(&b);
  if (y == 0 && (op == "/" || op == "//" || op == "%")) {
    return absl::InvalidArgumentError(absl::StrCat("'", op, "' by zero"));
  }
  if (op == "/") {
    return Value(x / y);
  }
  if (whole) {
    int64_t result = 0;
    bool overflow = false;
    if (op == "+") {
      overflow = __builtin_add_overflow(a, b, &result);
    } else if (op == "-") {
      overflow = __builtin_sub_overflow(a, b, &result);
    } else if (op == "*") {
      overflow = __builtin_mul_overflow(a, b, &result);
    } else if (b == -1) {  // the only quotient that overflows
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else if (op == "//" || op == "%") {
      // Python rounds the quotient down and gives the remainder the divisor's sign; C++ rounds towards zero.
      const int64_t quotient = a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
      result = op == "//" ? quotient : a - quotient * b;
    } else {
      // A power is an integer as long as a double holds it exactly.
      const double power = std::pow(x, y);
      if (y < 0 || std::fabs(power) > 9e15) {
        return Value(power);
      }
      result = static_cast<int64_t>(power);
    }
    if (overflow) {
      return absl::InvalidArgumentError(absl::StrCat("'", op, "' overflows"));
    }
    return Value(result);
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

absl::StatusOr<Value> Compare(const std::string& op, const Value& left, const Value& right) {
  double x = 0;
  double y = 0;
  int order = 0;
  if (left.number(&x) && right.number(&y)) {
    order = x < y ? -1 : x > y ? 1 : 0;
  } else if (left.string() != nullptr && right.string() != nullptr) {
    const int compared = left.string()->text.compare(right.string()->text);
    order = compared < 0 ? -1 : compared > 0 ? 1 : 0;
  } else {
    return UnsupportedOperands(op, left, right);
  }
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
  if (Map* map = container.map()) {
    return FindItem(*map, item) != nullptr;
  }
  if (container.undefined()) {
    return false;
  }
  return UnsupportedOperands("in", item, container);
}

// Returns the byte offsets of the characters of a UTF-8 text, and of its end: Python counts characters, these
// strings count bytes.
std::vector<size_t> CharacterStarts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      starts.push_back(i);
    }
  }
  starts.push_back(text.size());
  return starts;
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
  if (op == "+" && left.list() != nullptr && right.list() != nullptr) {
    List joined = *left.list();
    joined.insert(joined.end(), right.list()->begin(), right.list()->end());
    return Value(std::move(joined));
  }
  int64_t times = 0;
  if (op == "*" && left.string() != nullptr && right.integer(&times)) {
    return Repeat(left, times, right);
  }
  if (op == "*" && right.string() != nullptr && left.integer(&times)) {
    return Repeat(right, times, left);
  }
  return Arithmetic(op, left, right);
}

absl::StatusOr<List> Items(const Value& value) {
  if (const List* list = value.list()) {
    return *list;
  }
  List items;
  if (const Map* map = value.map()) {
    for (const auto& [key, unused] : *map) {
      items.push_back(map->Key(key));
    }
    return items;
  }
  if (const String* text = value.string()) {
    const std::vector<size_t> starts = CharacterStarts(text->text);
    if (starts.size() > kMaxCharacters) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a text of ", starts.size() - 1, " characters, more than ", kMaxCharacters));
    }
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      items.push_back(Value(text->Slice(starts[i], starts[i + 1] - starts[i])));
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
  int64_t at = 0;
  if (!index.integer(&at)) {
    return Value::MakeUndefined(ToString(index).text);
  }
  if (const List* list = value.list()) {
    const int64_t length = static_cast<int64_t>(list->size());
    at = at < 0 ? at + length : at;
    return at >= 0 && at < length ? (*list)[at] : Value::MakeUndefined(absl::StrCat("[", at, "]"));
  }
  if (const String* text = value.string()) {
    const std::vector<size_t> starts = CharacterStarts(text->text);
    const int64_t length = static_cast<int64_t>(starts.size()) - 1;
    at = at < 0 ? at + length : at;
    return at >= 0 && at < length ? Value(text->Slice(starts[at], starts[at + 1] - starts[at]))
                                  : Value::MakeUndefined(absl::StrCat("[", at, "]"));
  }
  return Value::MakeUndefined(absl::StrCat("[", at, "]"));
}

absl::StatusOr<Value> SliceOf(const Value& value, const Value& begin, const Value& end, const Value& step) {
  const String* text = value.string();
  if (text == nullptr && value.list() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", value.TypeName(), " cannot be sliced"));
  }
  const std::vector<size_t> starts = text != nullptr ? CharacterStarts(text->text) : std::vector<size_t>();
  const int64_t length =
      text != nullptr ? static_cast<int64_t>(starts.size()) - 1 : static_cast<int64_t>(value.list()->size());
  ASSIGN_OR_RETURN(const Range range, SliceRange(length, begin, end, step));
  String characters;
  List items;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end; i += range.step) {
    if (text != nullptr) {
      characters.Append(text->Slice(starts[i], starts[i + 1] - starts[i]));
    } else {
      items.push_back((*value.list())[i]);
    }
  }
  return text != nullptr ? Value(std::move(characters)) : Value(std::move(items));
}

}  // namespace sluice::jinja
