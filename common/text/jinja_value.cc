#include "common/text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/text/unicode.h"

namespace sluice::jinja {
namespace {

constexpr int kMaxPrintDepth = 64;  // maximum depth of printed lists and maps

// Formats as Python's repr(): the fewest digits that give the number back, with an exponent below 1e-4 and
// from 1e16 on.
std::string FormatDouble(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  char buffer[64];
  const auto result =
      std::to_chars(buffer, buffer + sizeof(buffer) - 1, value, std::chars_format::scientific);
  *result.ptr = '\0';  // for atoi
  const std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.data() + e + 1);
  if (exponent < -4 || exponent >= 16) {
    return std::string(text);  // to_chars writes exponents as Python does: a sign and two digits or more
  }
  const bool negative = text[0] == '-';
  std::string digits(text.substr(negative ? 1 : 0, e - (negative ? 1 : 0)));
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  if (exponent < 0) {
    digits.insert(0, static_cast<size_t>(-exponent), '0');
    digits.insert(1, ".");
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    digits.append(digits.size() <= whole ? whole + 1 - digits.size() : 0, '0');
    digits.insert(whole, ".");
  }
  return negative ? "-" + digits : digits;
}

// Appends \uXXXX, as a surrogate pair above U+FFFF, for the character at `*at`; *at becomes its last byte.
void EscapeCharacter(const String& value, size_t* at, String* out) {
  const char mark = value.marks[*at];
  const auto lead = static_cast<unsigned char>(value.text[*at]);
  const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  uint32_t code = lead & (0x3f >> more);
  for (size_t i = 0; i < more && *at + 1 < value.text.size(); ++i) {
    code = code << 6 | (static_cast<unsigned char>(value.text[++*at]) & 0x3f);
  }
  const auto add = [&](uint32_t unit) {
    constexpr char kHex[] = "0123456789abcdef";
    out->text +=
        {'\\', 'u', kHex[unit >> 12 & 15], kHex[unit >> 8 & 15], kHex[unit >> 4 & 15], kHex[unit & 15]};
    out->marks.append(6, mark);
  };
  if (code > 0xffff) {
    add(0xd7c0 + (code >> 10));
    add(0xdc00 + (code & 0x3ff));
  } else {
    add(code);
  }
}

enum class EscapeStyle { kPython, kJson, kAsciiJson };

// Appends the escape that repr() writes for a character that Python does not print, such as U+00A0.
void EscapeUnprintable(char32_t c, char mark, String* out) {
  const std::string escape = c < 0x100     ? absl::StrFormat("\\x%02x", static_cast<uint32_t>(c))
                             : c < 0x10000 ? absl::StrFormat("\\u%04x", static_cast<uint32_t>(c))
                                           : absl::StrFormat("\\U%08x", static_cast<uint32_t>(c));
  out->text += escape;
  out->marks.append(escape.size(), mark);
}

String Escaped(const String& value, char quote, EscapeStyle style) {
  const bool json = style != EscapeStyle::kPython;
  String out;
  const auto add = [&out](std::string_view text, char mark) {
    out.text += text;
    out.marks.append(text.size(), mark);
  };
  add({&quote, 1}, 0);
  for (size_t i = 0; i < value.text.size(); ++i) {
    const char c = value.text[i];
    const char mark = value.marks[i];
    const auto code = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      const char escaped[2] = {'\\', c};
      add({escaped, 2}, mark);
    } else if (c == '\n') {
      add("\\n", mark);
    } else if (c == '\r') {
      add("\\r", mark);
    } else if (c == '\t') {
      add("\\t", mark);
    } else if (json && c == '\b') {
      add("\\b", mark);
    } else if (json && c == '\f') {
      add("\\f", mark);
    } else if (code < 0x20 || code == 0x7f) {
      constexpr char kHex[] = "0123456789abcdef";
      std::string escaped(json ? "\\u00" : "\\x");
      escaped += {kHex[code >> 4], kHex[code & 15]};
      add(json && code == 0x7f ? std::string_view(&c, 1) : std::string_view(escaped), mark);
    } else if (style == EscapeStyle::kAsciiJson && code >= 0x80) {
      EscapeCharacter(value, &i, &out);
    } else if (const Utf8Char next = DecodeUtf8(std::string_view(value.text).substr(i));
               style == EscapeStyle::kPython && code >= 0x80 && next.state == Utf8State::kWhole &&
               !IsPrintable(next.code_point)) {
      EscapeUnprintable(next.code_point, mark, &out);
      i += next.length - 1u;
    } else {
      add({&c, 1}, mark);
    }
  }
  add({&quote, 1}, 0);
  return out;
}

String ReprAt(const Value& value, int depth);

String ReprList(const List& list, int depth) {
  String out = String::FromTemplate(list.tuple() ? "(" : "[");
  for (size_t i = 0; i < list.size(); ++i) {
    out.Append(String::FromTemplate(i == 0 ? "" : ", "));
    out.Append(ReprAt(list[i], depth + 1));
  }
  out.Append(String::FromTemplate(!list.tuple() ? "]" : list.size() == 1 ? ",)" : ")"));
  return out;
}

String ReprMap(const Map& map, int depth) {
  String out = String::FromTemplate("{");
  for (size_t i = 0; i < map.size(); ++i) {
    out.Append(String::FromTemplate(i == 0 ? "" : ", "));
    out.Append(ReprAt(map[i].first, depth + 1));
    out.Append(String::FromTemplate(": "));
    out.Append(ReprAt(map[i].second, depth + 1));
  }
  out.Append(String::FromTemplate("}"));
  return out;
}

String ReprAt(const Value& value, int depth) {
  if (depth > kMaxPrintDepth) {
    return String::FromTemplate("...");
  }
  if (const String* string = value.string()) {
    const bool doubled =
        string->text.find('\'') != std::string::npos && string->text.find('"') == std::string::npos;
    return Escaped(*string, doubled ? '"' : '\'', EscapeStyle::kPython);
  }
  if (const List* list = value.list()) {
    return ReprList(*list, depth);
  }
  if (const Map* map = value.map()) {
    return ReprMap(*map, depth);
  }
  return value.undefined() ? String::FromTemplate("Undefined") : ToString(value);
}

// JsonWriter: writes values as JSON, with the brackets, separators and line breaks of the format.
class JsonWriter {
 public:
  JsonWriter(const JsonFormat& format, String* out)
      : format_(format),
        style_(format.ensure_ascii ? EscapeStyle::kAsciiJson : EscapeStyle::kJson),
        out_(out) {}

  absl::Status Write(const Value& value, int depth) {
    if (depth > kMaxPrintDepth) {
      return absl::InvalidArgumentError(absl::StrCat("tojson: nested deeper than ", kMaxPrintDepth));
    }
    if (const String* string = value.string()) {
      out_->Append(Escaped(*string, '"', style_));
    } else if (const bool* flag = value.As<bool>()) {
      out_->Append(String::FromTemplate(*flag ? "true" : "false"));
    } else if (value.none()) {
      out_->Append(String::FromTemplate("null"));
    } else if (const double* real = value.As<double>()) {
      out_->Append(String::FromTemplate(JsonNumber(*real)));
    } else if (value.As<Integer>() != nullptr || value.As<LongInteger>() != nullptr) {
      out_->Append(ToString(value));
    } else if (const List* list = value.list(); list != nullptr && list->indexed()) {
      return Items(*list, "[]", depth, [&](const Value& item) { return Write(item, depth + 1); });
    } else if (const Map* map = value.map(); map != nullptr && map->kind == Map::Kind::kDict) {
      return WriteMap(*map, depth);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: cannot write a value of type ", value.TypeName()));
    }
    return absl::OkStatus();
  }

 private:
  static std::string JsonNumber(double real) {
    return std::isnan(real)    ? "NaN"
           : !std::isinf(real) ? FormatDouble(real)
           : real < 0          ? "-Infinity"
                               : "Infinity";
  }

  // json.dumps writes keys that are numbers, bool or None as their JSON text.
  static absl::StatusOr<String> KeyText(const Value& key) {
    if (key.string() != nullptr) {
      return *key.string();
    }
    if (key.list() != nullptr || key.map() != nullptr || key.function() != nullptr || key.undefined()) {
      return absl::InvalidArgumentError(absl::StrCat("tojson: a key of type ", key.TypeName()));
    }
    return ToJson(key, {});
  }

  absl::Status WriteMap(const Map& map, int depth) {
    std::vector<std::pair<String, const Value*>> entries;
    for (const auto& [key, value] : map) {
      absl::StatusOr<String> text = KeyText(key);
      if (!text.ok()) {
        return text.status();
      }
      entries.emplace_back(*std::move(text), &value);
    }
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.first.text < b.first.text; });
    }
    return Items(entries, "{}", depth, [&](const auto& entry) {
      out_->Append(Escaped(entry.first, '"', style_));
      out_->Append(format_.key_separator);
      return Write(*entry.second, depth + 1);
    });
  }

  template <typename Range, typename Item>
  absl::Status Items(const Range& items, const char* brackets, int depth, Item write) {
    out_->Append(String::FromTemplate({brackets, 1}));
    bool first = true;
    for (const auto& item : items) {
      if (!first) {
        out_->Append(format_.item_separator);
      }
      first = false;
      NewLine(depth + 1);
      absl::Status status = write(item);
      if (!status.ok()) {
        return status;
      }
    }
    if (!first) {
      NewLine(depth);
    }
    out_->Append(String::FromTemplate({brackets + 1, 1}));
    return absl::OkStatus();
  }

  void NewLine(int depth) {
    if (format_.indent.has_value()) {
      std::string line(1, '\n');
      for (int i = 0; i < depth; ++i) {
        line += *format_.indent;
      }
      out_->Append(String::FromTemplate(line));
    }
  }

  const JsonFormat& format_;
  const EscapeStyle style_;
  String* const out_;
};

}  // namespace

bool Value::integer(Integer* out) const {
  if (const Integer* value = As<Integer>()) {
    *out = *value;
    return true;
  }
  if (const bool* value = As<bool>()) {
    *out = *value ? 1 : 0;
    return true;
  }
  return false;
}

bool Value::integer(int64_t* out) const {
  Integer whole = 0;
  if (!integer(&whole)) {
    return false;
  }
  *out = static_cast<int64_t>(std::clamp<Integer>(whole, INT64_MIN, INT64_MAX));
  return true;
}

bool Value::number(double* out) const {
  if (const double* value = As<double>()) {
    *out = *value;
    return true;
  }
  if (const LongInteger* value = As<LongInteger>()) {
    *out = std::strtod(value->digits.c_str(), nullptr);
    return true;
  }
  Integer whole = 0;
  if (!integer(&whole)) {
    return false;
  }
  *out = static_cast<double>(whole);
  return true;
}

bool Value::Truthy() const {
  if (undefined() || none()) {
    return false;
  }
  double value = 0;
  if (number(&value)) {
    return value != 0;
  }
  if (const String* text = string()) {
    return !text->text.empty();
  }
  if (const List* items = list()) {
    return !items->empty() || items->kind == List::Kind::kGenerator;
  }
  if (const Map* items = map()) {
    return !items->empty() || items->kind != Map::Kind::kDict;
  }
  return true;
}

const char* Value::TypeName() const {
  constexpr const char* kNames[] = {"undefined", "none",   "boolean", "integer", "integer",
                                    "float",     "string", "list",    "mapping", "function"};
  const bool tuple = list() != nullptr && list()->tuple();
  return tuple ? "tuple" : kNames[data_.index()];
}

const Value* Arguments::Find(size_t index, std::string_view name) const {
  if (index < positional.size()) {
    return &positional[index];
  }
  for (const auto& [key, value] : named) {
    if (key == name) {
      return &value;
    }
  }
  return nullptr;
}

const Value* FindName(const Names& names, std::string_view name) {
  for (const auto& [own, value] : names) {
    if (own == name) {
      return &value;
    }
  }
  return nullptr;
}

void SetName(Names& names, std::string_view name, Value value) {
  for (auto& [own, old] : names) {
    if (own == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

Value* FindKey(Map& map, std::string_view key) {
  for (auto& [own, value] : map) {
    if (own.string() != nullptr && own.string()->text == key) {
      return &value;
    }
  }
  return nullptr;
}

Value* FindItem(Map& map, const Value& key) {
  if (key.string() != nullptr) {
    return FindKey(map, key.string()->text);
  }
  for (auto& [own, value] : map) {
    if (Equal(own, key)) {
      return &value;
    }
  }
  return nullptr;
}

void SetItem(Map& map, Value key, Value value) {
  if (Value* found = FindItem(map, key)) {
    *found = std::move(value);
  } else {
    map.emplace_back(std::move(key), std::move(value));
  }
}

namespace {

// A namespace may contain itself, so comparison stops at kMaxPrintDepth; deeper values count as unequal.
bool EqualAt(const Value& a, const Value& b, int depth) {
  if (depth > kMaxPrintDepth) {
    return false;
  }
  Integer m = 0;
  Integer n = 0;
  if (a.integer(&m) && b.integer(&n)) {
    return m == n;
  }
  double x = 0;
  double y = 0;
  if (a.number(&x) && b.number(&y)) {
    return x == y;
  }
  if (a.data().index() != b.data().index()) {
    return false;
  }
  if (a.string() != nullptr) {
    return a.string()->text == b.string()->text;
  }
  if (a.none() || a.undefined()) {
    return true;
  }
  if (a.list() != nullptr) {
    const List& left = *a.list();
    const List& right = *b.list();
    if (&left == &right) {
      return true;
    }
    if (left.size() != right.size() || left.tuple() != right.tuple() || !left.indexed() || !right.indexed()) {
      return false;
    }
    for (size_t i = 0; i < left.size(); ++i) {
      if (!EqualAt(left[i], right[i], depth + 1)) {
        return false;
      }
    }
    return true;
  }
  if (a.map() != nullptr) {
    if (a.map() == b.map()) {
      return true;
    }
    if (a.map()->size() != b.map()->size() || a.map()->kind != Map::Kind::kDict ||
        b.map()->kind != Map::Kind::kDict) {
      return false;
    }
    for (const auto& [key, value] : *a.map()) {
      const Value* other = FindItem(*b.map(), key);
      if (other == nullptr || !EqualAt(value, *other, depth + 1)) {
        return false;
      }
    }
    return true;
  }
  return a.function() == b.function();
}

}  // namespace

Value IntegerOf(std::string_view digits) {
  const bool negative = !digits.empty() && digits[0] == '-';
  Integer value = 0;
  for (const char c : digits.substr(!digits.empty() && (negative || digits[0] == '+') ? 1 : 0)) {
    Integer next = 0;
    if (__builtin_mul_overflow(value, Integer{10}, &next) ||
        __builtin_add_overflow(next, Integer{c - '0'}, &value)) {
      return Value(LongInteger{std::string(digits)});
    }
  }
  return Value(negative ? -value : value);
}

std::string IntegerText(Integer value) {
  __extension__ using Unsigned = unsigned __int128;
  Unsigned rest = value < 0 ? -static_cast<Unsigned>(value) : static_cast<Unsigned>(value);
  std::string text;
  do {
    text.insert(text.begin(), static_cast<char>('0' + static_cast<int>(rest % 10)));
    rest /= 10;
  } while (rest != 0);
  return value < 0 ? "-" + text : text;
}

bool Equal(const Value& a, const Value& b) { return EqualAt(a, b, 0); }

String ToString(const Value& value) {
  if (const String* string = value.string()) {
    return *string;
  }
  if (const bool* flag = value.As<bool>()) {
    return String::FromTemplate(*flag ? "True" : "False");
  }
  if (const Integer* whole = value.As<Integer>()) {
    return String::FromTemplate(IntegerText(*whole));
  }
  if (const LongInteger* whole = value.As<LongInteger>()) {
    return String::FromTemplate(whole->digits);
  }
  if (const double* real = value.As<double>()) {
    return String::FromTemplate(FormatDouble(*real));
  }
  if (value.none()) {
    return String::FromTemplate("None");
  }
  if (value.undefined()) {
    return {};
  }
  if (value.function() != nullptr) {
    return String::FromTemplate("<function>");
  }
  return ReprAt(value, 0);
}

String Repr(const Value& value) { return ReprAt(value, 0); }

absl::StatusOr<String> ToJson(const Value& value, const JsonFormat& format) {
  String out;
  absl::Status status = JsonWriter(format, &out).Write(value, 0);
  if (!status.ok()) {
    return status;
  }
  return out;
}

}  // namespace sluice::jinja
