#include "common/text/jinja_strings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/jinja_builtins.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;  // characters of a padded text

bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Returns the code point at `at` and its length in bytes; ill-formed bytes count as one character each.
Utf8Char CharacterAt(std::string_view text, size_t at) {
  Utf8Char c = DecodeUtf8(text.substr(at));
  if (c.state != Utf8State::kWhole) {
    c.code_point = 0xfffd;
    c.length = 1;
  }
  return c;
}
size_t CharacterBefore(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && ContinuesCharacter(text[at])) {
    --at;
  }
  return at;
}

template <typename Predicate>
bool AllCharacters(std::string_view text, Predicate holds) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = CharacterAt(text, at);
    if (!holds(c.code_point)) {
      return false;
    }
    at += c.length;
  }
  return !text.empty();
}

void AppendMapped(const String& text, size_t at, const Utf8Char& c, LetterCase letter_case, String* out) {
  const size_t before = out->text.size();
  AppendInCase(c.code_point, letter_case, &out->text);
  out->marks.append(out->text.size() - before, text.marks[at]);
}

// Greek's capital sigma is another small letter at the end of a word.
bool IsFinalSigma(std::string_view text, size_t at) {
  if (at == 0 || !IsCasedLetter(CharacterAt(text, CharacterBefore(text, at)).code_point)) {
    return false;
  }
  const size_t next = at + 2;
  return next >= text.size() || !IsCasedLetter(CharacterAt(text, next).code_point);
}

void AppendLower(const String& text, size_t at, const Utf8Char& c, String* out) {
  if (c.code_point == 0x3a3 && IsFinalSigma(text.text, at)) {
    out->text += "ς";
    out->marks.append(2, text.marks[at]);
  } else {
    AppendMapped(text, at, c, LetterCase::kLower, out);
  }
}

// Implements str.title(): a letter behind a letter is small, every other is in title case.
String TitleMethod(const String& text) {
  String out;
  bool inside = false;
  for (size_t at = 0; at < text.text.size();) {
    const Utf8Char c = CharacterAt(text.text, at);
    if (inside) {
      AppendLower(text, at, c, &out);
    } else {
      AppendMapped(text, at, c, LetterCase::kTitle, &out);
    }
    inside = IsCasedLetter(c.code_point);
    at += c.length;
  }
  return out;
}

String SwapCase(const String& text) {
  String out;
  for (size_t at = 0; at < text.text.size();) {
    const Utf8Char c = CharacterAt(text.text, at);
    std::string upper;
    AppendInCase(c.code_point, LetterCase::kUpper, &upper);
    const bool is_upper = IsCasedLetter(c.code_point) && upper == text.text.substr(at, c.length);
    AppendMapped(text, at, c, is_upper ? LetterCase::kLower : LetterCase::kUpper, &out);
    at += c.length;
  }
  return out;
}

absl::StatusOr<String> TextArgument(const std::string& method, const Arguments& arguments, size_t index,
                                    std::string_view name) {
  const Value* value = arguments.Find(index, name);
  if (value == nullptr || value->string() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": argument ", index + 1, " must be a string"));
  }
  return *value->string();
}

int64_t IntegerArgument(const Arguments& arguments, size_t index, std::string_view name, int64_t otherwise) {
  if (const Value* value = arguments.Find(index, name)) {
    value->integer(&otherwise);
  }
  return otherwise;
}

std::vector<Value> SplitAtBlanks(const String& text, int64_t most) {
  std::vector<Value> parts;
  size_t at = 0;
  const size_t size = text.text.size();
  while (true) {
    while (at < size && IsPythonBlank(CharacterAt(text.text, at).code_point)) {
      at += CharacterAt(text.text, at).length;
    }
    if (at == size) {
      return parts;
    }
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(Value(Strip(text.Slice(at, size), nullptr, /*left=*/false)));
      return parts;
    }
    size_t end = at;
    while (end < size && !IsPythonBlank(CharacterAt(text.text, end).code_point)) {
      end += CharacterAt(text.text, end).length;
    }
    parts.push_back(Value(text.Slice(at, end - at)));
    at = end;
  }
}

std::vector<Value> SplitAtBlanksFromRight(const String& text, int64_t most) {
  std::vector<Value> parts;
  size_t end = text.text.size();
  while (true) {
    const String rest = Strip(text.Slice(0, end), nullptr, /*left=*/false);
    if (Strip(rest, nullptr).text.empty()) {
      break;
    }
    if (most >= 0 && static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(Value(Strip(rest, nullptr, /*left=*/true, /*right=*/false)));
      break;
    }
    size_t begin = rest.text.size();
    while (begin > 0) {
      const size_t before = CharacterBefore(rest.text, begin);
      if (IsPythonBlank(CharacterAt(rest.text, before).code_point)) {
        break;
      }
      begin = before;
    }
    parts.push_back(Value(rest.Slice(begin, rest.text.size())));
    end = begin;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// Splits at a separator, which is not empty; `most` cuts at most, all if it is negative.
std::vector<Value> SplitAt(const String& text, const std::string& separator, int64_t most, bool from_right) {
  std::vector<size_t> cuts;
  const size_t width = separator.size();
  const auto full = [&] { return most >= 0 && static_cast<int64_t>(cuts.size()) >= most; };
  if (!from_right) {
    for (size_t at = text.text.find(separator); at != std::string::npos && !full();
         at = text.text.find(separator, at + width)) {
      cuts.push_back(at);
    }
  } else {
    size_t limit = text.text.size();
    while (limit >= width && !full()) {
      const size_t at = text.text.rfind(separator, limit - width);
      if (at == std::string::npos) {
        break;
      }
      cuts.push_back(at);
      limit = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  }
  std::vector<Value> parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(Value(text.Slice(begin, cut - begin)));
    begin = cut + width;
  }
  parts.push_back(Value(text.Slice(begin, std::string::npos)));
  return parts;
}

absl::StatusOr<Value> SplitMethod(const String& text, const std::string& method, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "sep");
  const String* separator = given == nullptr ? nullptr : given->string();
  const int64_t most = IntegerArgument(arguments, 1, "maxsplit", -1);
  const bool from_right = method == "rsplit";
  if (given != nullptr && separator == nullptr && !given->none()) {
    return absl::InvalidArgumentError(
        absl::StrCat(method, ": the separator is of type ", given->TypeName(), ", must be a string"));
  }
  if (separator == nullptr) {
    return Value(List::Of(List::Kind::kList,
                          from_right ? SplitAtBlanksFromRight(text, most) : SplitAtBlanks(text, most)));
  }
  if (separator->text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": an empty separator"));
  }
  return Value(List::Of(List::Kind::kList, SplitAt(text, separator->text, most, from_right)));
}

// Implements partition and rpartition: the text before the separator, the separator, the text behind it.
absl::StatusOr<Value> Partition(const String& text, const std::string& method, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const String separator, TextArgument(method, arguments, 0, "sep"));
  if (separator.text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(method, ": an empty separator"));
  }
  const bool last = method == "rpartition";
  const size_t at = last ? text.text.rfind(separator.text) : text.text.find(separator.text);
  if (at == std::string::npos) {
    const Value empty("");
    return Value(last ? List::Tuple({empty, empty, Value(text)}) : List::Tuple({Value(text), empty, empty}));
  }
  return Value(List::Tuple({Value(text.Slice(0, at)), Value(text.Slice(at, separator.text.size())),
                            Value(text.Slice(at + separator.text.size(), std::string::npos))}));
}

Value SplitLines(const String& text, bool keep_ends) {
  List lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.text.size();) {
    const Utf8Char c = CharacterAt(text.text, at);
    const char32_t code = c.code_point;
    const size_t cut = at;
    at += c.length;
    if ((code < 0x0a || code > 0x0d) && (code < 0x1c || code > 0x1e) && code != 0x85 && code != 0x2028 &&
        code != 0x2029) {
      continue;
    }
    if (code == '\r' && at < text.text.size() && text.text[at] == '\n') {
      ++at;
    }
    lines.push_back(Value(text.Slice(begin, (keep_ends ? at : cut) - begin)));
    begin = at;
  }
  if (begin < text.text.size()) {
    lines.push_back(Value(text.Slice(begin, std::string::npos)));
  }
  return Value(std::move(lines));
}

String Replace(const String& text, const String& from, const String& to, int64_t most) {
  String out;
  size_t begin = 0;
  if (from.text.empty()) {  // before every character, and at the end
    for (size_t at = 0; most != 0 && at <= text.text.size(); --most) {
      out.Append(to);
      const size_t length = at < text.text.size() ? CharacterAt(text.text, at).length : 1;
      out.Append(text.Slice(std::min(at, text.text.size()), length));
      begin = at += length;
    }
    begin = std::min(begin, text.text.size());
  } else {
    for (size_t at = text.text.find(from.text); at != std::string::npos && most != 0; --most) {
      out.Append(text.Slice(begin, at - begin));
      out.Append(to);
      begin = at + from.text.size();
      at = text.text.find(from.text, begin);
    }
  }
  out.Append(text.Slice(begin, std::string::npos));
  return out;
}

// Part of a text that the optional arguments `start` and `end` of a method choose, as bytes.
struct Part {
  size_t begin = 0;
  size_t end = 0;
  bool valid = true;  // false: it begins behind the text's end, where even "" is not found
};
Part PartOf(std::string_view text, const Arguments& arguments) {
  const int64_t length = CharacterCount(text);
  const auto place = [length](int64_t at) { return std::max<int64_t>(at < 0 ? at + length : at, 0); };
  const int64_t begin = place(IntegerArgument(arguments, 1, "start", 0));
  const int64_t end = std::min(place(IntegerArgument(arguments, 2, "end", length)), length);
  Part part;
  part.valid = begin <= end;
  part.begin = ByteOfCharacter(text, std::min(begin, length));
  part.end = std::max(part.begin, ByteOfCharacter(text, end));
  return part;
}

// Implements startswith and endswith: they accept one string or a tuple of alternatives.
absl::StatusOr<Value> HasEnd(const String& text, const std::string& method, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "prefix");
  std::vector<Value> options;
  if (given != nullptr && given->list() != nullptr && given->list()->tuple()) {
    options = *given->list();
  } else if (given != nullptr) {
    options.push_back(*given);
  } else {
    return absl::InvalidArgumentError(absl::StrCat(method, ": needs a string"));
  }
  const Part part = PartOf(text.text, arguments);
  const std::string_view own = std::string_view(text.text).substr(part.begin, part.end - part.begin);
  bool found = false;
  for (const Value& option : options) {
    if (option.string() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(method, ": expected a string, got ", option.TypeName()));
    }
    const std::string& end = option.string()->text;
    const bool has = method == "startswith"
                         ? own.substr(0, end.size()) == end
                         : own.size() >= end.size() && own.substr(own.size() - end.size()) == end;
    found = found || (part.valid && has);
  }
  return Value(found);
}

absl::StatusOr<Value> RemoveEnd(const String& text, const std::string& method, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const String end, TextArgument(method, arguments, 0, "prefix"));
  const bool front = method == "removeprefix";
  ASSIGN_OR_RETURN(const Value has, HasEnd(text, front ? "startswith" : "endswith", arguments));
  const size_t cut = has.Truthy() ? end.text.size() : 0;
  return Value(front ? text.Slice(cut, std::string::npos) : text.Slice(0, text.text.size() - cut));
}

// Implements find, rfind, index, rindex and count.
absl::StatusOr<Value> Search(const String& text, const std::string& method, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const String sought, TextArgument(method, arguments, 0, "sub"));
  const Part part = PartOf(text.text, arguments);
  const std::string_view own = std::string_view(text.text).substr(part.begin, part.end - part.begin);
  if (method == "count") {
    int64_t count = part.valid && sought.text.empty() ? CharacterCount(own) + 1 : 0;
    for (size_t at = sought.text.empty() ? std::string::npos : own.find(sought.text); at != std::string::npos;
         at = own.find(sought.text, at + sought.text.size())) {
      ++count;
    }
    return Value(count);
  }
  size_t at = method[0] == 'r' ? own.rfind(sought.text) : own.find(sought.text);
  at = part.valid ? at : std::string::npos;
  if (at != std::string::npos) {
    return Value(CharacterCount(std::string_view(text.text).substr(0, part.begin + at)));
  }
  return method == "find" || method == "rfind"
             ? absl::StatusOr<Value>(Value(-1))
             : absl::InvalidArgumentError(absl::StrCat(method, ": the text is not there"));
}

absl::StatusOr<Value> JoinMethod(const String& text, const Arguments& arguments) {
  if (arguments.positional.size() != 1) {
    return absl::InvalidArgumentError("join: takes one list");
  }
  ASSIGN_OR_RETURN(const List items, Items(arguments.positional[0]));
  String out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].string() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("join: item ", i, " is of type ", items[i].TypeName(), ", must be a string"));
    }
    if (i > 0) {
      out.Append(text);
    }
    out.Append(*items[i].string());
  }
  return Value(std::move(out));
}

// Implements ljust, rjust, center and zfill.
absl::StatusOr<Value> Pad(const String& text, const std::string& method, const Arguments& arguments) {
  const int64_t width = std::min(IntegerArgument(arguments, 0, "width", 0), kMaxWidth);
  String fill = String::FromTemplate(method == "zfill" ? "0" : " ");
  if (const Value* given = arguments.Find(1, "fillchar")) {
    if (given->string() == nullptr || CharacterCount(given->string()->text) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(method, ": fills with one character"));
    }
    fill = *given->string();
  }
  if (method == "center") {
    return Value(Center(text, width, fill));
  }
  String padding;
  for (int64_t i = CharacterCount(text.text); i < width; ++i) {
    padding.Append(fill);
  }
  const bool sign = method == "zfill" && !text.text.empty() && (text.text[0] == '-' || text.text[0] == '+');
  String out = method == "ljust" ? text : text.Slice(0, sign ? 1 : 0);
  out.Append(padding);
  out.Append(method == "ljust" ? String() : text.Slice(sign ? 1 : 0, std::string::npos));
  return Value(std::move(out));
}

// Implements the methods `is..`.
absl::StatusOr<Value> Classify(const String& text, const std::string& method) {
  const auto letter_or_digit = [](char32_t c) { return IsLetter(c) || IsDigit(c) || IsNumeric(c); };
  if (method == "isdigit") {
    return Value(AllCharacters(text.text, IsDigit));
  }
  if (method == "isnumeric" || method == "isdecimal") {
    return Value(AllCharacters(text.text, IsNumeric));
  }
  if (method == "isalpha") {
    return Value(AllCharacters(text.text, IsLetter));
  }
  if (method == "isalnum") {
    return Value(AllCharacters(text.text, letter_or_digit));
  }
  if (method == "isspace") {
    return Value(AllCharacters(text.text, IsPythonBlank));
  }
  if (method == "isascii") {
    return Value(std::all_of(text.text.begin(), text.text.end(), [](char c) { return (c & 0x80) == 0; }));
  }
  const bool cased =
      !text.text.empty() && !AllCharacters(text.text, [](char32_t c) { return !IsCasedLetter(c); });
  if (method == "isupper") {
    return Value(cased && ChangeCase(text, LetterCase::kUpper).text == text.text);
  }
  if (method == "islower") {
    return Value(cased && ChangeCase(text, LetterCase::kLower).text == text.text);
  }
  if (method == "istitle") {
    return Value(cased && TitleMethod(text).text == text.text);
  }
  return absl::UnimplementedError(absl::StrCat("the method '", method, "' of a string is not supported"));
}

}  // namespace

int64_t CharacterCount(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !ContinuesCharacter(c); });
}

size_t ByteOfCharacter(std::string_view text, int64_t index) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (!ContinuesCharacter(text[at]) && index-- == 0) {
      return at;
    }
  }
  return text.size();
}

String Strip(const String& text, const String* characters, bool left, bool right) {
  const auto dropped = [&](size_t at, size_t length) {
    return characters == nullptr ? IsPythonBlank(CharacterAt(text.text, at).code_point)
                                 : characters->text.find(text.text.substr(at, length)) != std::string::npos;
  };
  size_t begin = 0;
  size_t end = text.text.size();
  while (left && begin < end && dropped(begin, CharacterAt(text.text, begin).length)) {
    begin += CharacterAt(text.text, begin).length;
  }
  while (right && end > begin) {
    const size_t at = CharacterBefore(text.text, end);
    if (!dropped(at, end - at)) {
      break;
    }
    end = at;
  }
  return text.Slice(begin, end - begin);
}

String ChangeCase(const String& text, LetterCase letter_case) {
  String out;
  for (size_t at = 0; at < text.text.size();) {
    const Utf8Char c = CharacterAt(text.text, at);
    if (letter_case == LetterCase::kLower) {
      AppendLower(text, at, c, &out);
    } else {
      AppendMapped(text, at, c, letter_case, &out);
    }
    at += c.length;
  }
  return out;
}

String Capitalize(const String& text) {
  if (text.text.empty()) {
    return text;
  }
  const size_t first = CharacterAt(text.text, 0).length;
  String out = ChangeCase(text.Slice(0, first), LetterCase::kTitle);
  const String lower = ChangeCase(text, LetterCase::kLower);  // whole, for the end of a word
  out.Append(lower.Slice(
      ByteOfCharacter(lower.text, CharacterCount(ChangeCase(text.Slice(0, first), LetterCase::kLower).text)),
      std::string::npos));
  return out;
}

String Center(const String& text, int64_t width, const String& fill) {
  const int64_t blank = std::max<int64_t>(std::min(width, kMaxWidth) - CharacterCount(text.text), 0);
  const int64_t left = blank / 2 + (blank & width & 1);
  String out;
  for (int64_t i = 0; i < blank; ++i) {
    if (i == left) {
      out.Append(text);
    }
    out.Append(fill);
  }
  if (left == blank) {
    out.Append(text);
  }
  return out;
}

absl::StatusOr<Value> CallString(const String& text, const std::string& method, const Arguments& arguments) {
  if (method == "strip" || method == "lstrip" || method == "rstrip") {
    const Value* given = arguments.Find(0, "chars");
    if (given != nullptr && !given->none() && given->string() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(method, ": expected a string, got ", given->TypeName()));
    }
    return Value(
        Strip(text, given == nullptr ? nullptr : given->string(), method != "rstrip", method != "lstrip"));
  }
  if (method == "upper" || method == "lower" || method == "casefold") {
    return Value(ChangeCase(text, method == "upper" ? LetterCase::kUpper : LetterCase::kLower));
  }
  if (method == "title") {
    return Value(TitleMethod(text));
  }
  if (method == "capitalize") {
    return Value(Capitalize(text));
  }
  if (method == "swapcase") {
    return Value(SwapCase(text));
  }
  if (method == "split" || method == "rsplit") {
    return SplitMethod(text, method, arguments);
  }
  if (method == "partition" || method == "rpartition") {
    return Partition(text, method, arguments);
  }
  if (method == "splitlines") {
    const Value* keep = arguments.Find(0, "keepends");
    return SplitLines(text, keep != nullptr && keep->Truthy());
  }
  if (method == "startswith" || method == "endswith") {
    return HasEnd(text, method, arguments);
  }
  if (method == "removeprefix" || method == "removesuffix") {
    return RemoveEnd(text, method, arguments);
  }
  if (method == "replace") {
    ASSIGN_OR_RETURN(const String from, TextArgument(method, arguments, 0, "old"));
    ASSIGN_OR_RETURN(const String to, TextArgument(method, arguments, 1, "new"));
    return Value(Replace(text, from, to, IntegerArgument(arguments, 2, "count", -1)));
  }
  if (method == "find" || method == "rfind" || method == "index" || method == "rindex" || method == "count") {
    return Search(text, method, arguments);
  }
  if (method == "join") {
    return JoinMethod(text, arguments);
  }
  if (method == "ljust" || method == "rjust" || method == "center" || method == "zfill") {
    return Pad(text, method, arguments);
  }
  if (method == "format") {
    ASSIGN_OR_RETURN(String formatted, FormatBraces(text, arguments));
    return Value(std::move(formatted));
  }
  return Classify(text, method);
}

}  // namespace sluice::jinja
