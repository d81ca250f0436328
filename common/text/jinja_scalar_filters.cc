// The filters of jinja_builtins.h over texts, numbers and single values, with the meaning of Jinja or
// transformers, and the tests.

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/text/jinja_builtins.h"
#include "common/text/jinja_strings.h"

namespace sluice::jinja {
namespace {

using FilterFunction = absl::StatusOr<Value> (*)(const Value&, const Arguments&);

constexpr int kMaxIndent = 64;  // characters of one level

// Calls CallMethod on the value as text, as Jinja's string filters do.
template <const char* kMethod>
absl::StatusOr<Value> AsMethod(const Value& value, const Arguments& arguments) {
  return CallMethod(Value(ToString(value)), kMethod, arguments);
}

constexpr char kUpper[] = "upper";
constexpr char kLower[] = "lower";
constexpr char kReplace[] = "replace";
constexpr char kStrip[] = "strip";

absl::StatusOr<Value> CapitalizeFilter(const Value& value, const Arguments&) {
  return Value(Capitalize(ToString(value)));
}

// Title: a capital behind blanks, hyphens and opening brackets, small letters elsewhere. Unlike str.title(),
// an apostrophe begins no word.
absl::StatusOr<Value> TitleFilter(const Value& value, const Arguments&) {
  const String text = ToString(value);
  const auto parts_words = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-({[<").find(c) != std::string_view::npos;
  };
  String out;
  for (size_t at = 0; at < text.text.size();) {
    size_t end = at;
    while (end < text.text.size() && !parts_words(text.text[end])) {
      ++end;
    }
    const String word = text.Slice(at, end - at);
    const size_t first = ByteOfCharacter(word.text, 1);
    out.Append(ChangeCase(word.Slice(0, first), LetterCase::kUpper));
    out.Append(ChangeCase(word.Slice(first, std::string::npos), LetterCase::kLower));
    out.Append(text.Slice(end, end < text.text.size() ? 1 : 0));
    at = end + 1;
  }
  return Value(std::move(out));
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
    if (given->string() != nullptr) {
      format.indent = given->string()->text.substr(0, kMaxIndent);
    } else if (!given->integer(&indent) || indent > kMaxIndent) {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: indent must be a text or an integer up to ", kMaxIndent));
    } else {
      format.indent = std::string(static_cast<size_t>(std::max<int64_t>(indent, 0)), ' ');
    }
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

absl::Status UndefinedNumber(const char* filter) {
  return absl::InvalidArgumentError(absl::StrCat(filter, ": the value is undefined"));
}

// Reads an integer of a base, with a sign and blanks around it, as int(text, base) does. None: it is none.
std::optional<Value> ReadInteger(const String& source, int64_t base) {
  const std::string text = Strip(source, nullptr).text;
  std::string digits;
  for (const char c : text.substr(!text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0)) {
    if (c != '_') {
      digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  for (const auto& [prefix, own] : {std::pair("0x", 16), std::pair("0o", 8), std::pair("0b", 2)}) {
    if (digits.compare(0, 2, prefix) == 0 && (base == own || base == 0)) {
      digits.erase(0, 2);
      base = own;
      break;
    }
  }
  base = base == 0 ? 10 : base;
  Integer value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
    if (digit >= base || __builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit}, &value)) {
      return std::nullopt;
    }
  }
  if (digits.empty()) {
    return std::nullopt;
  }
  return Value(text[0] == '-' ? -value : value);
}

std::optional<double> ReadFloat(const String& source) {
  const std::string text = Strip(source, nullptr).text;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool hexadecimal = text.find_first_of("xX") != std::string::npos;  // not Python's
  return text.empty() || *end != 0 || hexadecimal ? std::nullopt : std::optional(number);
}

absl::StatusOr<Value> ToInt(const Value& value, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "default");
  const Value otherwise = given != nullptr ? *given : Value(0);
  int64_t base = 10;
  if (const Value* own = arguments.Find(1, "base")) {
    own->integer(&base);
  }
  if (value.undefined()) {
    return UndefinedNumber("int");
  }
  std::optional<double> number;
  if (const String* text = value.string()) {
    if (std::optional<Value> whole = ReadInteger(*text, base)) {
      return *std::move(whole);
    }
    number = ReadFloat(*text);
  }
  Integer whole = 0;
  double real = 0;
  if (value.integer(&whole)) {
    return Value(whole);
  }
  number = value.number(&real) ? real : number;
  return number.has_value() && std::fabs(*number) < 1e38 ? Value(static_cast<Integer>(*number)) : otherwise;
}

absl::StatusOr<Value> ToFloat(const Value& value, const Arguments& arguments) {
  double number = 0;
  if (value.undefined()) {
    return UndefinedNumber("float");
  }
  if (value.number(&number)) {
    return Value(number);
  }
  const std::optional<double> read = value.string() != nullptr ? ReadFloat(*value.string()) : std::nullopt;
  const Value* otherwise = arguments.Find(0, "default");
  return read.has_value() ? Value(*read) : otherwise != nullptr ? *otherwise : Value(0.0);
}

absl::StatusOr<Value> Abs(const Value& value, const Arguments&) {
  Integer whole = 0;
  double number = 0;
  if (value.integer(&whole)) {
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
  digits = std::clamp<int64_t>(digits, -30, 30);
  const Value* given = arguments.Find(1, "method");
  const std::string method = given != nullptr ? ToString(*given).text : "common";
  const double scale = std::pow(10.0, static_cast<double>(digits));
  if (method == "ceil" || method == "floor") {
    return Value((method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale);
  }
  if (method != "common") {
    return absl::InvalidArgumentError("round: the method must be common, ceil or floor");
  }
  Integer whole = 0;
  if (value.integer(&whole) && digits >= 0) {
    return Value(whole);
  }
  if (digits < 0) {
    const double rounded = std::nearbyint(number * scale) / scale;
    return value.integer(&whole) ? Value(static_cast<Integer>(rounded)) : Value(rounded);
  }
  // Rounds the exact binary value, as Python does: 2.675 becomes 2.67.
  return Value(std::strtod(absl::StrFormat("%.*f", static_cast<int>(digits), number).c_str(), nullptr));
}

absl::StatusOr<Value> Indent(const Value& value, const Arguments& arguments) {
  const String* text = value.string();
  if (text == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("indent: expected a string, got ", value.TypeName()));
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
  const bool blank_too = blank != nullptr && blank->Truthy();
  ASSIGN_OR_RETURN(const Value split, CallString(*text, "splitlines", {}));
  List lines = *split.list();
  if (lines.empty() || (!text->text.empty() && text->text.back() == '\n')) {
    lines.push_back(Value(""));  // behind the last line break
  }
  String out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const String& line = *lines[i].string();
    if (i > 0) {
      out.Append(String::FromTemplate("\n"));
    }
    const bool indented = i == 0 ? first != nullptr && first->Truthy() : blank_too || !line.text.empty();
    out.Append(indented ? prefix : String());
    out.Append(line);
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> StringFilter(const Value& value, const Arguments&) { return Value(ToString(value)); }
absl::StatusOr<Value> Same(const Value& value, const Arguments&) { return value; }

// Escape (Jinja's `e`): writes the characters that HTML treats specially as entities.
absl::StatusOr<Value> Escape(const Value& value, const Arguments&) {
  constexpr std::pair<char, std::string_view> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
  const String text = ToString(value);
  String out;
  for (size_t i = 0; i < text.text.size(); ++i) {
    std::string_view written(&text.text[i], 1);
    for (const auto& [c, entity] : kEntities) {
      written = c == text.text[i] ? entity : written;
    }
    out.text += written;
    out.marks.append(written.size(), text.marks[i]);
  }
  return Value(std::move(out));
}

// Writes ` name="value"` for the members of a mapping that are neither None nor undefined.
absl::StatusOr<Value> XmlAttributes(const Value& value, const Arguments& arguments) {
  const Map* map = value.map();
  if (map == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("xmlattr: expected a mapping, got ", value.TypeName()));
  }
  const Value* space = arguments.Find(0, "autospace");
  String out;
  for (const auto& [key, item] : *map) {
    const String name = ToString(key);
    if (item.none() || item.undefined()) {
      continue;
    }
    if (name.text.find_first_of(" \t\n\f\r/>=") != std::string::npos) {
      return absl::InvalidArgumentError("xmlattr: an attribute's name has a blank, '/', '>' or '='");
    }
    ASSIGN_OR_RETURN(const Value escaped_name, Escape(key, {}));
    ASSIGN_OR_RETURN(const Value escaped, Escape(item, {}));
    const bool separated = !out.text.empty() || space == nullptr || space->Truthy();
    out.Append(String::FromTemplate(separated ? " " : ""));
    out.Append(*escaped_name.string());
    out.Append(String::FromTemplate("=\""));
    out.Append(*escaped.string());
    out.Append(String::FromTemplate("\""));
  }
  return Value(std::move(out));
}

// Quotes a text for a path, or for a query, where a blank is a plus.
String UrlQuoted(const String& text, bool query) {
  String out;
  for (size_t i = 0; i < text.text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text.text[i]);
    const bool plain =
        std::isalnum(c) != 0 || std::string_view("_.-~").find(text.text[i]) < 4 || (c == '/' && !query);
    const std::string written = plain               ? text.text.substr(i, 1)
                                : c == ' ' && query ? "+"
                                                    : absl::StrFormat("%%%02X", c);
    out.text += written;
    out.marks.append(written.size(), text.marks[i]);
  }
  return out;
}

// Quotes a text for a URL; of a mapping or pairs makes a query string.
absl::StatusOr<Value> UrlEncode(const Value& value, const Arguments&) {
  if (value.list() == nullptr && value.map() == nullptr) {
    return Value(UrlQuoted(ToString(value), /*query=*/false));
  }
  ASSIGN_OR_RETURN(const Value pairs, value.map() != nullptr ? CallMethod(value, "items", {}) : value);
  ASSIGN_OR_RETURN(const List items, Items(pairs));
  String out;
  for (const Value& pair : items) {
    if (pair.list() == nullptr || pair.list()->size() != 2) {
      return absl::InvalidArgumentError("urlencode: an item is not a pair");
    }
    out.Append(String::FromTemplate(out.text.empty() ? "" : "&"));
    out.Append(UrlQuoted(ToString((*pair.list())[0]), /*query=*/true));
    out.Append(String::FromTemplate("="));
    out.Append(UrlQuoted(ToString((*pair.list())[1]), /*query=*/true));
  }
  return Value(std::move(out));
}

absl::StatusOr<Value> WordCount(const Value& value, const Arguments&) {
  const String text = ToString(value);
  int64_t words = 0;
  ASSIGN_OR_RETURN(const Value parts, CallString(text, "split", {}));
  for (const Value& part : *parts.list()) {  // \w+ also ends at punctuation
    bool inside = false;
    for (const char c : part.string()->text) {
      const bool word = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || (c & 0x80) != 0;
      words += word && !inside ? 1 : 0;
      inside = word;
    }
  }
  return Value(words);
}

absl::StatusOr<Value> CenterFilter(const Value& value, const Arguments& arguments) {
  int64_t width = 80;
  if (const Value* given = arguments.Find(0, "width")) {
    given->integer(&width);
  }
  return Value(Center(ToString(value), width, String::FromTemplate(" ")));
}

absl::StatusOr<Value> FormatFilter(const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return absl::InvalidArgumentError("format: takes values by position or by name, not both");
  }
  Map named;
  for (const auto& [name, item] : arguments.named) {
    SetItem(named, Value(String::FromTemplate(name)), item);
  }
  ASSIGN_OR_RETURN(String text, FormatPercent(ToString(value), arguments.named.empty()
                                                                   ? Value(List::Tuple(arguments.positional))
                                                                   : Value(std::move(named))));
  return Value(std::move(text));
}

// Truncate: cuts a text that is longer than `length` and `leeway` together, at a word unless killwords is
// set.
absl::StatusOr<Value> Truncate(const Value& value, const Arguments& arguments) {
  const String text = ToString(value);
  int64_t length = 255;
  int64_t leeway = 5;
  if (const Value* given = arguments.Find(0, "length")) {
    given->integer(&length);
  }
  const Value* kill = arguments.Find(1, "killwords");
  const Value* given_end = arguments.Find(2, "end");
  const String end = given_end != nullptr ? ToString(*given_end) : String::FromTemplate("...");
  if (const Value* given = arguments.Find(3, "leeway"); given != nullptr && !given->none()) {
    given->integer(&leeway);
  }
  const int64_t kept = length - CharacterCount(end.text);
  if (kept < 0 || leeway < 0) {
    return absl::InvalidArgumentError("truncate: the length is below that of its end");
  }
  if (CharacterCount(text.text) <= length + leeway) {
    return Value(text);
  }
  String out = text.Slice(0, ByteOfCharacter(text.text, kept));
  if (kill == nullptr || !kill->Truthy()) {
    out = out.Slice(0, out.text.rfind(' '));
  }
  out.Append(end);
  return Value(std::move(out));
}

// Pprint of values that fit one line: repr with the keys of mappings in order.
Value Sorted(const Value& value, int depth) {
  if (depth > 64) {
    return value;
  }
  if (const Map* map = value.map(); map != nullptr && map->kind == Map::Kind::kDict) {
    Map sorted(*map);
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return ApplyBinary("<", a.first, b.first).value_or(Value(false)).Truthy();
    });
    for (auto& [key, item] : sorted) {
      item = Sorted(item, depth + 1);
    }
    return Value(std::move(sorted));
  }
  if (const List* list = value.list(); list != nullptr && list->indexed()) {
    List items = *list;
    for (Value& item : items) {
      item = Sorted(item, depth + 1);
    }
    return Value(std::move(items));
  }
  return value;
}

absl::StatusOr<Value> PrettyPrint(const Value& value, const Arguments&) {
  String text = Repr(Sorted(value, 0));
  if (CharacterCount(text.text) > 80 && (value.map() != nullptr || value.list() != nullptr)) {
    return absl::UnimplementedError("the filter 'pprint' of more than one line is not supported");
  }
  return Value(std::move(text));
}

}  // namespace

absl::StatusOr<Value> ApplyScalarFilter(const std::string& name, const Value& value,
                                        const Arguments& arguments) {
  static constexpr std::pair<std::string_view, FilterFunction> kFilters[] = {{"abs", Abs},
                                                                             {"capitalize", CapitalizeFilter},
                                                                             {"center", CenterFilter},
                                                                             {"d", Default},
                                                                             {"default", Default},
                                                                             {"e", Escape},
                                                                             {"escape", Escape},
                                                                             {"float", ToFloat},
                                                                             {"forceescape", Escape},
                                                                             {"format", FormatFilter},
                                                                             {"indent", Indent},
                                                                             {"int", ToInt},
                                                                             {"lower", AsMethod<kLower>},
                                                                             {"pprint", PrettyPrint},
                                                                             {"replace", AsMethod<kReplace>},
                                                                             {"round", Round},
                                                                             {"safe", Same},
                                                                             {"string", StringFilter},
                                                                             {"title", TitleFilter},
                                                                             {"tojson", ToJsonFilter},
                                                                             {"trim", AsMethod<kStrip>},
                                                                             {"truncate", Truncate},
                                                                             {"upper", AsMethod<kUpper>},
                                                                             {"urlencode", UrlEncode},
                                                                             {"wordcount", WordCount},
                                                                             {"xmlattr", XmlAttributes}};
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
  Integer whole = 0;
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
    return value.map() != nullptr && value.map()->kind == Map::Kind::kDict;
  }
  if (name == "iterable" || name == "sequence") {
    const List* list = value.list();
    const bool dict = value.map() != nullptr && value.map()->kind == Map::Kind::kDict;
    return value.string() != nullptr || value.undefined() || dict ||
           (list != nullptr && (name == "iterable" || list->indexed()));
  }
  if (name == "upper" || name == "lower") {
    ASSIGN_OR_RETURN(const Value is, CallString(ToString(value), absl::StrCat("is", name), {}));
    return is.Truthy();
  }
  if (name == "escaped") {
    return false;  // there is no markup here
  }
  if (name == "number") {
    return value.number(&number);
  }
  if (name == "integer") {
    return (value.integer(&whole) && !boolean) || value.As<LongInteger>() != nullptr;
  }
  if (name == "float") {
    return value.As<double>() != nullptr;
  }
  if (name == "callable") {
    return value.function() != nullptr || (value.map() != nullptr && value.map()->call != nullptr);
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
      {"equalto", "=="}, {"eq", "=="}, {"ne", "!="},      {"in", "in"},         {"lt", "<"},  {"le", "<="},
      {"gt", ">"},       {"ge", ">="}, {"lessthan", "<"}, {"greaterthan", ">"}, {"==", "=="}, {"!=", "!="},
      {"<", "<"},        {"<=", "<="}, {">", ">"},        {">=", ">="}};
  for (const auto& [test, op] : kOperators) {
    if (test == name) {
      ASSIGN_OR_RETURN(const Value result, ApplyBinary(op, value, *other));
      return result.Truthy();
    }
  }
  if (name == "sameas") {
    const bool same_type = value.data().index() == other->data().index();
    const bool shared = value.list() != nullptr || value.map() != nullptr;
    return same_type &&
           (shared ? value.list() == other->list() && value.map() == other->map() : Equal(value, *other));
  }
  if (name == "divisibleby") {
    ASSIGN_OR_RETURN(const Value rest, ApplyBinary("%", value, *other));
    return !rest.Truthy();
  }
  return absl::UnimplementedError(absl::StrCat("the test '", name, "' is not supported"));
}

}  // namespace sluice::jinja
