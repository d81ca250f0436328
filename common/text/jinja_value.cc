#include "common/text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::jinja {
namespace {

constexpr int kMaxPrintDepth = 64;  // maximum depth of printed lists and maps

std::string FormatDouble(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) {
    text += ".0";
  }
  return text;
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
    } else {
      add({&c, 1}, mark);
    }
  }
  add({&quote, 1}, 0);
  return out;
}

// Implements Python's repr(), which str() uses for the items of lists and maps.
String Repr(const Value& value, int depth);

String ReprContainer(const Value& value, int depth) {
  String out;
  if (const List* list = value.list()) {
    out.Append(String::FromTemplate("["));
    for (size_t i = 0; i < list->size(); ++i) {
      out.Append(String::FromTemplate(i == 0 ? "" : ", "));
      out.Append(Repr((*list)[i], depth + 1));
    }
    out.Append(String::FromTemplate("]"));
    return out;
  }
  out.Append(String::FromTemplate("{"));
  const Map& map = *value.map();
  for (size_t i = 0; i < map.size(); ++i) {
    out.Append(String::FromTemplate(i == 0 ? "" : ", "));
    out.Append(map.integer_keys ? String::FromTemplate(map[i].first)
                                : Escaped(map.KeyText(map[i].first), '\'', EscapeStyle::kPython));
    out.Append(String::FromTemplate(": "));
    out.Append(Repr(map[i].second, depth + 1));
  }
  out.Append(String::FromTemplate("}"));
  return out;
}

String Repr(const Value& value, int depth) {
  if (depth > kMaxPrintDepth) {
    return String::FromTemplate("...");
  }
  if (const String* string = value.string()) {
    const bool doubled =
        string->text.find('\'') != std::string::npos && string->text.find('"') == std::string::npos;
    return Escaped(*string, doubled ? '"' : '\'', EscapeStyle::kPython);
  }
  if (value.list() != nullptr || value.map() != nullptr) {
    return ReprContainer(value, depth);
  }
  return ToString(value);
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
    } else if (value.As<int64_t>() != nullptr || value.As<double>() != nullptr) {
      out_->Append(ToString(value));
    } else if (const List* list = value.list()) {
      return Items(*list, "[]", depth, [&](const Value& item) { return Write(item, depth + 1); });
    } else if (const Map* map = value.map()) {
      return WriteMap(*map, depth);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: cannot write a value of type ", value.TypeName()));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteMap(const Map& map, int depth) {
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : map) {
      entries.push_back(&entry);
    }
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
    }
    return Items(entries, "{}", depth, [&](const auto* entry) {
      out_->Append(Escaped(map.KeyText(entry->first), '"', style_));
      out_->Append(format_.key_separator);
      return Write(entry->second, depth + 1);
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
    if (format_.indent >= 0) {
      std::string line(1, '\n');
      line.append(static_cast<size_t>(format_.indent) * depth, ' ');
      out_->Append(String::FromTemplate(line));
    }
  }

  const JsonFormat& format_;
  const EscapeStyle style_;
  String* const out_;
};

}  // namespace

bool Value::integer(int64_t* out) const {
  if (const int64_t* value = As<int64_t>()) {
    *out = *value;
    return true;
  }
  if (const bool* value = As<bool>()) {
    *out = *value ? 1 : 0;
    return true;
  }
  return false;
}

bool Value::number(double* out) const {
  if (const double* value = As<double>()) {
    *out = *value;
    return true;
  }
  int64_t whole = 0;
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
    return !items->empty();
  }
  if (const Map* items = map()) {
    return !items->empty();
  }
  return true;
}

const char* Value::TypeName() const {
  constexpr const char* kNames[] = {"undefined", "none", "boolean", "integer", "float",
                                    "string",    "list", "mapping", "function"};
  return kNames[data_.index()];
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

Value* FindKey(Map& map, std::string_view key) {
  for (auto& [name, value] : map) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

Value* FindItem(Map& map, const Value& key) {
  int64_t whole = 0;
  if (map.integer_keys) {
    return key.integer(&whole) ? FindKey(map, absl::StrCat(whole)) : nullptr;
  }
  return key.string() != nullptr ? FindKey(map, key.string()->text) : nullptr;
}

void SetKey(Map& map, const std::string& key, Value value) {
  if (Value* found = FindKey(map, key)) {
    *found = std::move(value);
  } else {
    map.emplace_back(key, std::move(value));
  }
}

namespace {

// A namespace may contain itself, so comparison stops at kMaxPrintDepth; deeper values count as unequal.
bool EqualAt(const Value& a, const Value& b, int depth) {
  if (depth > kMaxPrintDepth) {
    return false;
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
    if (left.size() != right.size()) {
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
    if (a.map()->size() != b.map()->size() || a.map()->integer_keys != b.map()->integer_keys) {
      return false;
    }
    for (const auto& [key, value] : *a.map()) {
      const Value* other = FindKey(*b.map(), key);
      if (other == nullptr || !EqualAt(value, *other, depth + 1)) {
        return false;
      }
    }
    return true;
  }
  return a.function() == b.function();
}

}  // namespace

bool Equal(const Value& a, const Value& b) { return EqualAt(a, b, 0); }

String ToString(const Value& value) {
  if (const String* string = value.string()) {
    return *string;
  }
  if (const bool* flag = value.As<bool>()) {
    return String::FromTemplate(*flag ? "True" : "False");
  }
  if (const int64_t* whole = value.As<int64_t>()) {
    return String::FromTemplate(absl::StrCat(*whole));
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
  return ReprContainer(value, 0);
}

absl::StatusOr<String> ToJson(const Value& value, const JsonFormat& format) {
  String out;
  absl::Status status = JsonWriter(format, &out).Write(value, 0);
  if (!status.ok()) {
    return status;
  }
  return out;
}

}  // namespace sluice::jinja
