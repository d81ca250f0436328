// Operators, subscripts and loops over values (jinja_builtins.h).

#include "common/text/jinja_builtins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

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

// Methods of strings, lists and maps (jinja_builtins.h), with Python's meaning.

namespace {

constexpr char kBlanks[] = " \t\n\r\f\v";

char AsciiUpper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char AsciiLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool IsLetter(char c) { return AsciiUpper(c) != AsciiLower(c) || (c & 0x80) != 0; }

absl::StatusOr<String> TextArgument(const std::string& method, const Arguments& arguments, size_t index,
                                    std::string_view name) {
  const Value* value = arguments.Find(index, name);
  if (value == nullptr || value->string() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": argument ", index + 1, " must be a string"));
  }
  return *value->string();
}

String Strip(const String& text, const std::string& characters, bool left, bool right) {
  size_t begin = 0;
  size_t end = text.text.size();
  while (left && begin < end && characters.find(text.text[begin]) != std::string::npos) {
    ++begin;
  }
  while (right && end > begin && characters.find(text.text[end - 1]) != std::string::npos) {
    --end;
  }
  return text.Slice(begin, end - begin);
}

List Split(const String& text, const String* separator, int64_t most, bool from_right) {
  List parts;
  if (separator == nullptr) {
    size_t at = text.text.find_first_not_of(kBlanks);
    while (at != std::string::npos) {
      size_t end = text.text.find_first_of(kBlanks, at);
      if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
        end = text.text.find_last_not_of(kBlanks) + 1;
      }
      end = std::min(end, text.text.size());
      parts.push_back(Value(text.Slice(at, end - at)));
      at = text.text.find_first_not_of(kBlanks, end);
    }
    return parts;
  }
  std::vector<size_t> cuts;
  const size_t width = separator->text.size();
  if (!from_right) {
    for (size_t at = text.text.find(separator->text); at != std::string::npos;
         at = text.text.find(separator->text, at + width)) {
      if (most >= 0 && static_cast<int64_t>(cuts.size()) >= most) {
        break;
      }
      cuts.push_back(at);
    }
  } else {
    size_t limit = text.text.size();
    while (limit >= width && (most < 0 || static_cast<int64_t>(cuts.size()) < most)) {
      const size_t at = text.text.rfind(separator->text, limit - width);
      if (at == std::string::npos) {
        break;
      }
      cuts.insert(cuts.begin(), at);
      limit = at;
    }
  }
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(Value(text.Slice(begin, cut - begin)));
    begin = cut + width;
  }
  parts.push_back(Value(text.Slice(begin, std::string::npos)));
  return parts;
}

String Replace(const String& text, const String& from, const String& to, int64_t most) {
  if (from.text.empty()) {
    return text;
  }
  String out;
  size_t begin = 0;
  for (size_t at = text.text.find(from.text); at != std::string::npos && most != 0; --most) {
    out.Append(text.Slice(begin, at - begin));
    out.Append(to);
    begin = at + from.text.size();
    at = text.text.find(from.text, begin);
  }
  out.Append(text.Slice(begin, std::string::npos));
  return out;
}

String ChangeCase(String text, const std::string& method) {
  bool start = true;
  for (size_t i = 0; i < text.text.size(); ++i) {
    char& c = text.text[i];
    const bool upper = method == "upper" || ((method == "title" || method == "capitalize") && start);
    start = method == "title" ? !IsLetter(c) : false;
    c = upper ? AsciiUpper(c) : AsciiLower(c);
  }
  return text;
}

// Implements startswith and endswith: they accept one string or a list of alternatives.
absl::StatusOr<Value> HasEnd(const String& text, const std::string& method, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "prefix");
  List options;
  if (given != nullptr && given->list() != nullptr) {
    options = *given->list();
  } else if (given != nullptr) {
    options.push_back(*given);
  }
  for (const Value& option : options) {
    if (option.string() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(method, ": expected a string, got ", option.TypeName()));
    }
    const std::string& end = option.string()->text;
    if (method == "startswith" ? text.text.compare(0, end.size(), end) == 0
                               : text.text.size() >= end.size() &&
                                     text.text.compare(text.text.size() - end.size(), end.size(), end) == 0) {
      return Value(true);
    }
  }
  return Value(false);
}

absl::StatusOr<Value> SplitMethod(const String& text, const std::string& method, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "sep");
  const String* separator = given == nullptr ? nullptr : given->string();
  if (separator != nullptr && separator->text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": an empty separator"));
  }
  int64_t most = -1;
  if (const Value* limit = arguments.Find(1, "maxsplit")) {
    limit->integer(&most);
  }
  return Value(Split(text, separator, most, method == "rsplit"));
}

absl::StatusOr<Value> CallString(const String& text, const std::string& method, const Arguments& arguments) {
  if (method == "strip" || method == "lstrip" || method == "rstrip") {
    const Value* given = arguments.Find(0, "chars");
    const std::string characters =
        given != nullptr && given->string() != nullptr ? given->string()->text : kBlanks;
    return Value(Strip(text, characters, method != "rstrip", method != "lstrip"));
  }
  if (method == "upper" || method == "lower" || method == "title" || method == "capitalize") {
    return Value(ChangeCase(text, method));
  }
  if (method == "split" || method == "rsplit") {
    return SplitMethod(text, method, arguments);
  }
  if (method == "splitlines") {
    const String newline = String::FromTemplate("\n");
    List lines = Split(text, &newline, -1, false);
    if (lines.back().string()->text.empty()) {
      lines.pop_back();
    }
    return Value(std::move(lines));
  }
  if (method == "startswith" || method == "endswith") {
    return HasEnd(text, method, arguments);
  }
  if (method == "removeprefix" || method == "removesuffix") {
    ASSIGN_OR_RETURN(const String end, TextArgument(method, arguments, 0, "prefix"));
    ASSIGN_OR_RETURN(const Value has,
                     HasEnd(text, method == "removeprefix" ? "startswith" : "endswith", arguments));
    const size_t cut = has.Truthy() ? end.text.size() : 0;
    return Value(method == "removeprefix" ? text.Slice(cut, std::string::npos)
                                          : text.Slice(0, text.text.size() - cut));
  }
  if (method == "replace") {
    ASSIGN_OR_RETURN(const String from, TextArgument(method, arguments, 0, "old"));
    ASSIGN_OR_RETURN(const String to, TextArgument(method, arguments, 1, "new"));
    int64_t most = -1;
    if (const Value* limit = arguments.Find(2, "count")) {
      limit->integer(&most);
    }
    return Value(Replace(text, from, to, most));
  }
  if (method == "find" || method == "count") {
    ASSIGN_OR_RETURN(const String part, TextArgument(method, arguments, 0, "sub"));
    if (method == "find") {
      const size_t at = text.text.find(part.text);
      return Value(at == std::string::npos ? int64_t{-1} : static_cast<int64_t>(at));
    }
    return Value(static_cast<int64_t>(part.text.empty() ? text.text.size() + 1
                                                        : Split(text, &part, -1, false).size() - 1));
  }
  if (method == "join") {
    Arguments join;
    join.positional.push_back(Value(text));
    return ApplyFilter("join", arguments.positional.empty() ? Value(List()) : arguments.positional[0], join);
  }
  if (method == "isdigit") {
    return Value(!text.text.empty() && text.text.find_first_not_of("0123456789") == std::string::npos);
  }
  return absl::UnimplementedError(absl::StrCat("the method '", method, "' of a string is not supported"));
}

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
  List out;
  for (const auto& [key, value] : map) {
    if (method == "items") {
      out.push_back(Value(List{map.Key(key), value}));
    } else if (method == "keys") {
      out.push_back(map.Key(key));
    } else {
      out.push_back(value);
    }
  }
  return Value(std::move(out));
}

constexpr std::array<std::string_view, 4> kMapMethods = {"get", "items", "keys", "values"};

}  // namespace

bool HasMethod(const Value& object, const std::string& name) {
  if (object.map() != nullptr) {
    return std::find(kMapMethods.begin(), kMapMethods.end(), name) != kMapMethods.end();
  }
  return object.string() != nullptr || object.list() != nullptr;
}

absl::StatusOr<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments) {
  if (const String* text = object.string()) {
    return CallString(*text, name, arguments);
  }
  if (object.map() != nullptr && HasMethod(object, name)) {
    return CallMap(*object.map(), name, arguments);
  }
  if (List* list = object.list(); list != nullptr && !arguments.positional.empty()) {
    if (name == "index") {
      for (size_t i = 0; i < list->size(); ++i) {
        if (Equal((*list)[i], arguments.positional[0])) {
          return Value(static_cast<int64_t>(i));
        }
      }
      return absl::InvalidArgumentError("index: the value is not in the list");
    }
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
