// Methods of strings, lists and maps (builtins.h), with Python's meaning.
#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/text/jinja/builtins.h"

namespace sluice::jinja {
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

}  // namespace sluice::jinja
