// Formatting of strings with Python's two mini-languages: `'%s' % value` and `'{}'.format(value)`.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/jinja_builtins.h"
#include "common/text/jinja_strings.h"

namespace sluice::jinja {
namespace {

constexpr int kMaxFieldWidth = 1 << 16;  // characters of one formatted value
constexpr int kMaxPrecision = 1 << 8;    // digits

// A value's format: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
  String fill = String::FromTemplate(" ");
  char align = 0;  // '<', '>', '^', '='
  char sign = '-';
  bool alternate = false;
  char grouping = 0;  // ',' or '_'
  int width = 0;
  int precision = -1;
  char type = 0;
};

absl::Status BadFormat(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("format: ", what));
}

// Reads a decimal number at *at; -1 if there is none.
int ReadNumber(std::string_view text, size_t* at) {
  int value = -1;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    value = std::min(std::max(value, 0) * 10 + (text[(*at)++] - '0'), kMaxFieldWidth);
  }
  return value;
}

absl::StatusOr<Spec> ReadSpec(const String& source) {
  const std::string_view text = source.text;
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  const size_t first = ByteOfCharacter(text, 1);
  if (!text.empty() && is_align(first)) {
    spec.fill = source.Slice(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) {
    spec.sign = text[at++];
  }
  if (at < text.size() && text[at] == '#') {
    spec.alternate = true;
    ++at;
  }
  if (at < text.size() && text[at] == '0') {
    ++at;
    if (spec.align == 0) {
      spec.fill = String::FromTemplate("0");
      spec.align = '=';
    }
  }
  spec.width = std::max(ReadNumber(text, &at), 0);
  if (at < text.size() && (text[at] == ',' || text[at] == '_')) {
    spec.grouping = text[at++];
  }
  if (at < text.size() && text[at] == '.') {
    ++at;
    spec.precision = ReadNumber(text, &at);
    if (spec.precision < 0) {
      return BadFormat("a precision without digits");
    }
  }
  if (at < text.size()) {
    spec.type = text[at++];
  }
  if (at != text.size()) {
    return BadFormat(absl::StrCat("'", source.text, "' is no format"));
  }
  return spec;
}

std::string Digits(Integer value, int base, bool upper) {
  const char* const digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string text;
  __extension__ using Unsigned = unsigned __int128;
  for (Unsigned rest = value < 0 ? -static_cast<Unsigned>(value) : static_cast<Unsigned>(value);
       rest != 0 || text.empty(); rest /= static_cast<Unsigned>(base)) {
    text.insert(text.begin(), digits[static_cast<size_t>(rest % static_cast<Unsigned>(base))]);
  }
  return text;
}

// Formats the magnitude of a float with printf's conversions, which are Python's.
std::string FloatDigits(double value, char type, int precision, bool alternate) {
  if (!std::isfinite(value)) {
    const bool upper = type == 'E' || type == 'F' || type == 'G';
    return std::isnan(value) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf";
  }
  std::string format = alternate ? "%#.*" : "%.*";
  format += type == 'F' ? 'f' : type;
  char buffer[1024];
  const int size =
      std::snprintf(buffer, sizeof(buffer), format.c_str(), std::min(precision, kMaxPrecision), value);
  return std::string(buffer, static_cast<size_t>(std::min(size, static_cast<int>(sizeof(buffer)) - 1)));
}

void Group(char separator, size_t every, std::string* digits) {
  size_t whole = 0;
  while (whole < digits->size() && std::isalnum(static_cast<unsigned char>((*digits)[whole])) != 0 &&
         (*digits)[whole] != 'e') {
    ++whole;
  }
  for (size_t at = whole; at > every; at -= every) {
    digits->insert(at - every, 1, separator);
  }
}

// Sign and digits of a number in a format.
struct Number {
  std::string sign;  // and the prefix of its base
  std::string digits;
};

absl::StatusOr<Number> FormatInteger(Integer value, const Spec& spec) {
  Number out;
  out.sign = value < 0 ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      out.digits = Digits(value, 10, false);
      break;
    case 'b':
    case 'o':
      out.digits = Digits(value, spec.type == 'b' ? 2 : 8, false);
      break;
    case 'x':
    case 'X':
      out.digits = Digits(value, 16, spec.type == 'X');
      break;
    default:
      return BadFormat(absl::StrCat("an integer has no format '", std::string(1, spec.type), "'"));
  }
  if (spec.alternate && (spec.type == 'b' || spec.type == 'o' || spec.type == 'x' || spec.type == 'X')) {
    out.sign += {'0', spec.type};
  }
  if (spec.grouping != 0) {
    Group(spec.grouping, spec.type == 0 || spec.type == 'd' ? 3 : 4, &out.digits);
  }
  return out;
}

absl::StatusOr<Number> FormatFloat(double value, const Spec& spec) {
  Number out;
  const double magnitude = std::fabs(value);
  out.sign = std::signbit(value) ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.type == 0 && spec.precision < 0) {
    out.digits = ToString(Value(magnitude)).text;
  } else if (spec.type == 0 || spec.type == 'n') {
    out.digits = FloatDigits(magnitude, 'g', spec.precision < 0 ? 6 : spec.precision, spec.alternate);
    if (spec.type == 0 && out.digits.find_first_of(".en") == std::string::npos) {
      out.digits += ".0";
    }
  } else if (spec.type == '%') {
    out.digits =
        FloatDigits(magnitude * 100, 'f', spec.precision < 0 ? 6 : spec.precision, spec.alternate) + "%";
  } else if (std::string_view("eEfFgG").find(spec.type) != std::string_view::npos) {
    out.digits = FloatDigits(magnitude, spec.type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  } else {
    return BadFormat(absl::StrCat("a float has no format '", std::string(1, spec.type), "'"));
  }
  if (spec.grouping != 0) {
    Group(spec.grouping, 3, &out.digits);
  }
  return out;
}

// Fills `body` up to the format's width; `sign` stays before the fill of '='.
String Padded(const String& sign, const String& body, const Spec& spec, char align) {
  const int64_t own = CharacterCount(sign.text) + CharacterCount(body.text);
  const int64_t blank = std::max<int64_t>(spec.width - own, 0);
  const int64_t left = align == '<' ? 0 : align == '^' ? blank / 2 : blank;
  String out = align == '=' ? sign : String();
  for (int64_t i = 0; i < left; ++i) {
    out.Append(spec.fill);
  }
  out.Append(align == '=' ? String() : sign);
  out.Append(body);
  for (int64_t i = left; i < blank; ++i) {
    out.Append(spec.fill);
  }
  return out;
}

absl::StatusOr<String> FormatValue(const Value& value, const Spec& spec) {
  Integer whole = 0;
  double real = 0;
  const bool plain_bool = value.As<bool>() != nullptr && (spec.type == 0 || spec.type == 's');
  const bool integer = value.integer(&whole) && !plain_bool;
  if (integer && spec.type == 'c') {
    std::string text;
    if (whole < 0 || whole > 0x10ffff || (whole >= 0xd800 && whole <= 0xdfff)) {
      return BadFormat("no character has this number");
    }
    AppendUtf8(static_cast<char32_t>(whole), &text);
    return Padded({}, String::FromTemplate(text), spec, spec.align == 0 ? '<' : spec.align);
  }
  if (integer || value.As<double>() != nullptr || value.As<LongInteger>() != nullptr) {
    value.number(&real);
    const bool as_float = !integer || std::string_view("eEfFgG%").find(spec.type) < 7;
    ASSIGN_OR_RETURN(const Number number, as_float&& spec.type != 0 ? FormatFloat(real, spec)
                                          : integer                 ? FormatInteger(whole, spec)
                                                                    : FormatFloat(real, spec));
    return Padded(String::FromTemplate(number.sign), String::FromTemplate(number.digits), spec,
                  spec.align == 0 ? '>' : spec.align);
  }
  if ((spec.type != 0 && spec.type != 's') || (spec.align == '=' && value.string() != nullptr)) {
    return BadFormat(absl::StrCat("a value of type ", value.TypeName(), " has no such format"));
  }
  String text = ToString(value);
  if (spec.precision >= 0) {
    text = text.Slice(0, ByteOfCharacter(text.text, spec.precision));
  }
  return Padded({}, text, spec, spec.align == 0 ? '<' : spec.align);
}

// BraceFormat: one call of str.format.
class BraceFormat {
 public:
  BraceFormat(const Arguments& arguments) : arguments_(arguments) {}

  absl::StatusOr<String> Run(const String& format, int depth) {
    String out;
    const std::string& text = format.text;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at];
      if (c != '{' && c != '}') {
        const size_t end = std::min(text.find_first_of("{}", at), text.size());
        out.Append(format.Slice(at, end - at));
        at = end;
      } else if (at + 1 < text.size() && text[at + 1] == c) {
        out.Append(format.Slice(at, 1));
        at += 2;
      } else if (c == '}') {
        return BadFormat("a single '}'");
      } else {
        const size_t end = FieldEnd(text, at);
        if (end == std::string::npos || depth > 1) {
          return BadFormat("a '{' that is not closed");
        }
        ASSIGN_OR_RETURN(const String field, Field(format.Slice(at + 1, end - at - 1), depth));
        out.Append(field);
        at = end + 1;
      }
    }
    return out;
  }

 private:
  static size_t FieldEnd(const std::string& text, size_t at) {
    int depth = 0;
    for (; at < text.size(); ++at) {
      depth += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
      if (depth == 0) {
        return at;
      }
    }
    return std::string::npos;
  }

  // Formats `name!conversion:spec`.
  absl::StatusOr<String> Field(const String& field, int depth) {
    const size_t name_end = std::min(field.text.find_first_of("!:"), field.text.size());
    ASSIGN_OR_RETURN(Value value, Named(field.text.substr(0, name_end)));
    size_t at = name_end;
    if (at < field.text.size() && field.text[at] == '!') {
      const char conversion = at + 1 < field.text.size() ? field.text[at + 1] : 0;
      if (conversion != 'r' && conversion != 's' && conversion != 'a') {
        return BadFormat("an unknown conversion");
      }
      value = Value(conversion == 's' ? ToString(value) : Repr(value));
      at += 2;
    }
    if (at < field.text.size() && field.text[at] != ':') {
      return BadFormat("expected ':' behind a conversion");
    }
    ASSIGN_OR_RETURN(const String source,
                     Run(field.Slice(std::min(at + 1, field.text.size()), std::string::npos), depth + 1));
    ASSIGN_OR_RETURN(const Spec spec, ReadSpec(source));
    return FormatValue(value, spec);
  }

  // Finds the value of `0`, `name`, `name.attribute` or `name[key]`; an empty name is the next position.
  absl::StatusOr<Value> Named(const std::string& path) {
    size_t end = std::min(path.find_first_of(".["), path.size());
    const std::string first = path.substr(0, end);
    size_t at = 0;
    int64_t index = ReadNumber(first, &at);
    if (first.empty()) {
      index = next_++;
    }
    const bool position = first.empty() || at == first.size();
    const Value* found = !position ? FindName(arguments_.named, first)
                         : index < static_cast<int64_t>(arguments_.positional.size())
                             ? &arguments_.positional[static_cast<size_t>(index)]
                             : nullptr;
    if (found == nullptr) {
      return BadFormat(absl::StrCat("there is no argument '", first, "'"));
    }
    Value value = *found;
    while (end < path.size()) {
      const bool bracket = path[end] == '[';
      const size_t begin = end + 1;
      end = bracket ? path.find(']', begin) : std::min(path.find_first_of(".[", begin), path.size());
      if (end == std::string::npos) {
        return BadFormat("a '[' that is not closed");
      }
      const std::string key = path.substr(begin, end - begin);
      size_t digits = 0;
      const int number = bracket ? ReadNumber(key, &digits) : -1;
      ASSIGN_OR_RETURN(
          value, Subscript(value, number >= 0 && digits == key.size() ? Value(number)
                                                                      : Value(String::FromTemplate(key))));
      if (value.undefined()) {
        return BadFormat(absl::StrCat("'", path, "' is undefined"));
      }
      end += bracket ? 1 : 0;
    }
    return value;
  }

  const Arguments& arguments_;
  int next_ = 0;
};

// PercentFormat: one `format % operand`.
class PercentFormat {
 public:
  explicit PercentFormat(const Value& operand) : operand_(operand) {
    if (const List* list = operand.list(); list != nullptr && list->tuple()) {
      tuple_ = list;
    }
  }

  absl::StatusOr<String> Run(const String& format) {
    String out;
    const std::string& text = format.text;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('%', at), text.size());
      out.Append(format.Slice(at, end - at));
      at = end + 1;
      if (end == text.size()) {
        break;
      }
      ASSIGN_OR_RETURN(const String field, Field(text, &at));
      out.Append(field);
    }
    const size_t given = tuple_ != nullptr ? tuple_->size() : 1;
    if (!by_name_ && next_ < given && (tuple_ != nullptr || operand_.map() == nullptr)) {
      return BadFormat("not all values were used");
    }
    return out;
  }

 private:
  absl::StatusOr<Value> NextValue() {
    const size_t given = tuple_ != nullptr ? tuple_->size() : 1;
    if (next_ >= given) {
      return BadFormat("more places than values");
    }
    return tuple_ != nullptr ? (*tuple_)[next_++] : (++next_, operand_);
  }

  absl::StatusOr<String> Field(const std::string& text, size_t* at) {
    std::optional<Value> named;
    if (*at < text.size() && text[*at] == '(') {
      const size_t close = text.find(')', *at);
      if (close == std::string::npos || operand_.map() == nullptr) {
        return BadFormat("a name needs a mapping");
      }
      const std::string name = text.substr(*at + 1, close - *at - 1);
      const Value* found = FindKey(*operand_.map(), name);
      if (found == nullptr) {
        return BadFormat(absl::StrCat("there is no value '", name, "'"));
      }
      named = *found;
      by_name_ = true;
      *at = close + 1;
    }
    Spec spec;
    bool left = false;
    bool zero = false;
    for (; *at < text.size() && std::string_view("-+ #0").find(text[*at]) != std::string_view::npos; ++*at) {
      left = left || text[*at] == '-';
      zero = zero || text[*at] == '0';
      spec.alternate = spec.alternate || text[*at] == '#';
      spec.sign = text[*at] == '+' || (text[*at] == ' ' && spec.sign != '+') ? text[*at] : spec.sign;
    }
    spec.width = std::max(ReadNumber(text, at), 0);
    if (*at < text.size() && text[*at] == '.') {
      ++*at;
      spec.precision = std::max(ReadNumber(text, at), 0);
    }
    if (*at == text.size()) {
      return BadFormat("it ends within a place");
    }
    const char type = text[(*at)++];
    if (type == '%') {
      return String::FromTemplate("%");
    }
    ASSIGN_OR_RETURN(const Value value, named.has_value() ? absl::StatusOr<Value>(*named) : NextValue());
    spec.align = left ? '<' : zero ? '=' : '>';
    spec.fill = String::FromTemplate(zero && !left ? "0" : " ");
    return Converted(value, type, spec);
  }

  static absl::StatusOr<String> Converted(const Value& value, char type, Spec spec) {
    double real = 0;
    if (type == 's' || type == 'r' || type == 'a') {
      spec.align = spec.align == '=' ? '>' : spec.align;
      spec.fill = String::FromTemplate(" ");
      spec.type = 's';
      return FormatValue(Value(type == 's' ? ToString(value) : Repr(value)), spec);
    }
    if (!value.number(&real)) {
      return BadFormat(absl::StrCat("'%", std::string(1, type), "' needs a number, got ", value.TypeName()));
    }
    if (type == 'd' || type == 'i' || type == 'u') {
      spec.type = 'd';
      Integer whole = 0;
      if (!value.integer(&whole)) {
        if (!(std::fabs(real) < 1e38)) {
          return BadFormat("the number has no integer part of 128 bits");
        }
        whole = static_cast<Integer>(real);
      }
      spec.precision = -1;
      return FormatValue(Value(whole), spec);
    }
    spec.type = type;
    return FormatValue(value, spec);
  }

  const Value& operand_;
  const List* tuple_ = nullptr;
  size_t next_ = 0;
  bool by_name_ = false;
};

}  // namespace

absl::StatusOr<String> FormatPercent(const String& format, const Value& operand) {
  return PercentFormat(operand).Run(format);
}

absl::StatusOr<String> FormatBraces(const String& format, const Arguments& arguments) {
  return BraceFormat(arguments).Run(format, 0);
}

}  // namespace sluice::jinja
