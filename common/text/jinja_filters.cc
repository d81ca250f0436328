// The filters of jinja_builtins.h, with the meaning of Jinja or transformers.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/text/jinja_builtins.h"

namespace sluice::jinja {
namespace {

using FilterFunction = absl::StatusOr<Value> (*)(const Value&, const Arguments&);

absl::Status NoString(const char* filter, const Value& value) {
  return absl::InvalidArgumentError(absl::StrCat(filter, ": expected a string, got ", value.TypeName()));
}

// Calls CallMethod on the value as text, as Jinja's string filters do.
template <const char* kMethod>
absl::StatusOr<Value> AsMethod(const Value& value, const Arguments& arguments) {
  return CallMethod(Value(ToString(value)), kMethod, arguments);
}

constexpr char kUpper[] = "upper";
constexpr char kLower[] = "lower";
constexpr char kTitle[] = "title";
constexpr char kCapitalize[] = "capitalize";
constexpr char kReplace[] = "replace";
constexpr char kStrip[] = "strip";

absl::StatusOr<Value> Length(const Value& value, const Arguments&) {
  if (const String* text = value.string()) {
    return Value(static_cast<int64_t>(std::count_if(text->text.begin(), text->text.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    })));
  }
  ASSIGN_OR_RETURN(const List items, Items(value));
  return Value(static_cast<int64_t>(items.size()));
}

absl::StatusOr<Value> Default(const Value& value, const Arguments& arguments) {
  const Value* otherwise = arguments.Find(0, "default_value");
  const Value* boolean = arguments.Find(1, "boolean");
  const bool missing = value.undefined() || (boolean != nullptr && boolean->Truthy() && !value.Truthy());
  return missing ? (otherwise != nullptr ? *otherwise : Value("")) : value;
}

// Signature in transformers: tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False).
absl::StatusOr<Value> ToJsonFilter(const Value& value, const Arguments& arguments) {
  JsonFormat format;
  const Value* ascii = arguments.Find(0, "ensure_ascii");
  format.ensure_ascii = ascii != nullptr && ascii->Truthy();
  if (const Value* given = arguments.Find(1, "indent"); given != nullptr && !given->none()) {
    int64_t indent = 0;
    if (!given->integer(&indent) || indent < 0 || indent > 16) {
      return absl::InvalidArgumentError("tojson: indent must be an integer of 0..16");
    }
    format.indent = static_cast<int>(indent);
    format.item_separator = String::FromTemplate(",");
  }
  if (const Value* given = arguments.Find(2, "separators"); given != nullptr && !given->none()) {
    const List* pair = given->list();
    if (pair == nullptr || pair->size() != 2) {
      return absl::InvalidArgumentError("tojson: separators must be two strings");
    }
    format.item_separator = ToString((*pair)[0]);
    format.key_separator = ToString((*pair)[1]);
  }
  const Value* sort = arguments.Find(3, "sort_keys");
  format.sort_keys = sort != nullptr && sort->Truthy();
  ASSIGN_OR_RETURN(String text, ToJson(value, format));
  return Value(std::move(text));
}

absl::StatusOr<Value> Join(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(List items, Items(value));
  const Value* separator = arguments.Find(0, "d");
  const Value* attribute = arguments.Find(1, "attribute");
  String out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && separator != nullptr) {
      out.Append(ToString(*separator));
    }
    if (attribute != nullptr) {
      ASSIGN_OR_RETURN(items[i], Subscript(items[i], *attribute));
    }
    out.Append(ToString(items[i]));
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> First(const Value& value, const Arguments&) {
  if (value.string() != nullptr) {
    return Subscript(value, Value(0));
  }
  ASSIGN_OR_RETURN(const List items, Items(value));
  return items.empty() ? Value::MakeUndefined("first") : items.front();
}

absl::StatusOr<Value> Last(const Value& value, const Arguments&) {
  if (value.string() != nullptr) {
    return Subscript(value, Value(-1));
  }
  ASSIGN_OR_RETURN(const List items, Items(value));
  return items.empty() ? Value::MakeUndefined("last") : items.back();
}

absl::StatusOr<Value> Extreme(const Value& value, const char* op) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  Value best = Value::MakeUndefined("min or max of nothing");
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value better, best.undefined() ? Value(true) : ApplyBinary(op, item, best));
    best = better.Truthy() ? item : best;
  }
  return best;
}

absl::StatusOr<Value> Min(const Value& value, const Arguments&) { return Extreme(value, "<"); }
absl::StatusOr<Value> Max(const Value& value, const Arguments&) { return Extreme(value, ">"); }

absl::StatusOr<Value> ListFilter(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(List items, Items(value));
  return Value(std::move(items));
}

absl::StatusOr<Value> Reverse(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(List items, Items(value));
  std::reverse(items.begin(), items.end());
  if (value.string() == nullptr) {
    return Value(std::move(items));
  }
  return Join(Value(std::move(items)), {});
}

absl::StatusOr<Value> ItemsFilter(const Value& value, const Arguments&) {
  if (value.undefined()) {
    return Value(List());
  }
  if (value.map() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("items: expected a mapping, got ", value.TypeName()));
  }
  return CallMethod(value, "items", {});
}

// Jinja's sorting filters ignore case unless case_sensitive is set.
absl::Status StableSort(bool case_sensitive, bool reverse,
                        absl::FunctionRef<absl::StatusOr<Value>(const Value&)> key, List* items) {
  if (reverse) {  // equal items keep their order, as in Python
    std::reverse(items->begin(), items->end());
  }
  // std::stable_sort cannot be aborted: after a failure the comparison returns false for every pair, and the
  // list, now in no defined order, is dropped with the error.
  absl::Status failure;
  const auto key_of = [&](const Value& item) {
    absl::StatusOr<Value> value = key(item);
    if (!value.ok()) {
      failure = value.status();
      return Value();
    }
    return case_sensitive || value->string() == nullptr ? *value
                                                        : CallMethod(*value, "lower", {}).value_or(Value());
  };
  std::stable_sort(items->begin(), items->end(), [&](const Value& a, const Value& b) {
    const absl::StatusOr<Value> less = ApplyBinary("<", key_of(a), key_of(b));
    if (!less.ok()) {
      failure = less.status();
      return false;
    }
    return less->Truthy();
  });
  if (reverse) {
    std::reverse(items->begin(), items->end());
  }
  return failure;
}

bool IsSet(const Arguments& arguments, size_t index, const char* name) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr && value->Truthy();
}

absl::StatusOr<Value> DictSort(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Value pairs, ItemsFilter(value, arguments));
  const Value* by = arguments.Find(1, "by");
  const size_t part = by != nullptr && ToString(*by).text == "value" ? 1 : 0;
  List sorted = *pairs.list();
  RETURN_IF_ERROR(StableSort(
      IsSet(arguments, 0, "case_sensitive"), IsSet(arguments, 2, "reverse"),
      [part](const Value& pair) { return (*pair.list())[part]; }, &sorted));
  return Value(std::move(sorted));
}

absl::StatusOr<Value> Sort(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(List items, Items(value));
  const Value* attribute = arguments.Find(2, "attribute");
  RETURN_IF_ERROR(StableSort(
      IsSet(arguments, 1, "case_sensitive"), IsSet(arguments, 0, "reverse"),
      [attribute](const Value& item) -> absl::StatusOr<Value> {
        return attribute == nullptr ? item : Subscript(item, *attribute);
      },
      &items));
  return Value(std::move(items));
}

absl::StatusOr<Value> Unique(const Value& value, const Arguments&) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  List out;
  for (const Value& item : items) {
    if (std::none_of(out.begin(), out.end(), [&](const Value& other) { return Equal(item, other); })) {
      out.push_back(item);
    }
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> ToInt(const Value& value, const Arguments& arguments) {
  double number = 0;
  int64_t whole = 0;
  if (value.integer(&whole)) {
    return Value(whole);
  }
  if (value.number(&number)) {
    return Value(static_cast<int64_t>(std::clamp(number, -9e15, 9e15)));
  }
  if (const String* text = value.string()) {
    char* end = nullptr;
    whole = std::strtoll(text->text.c_str(), &end, 10);
    if (end != text->text.c_str() && *end == 0) {
      return Value(whole);
    }
  }
  const Value* otherwise = arguments.Find(0, "default");
  return otherwise != nullptr ? *otherwise : Value(0);
}

absl::StatusOr<Value> ToFloat(const Value& value, const Arguments& arguments) {
  double number = 0;
  if (value.number(&number)) {
    return Value(number);
  }
  if (const String* text = value.string()) {
    char* end = nullptr;
    number = std::strtod(text->text.c_str(), &end);
    if (end != text->text.c_str() && *end == 0) {
      return Value(number);
    }
  }
  const Value* otherwise = arguments.Find(0, "default");
  return otherwise != nullptr ? *otherwise : Value(0.0);
}

absl::StatusOr<Value> Abs(const Value& value, const Arguments&) {
  int64_t whole = 0;
  double number = 0;
  if (value.integer(&whole) && whole != INT64_MIN) {
    return Value(whole < 0 ? -whole : whole);
  }
  if (value.number(&number)) {
    return Value(std::fabs(number));
  }
  return absl::InvalidArgumentError(absl::StrCat("abs: expected a number, got ", value.TypeName()));
}

absl::StatusOr<Value> Round(const Value& value, const Arguments& arguments) {
  double number = 0;
  int64_t digits = 0;
  if (!value.number(&number)) {
    return absl::InvalidArgumentError(absl::StrCat("round: expected a number, got ", value.TypeName()));
  }
  if (const Value* given = arguments.Find(0, "precision")) {
    given->integer(&digits);
  }
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(digits, -15, 15)));
  return Value(std::nearbyint(number * scale) / scale);
}

absl::StatusOr<Value> Indent(const Value& value, const Arguments& arguments) {
  const String* text = value.string();
  if (text == nullptr) {
    return NoString("indent", value);
  }
  String prefix = String::FromTemplate("    ");
  if (const Value* width = arguments.Find(0, "width")) {
    int64_t count = 4;
    if (width->string() != nullptr) {
      prefix = *width->string();
    } else if (width->integer(&count)) {
      prefix =
          String::FromTemplate(std::string(static_cast<size_t>(std::clamp<int64_t>(count, 0, 1000)), ' '));
    }
  }
  const Value* first = arguments.Find(1, "first");
  const Value* blank = arguments.Find(2, "blank");
  String out;
  bool start = first != nullptr && first->Truthy();
  for (size_t i = 0; i < text->text.size(); ++i) {
    if (start && (text->text[i] != '\n' || (blank != nullptr && blank->Truthy()))) {
      out.Append(prefix);
    }
    out.Append(text->Slice(i, 1));
    start = text->text[i] == '\n';
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> StringFilter(const Value& value, const Arguments&) { return Value(ToString(value)); }
// Escape (Jinja's `e`): writes the characters that HTML treats specially as entities.
absl::StatusOr<Value> Escape(const Value& value, const Arguments&) {
  const String text = ToString(value);
  String out;
  for (size_t i = 0; i < text.text.size(); ++i) {
    const char* entity = nullptr;
    switch (text.text[i]) {
      case '&':
        entity = "&amp;";
        break;
      case '<':
        entity = "&lt;";
        break;
      case '>':
        entity = "&gt;";
        break;
      case '\'':
        entity = "&#39;";
        break;
      case '"':
        entity = "&#34;";
        break;
      default:
        out.Append(text.Slice(i, 1));
        continue;
    }
    const std::string_view spelt(entity);
    out.text += spelt;
    out.marks.append(spelt.size(), text.marks[i]);
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> Same(const Value& value, const Arguments&) { return value; }

// Returns the arguments without the first `skip` positional ones, for the filter or test that these name.
Arguments Rest(const Arguments& arguments, size_t skip) {
  Arguments rest;
  rest.named = arguments.named;
  if (arguments.positional.size() > skip) {
    rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(skip),
                           arguments.positional.end());
  }
  return rest;
}

// Follows an attribute path: "a.b" looks up a, then b in the result.
absl::StatusOr<Value> AttributeOf(Value value, const std::string& path) {
  size_t begin = 0;
  while (true) {
    const size_t dot = path.find('.', begin);
    ASSIGN_OR_RETURN(value, Subscript(value, Value(String::FromTemplate(path.substr(begin, dot - begin)))));
    if (dot == std::string::npos || value.undefined()) {
      return value;
    }
    begin = dot + 1;
  }
}

absl::StatusOr<Value> MapFilter(const Value& value, const Arguments& arguments) {
  ASSIGN_OR_RETURN(List items, Items(value));
  Map named = arguments.named;
  const Value* attribute = FindKey(named, "attribute");
  const Value* otherwise = FindKey(named, "default");
  if (attribute == nullptr && (arguments.positional.empty() || arguments.positional[0].string() == nullptr)) {
    return absl::InvalidArgumentError("map: needs attribute=... or a filter's name");
  }
  for (Value& item : items) {
    if (attribute != nullptr) {
      ASSIGN_OR_RETURN(item, AttributeOf(item, ToString(*attribute).text));
      if (item.undefined() && otherwise != nullptr) {
        item = *otherwise;
      }
    } else {
      ASSIGN_OR_RETURN(item, ApplyFilter(arguments.positional[0].string()->text, item, Rest(arguments, 1)));
    }
  }
  return Value(std::move(items));
}

absl::StatusOr<Value> SelectItems(const Value& value, const Arguments& arguments, bool keep,
                                  bool by_attribute) {
  ASSIGN_OR_RETURN(const List items, Items(value));
  const size_t test = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) {
    return absl::InvalidArgumentError("selectattr: needs an attribute's name");
  }
  List out;
  for (const Value& item : items) {
    Value subject = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(subject, AttributeOf(item, ToString(arguments.positional[0]).text));
    }
    bool chosen = subject.Truthy();
    if (arguments.positional.size() > test) {
      ASSIGN_OR_RETURN(
          chosen, ApplyTest(ToString(arguments.positional[test]).text, subject, Rest(arguments, test + 1)));
    }
    if (chosen == keep) {
      out.push_back(item);
    }
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> Select(const Value& v, const Arguments& a) { return SelectItems(v, a, true, false); }
absl::StatusOr<Value> Reject(const Value& v, const Arguments& a) { return SelectItems(v, a, false, false); }
absl::StatusOr<Value> SelectAttr(const Value& v, const Arguments& a) { return SelectItems(v, a, true, true); }
absl::StatusOr<Value> RejectAttr(const Value& v, const Arguments& a) {
  return SelectItems(v, a, false, true);
}

}  // namespace

absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value, const Arguments& arguments) {
  static constexpr std::pair<std::string_view, FilterFunction> kFilters[] = {
      {"abs", Abs},
      {"capitalize", AsMethod<kCapitalize>},
      {"count", Length},
      {"d", Default},
      {"default", Default},
      {"dictsort", DictSort},
      {"e", Escape},
      {"escape", Escape},
      {"first", First},
      {"float", ToFloat},
      {"indent", Indent},
      {"int", ToInt},
      {"items", ItemsFilter},
      {"join", Join},
      {"last", Last},
      {"length", Length},
      {"list", ListFilter},
      {"lower", AsMethod<kLower>},
      {"map", MapFilter},
      {"max", Max},
      {"min", Min},
      {"reject", Reject},
      {"rejectattr", RejectAttr},
      {"replace", AsMethod<kReplace>},
      {"reverse", Reverse},
      {"round", Round},
      {"safe", Same},
      {"select", Select},
      {"selectattr", SelectAttr},
      {"sort", Sort},
      {"string", StringFilter},
      {"title", AsMethod<kTitle>},
      {"tojson", ToJsonFilter},
      {"trim", AsMethod<kStrip>},
      {"unique", Unique},
      {"upper", AsMethod<kUpper>}};
  for (const auto& [filter, function] : kFilters) {
    if (filter == name) {
      return function(value, arguments);
    }
  }
  return absl::UnimplementedError(absl::StrCat("the filter '", name, "' is not supported"));
}

// Tests: the names that may follow `is` (jinja_builtins.h).

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
