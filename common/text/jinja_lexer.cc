#include <algorithm>
#include <array>
#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/text/jinja_parser.h"

namespace sluice::jinja {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
// Names may have letters of every script.
bool IsNameStart(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || (c & 0x80) != 0;
}
bool IsNameChar(char c) { return IsNameStart(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Characters that a template may spell by name in a string, as \N{BULLET}: those of the block General
// Punctuation and the symbols that templates use.
struct NamedCharacter {
  std::string_view name;
  char32_t code_point;
};
constexpr NamedCharacter kNamedCharacters[] = {
    {"EN QUAD", 0x2000},
    {"EM QUAD", 0x2001},
    {"EN SPACE", 0x2002},
    {"EM SPACE", 0x2003},
    {"THREE-PER-EM SPACE", 0x2004},
    {"FOUR-PER-EM SPACE", 0x2005},
    {"SIX-PER-EM SPACE", 0x2006},
    {"FIGURE SPACE", 0x2007},
    {"PUNCTUATION SPACE", 0x2008},
    {"THIN SPACE", 0x2009},
    {"HAIR SPACE", 0x200a},
    {"ZERO WIDTH SPACE", 0x200b},
    {"ZERO WIDTH NON-JOINER", 0x200c},
    {"ZERO WIDTH JOINER", 0x200d},
    {"LEFT-TO-RIGHT MARK", 0x200e},
    {"RIGHT-TO-LEFT MARK", 0x200f},
    {"HYPHEN", 0x2010},
    {"NON-BREAKING HYPHEN", 0x2011},
    {"FIGURE DASH", 0x2012},
    {"EN DASH", 0x2013},
    {"EM DASH", 0x2014},
    {"HORIZONTAL BAR", 0x2015},
    {"DOUBLE VERTICAL LINE", 0x2016},
    {"DOUBLE LOW LINE", 0x2017},
    {"LEFT SINGLE QUOTATION MARK", 0x2018},
    {"RIGHT SINGLE QUOTATION MARK", 0x2019},
    {"SINGLE LOW-9 QUOTATION MARK", 0x201a},
    {"SINGLE HIGH-REVERSED-9 QUOTATION MARK", 0x201b},
    {"LEFT DOUBLE QUOTATION MARK", 0x201c},
    {"RIGHT DOUBLE QUOTATION MARK", 0x201d},
    {"DOUBLE LOW-9 QUOTATION MARK", 0x201e},
    {"DOUBLE HIGH-REVERSED-9 QUOTATION MARK", 0x201f},
    {"DAGGER", 0x2020},
    {"DOUBLE DAGGER", 0x2021},
    {"BULLET", 0x2022},
    {"TRIANGULAR BULLET", 0x2023},
    {"ONE DOT LEADER", 0x2024},
    {"TWO DOT LEADER", 0x2025},
    {"HORIZONTAL ELLIPSIS", 0x2026},
    {"HYPHENATION POINT", 0x2027},
    {"LINE SEPARATOR", 0x2028},
    {"PARAGRAPH SEPARATOR", 0x2029},
    {"LEFT-TO-RIGHT EMBEDDING", 0x202a},
    {"RIGHT-TO-LEFT EMBEDDING", 0x202b},
    {"POP DIRECTIONAL FORMATTING", 0x202c},
    {"LEFT-TO-RIGHT OVERRIDE", 0x202d},
    {"RIGHT-TO-LEFT OVERRIDE", 0x202e},
    {"NARROW NO-BREAK SPACE", 0x202f},
    {"PER MILLE SIGN", 0x2030},
    {"PER TEN THOUSAND SIGN", 0x2031},
    {"PRIME", 0x2032},
    {"DOUBLE PRIME", 0x2033},
    {"TRIPLE PRIME", 0x2034},
    {"REVERSED PRIME", 0x2035},
    {"REVERSED DOUBLE PRIME", 0x2036},
    {"REVERSED TRIPLE PRIME", 0x2037},
    {"CARET", 0x2038},
    {"SINGLE LEFT-POINTING ANGLE QUOTATION MARK", 0x2039},
    {"SINGLE RIGHT-POINTING ANGLE QUOTATION MARK", 0x203a},
    {"REFERENCE MARK", 0x203b},
    {"DOUBLE EXCLAMATION MARK", 0x203c},
    {"INTERROBANG", 0x203d},
    {"OVERLINE", 0x203e},
    {"UNDERTIE", 0x203f},
    {"CHARACTER TIE", 0x2040},
    {"CARET INSERTION POINT", 0x2041},
    {"ASTERISM", 0x2042},
    {"HYPHEN BULLET", 0x2043},
    {"FRACTION SLASH", 0x2044},
    {"LEFT SQUARE BRACKET WITH QUILL", 0x2045},
    {"RIGHT SQUARE BRACKET WITH QUILL", 0x2046},
    {"DOUBLE QUESTION MARK", 0x2047},
    {"QUESTION EXCLAMATION MARK", 0x2048},
    {"EXCLAMATION QUESTION MARK", 0x2049},
    {"TIRONIAN SIGN ET", 0x204a},
    {"REVERSED PILCROW SIGN", 0x204b},
    {"BLACK LEFTWARDS BULLET", 0x204c},
    {"BLACK RIGHTWARDS BULLET", 0x204d},
    {"LOW ASTERISK", 0x204e},
    {"REVERSED SEMICOLON", 0x204f},
    {"CLOSE UP", 0x2050},
    {"TWO ASTERISKS ALIGNED VERTICALLY", 0x2051},
    {"COMMERCIAL MINUS SIGN", 0x2052},
    {"SWUNG DASH", 0x2053},
    {"INVERTED UNDERTIE", 0x2054},
    {"FLOWER PUNCTUATION MARK", 0x2055},
    {"THREE DOT PUNCTUATION", 0x2056},
    {"QUADRUPLE PRIME", 0x2057},
    {"FOUR DOT PUNCTUATION", 0x2058},
    {"FIVE DOT PUNCTUATION", 0x2059},
    {"TWO DOT PUNCTUATION", 0x205a},
    {"FOUR DOT MARK", 0x205b},
    {"DOTTED CROSS", 0x205c},
    {"TRICOLON", 0x205d},
    {"VERTICAL FOUR DOTS", 0x205e},
    {"MEDIUM MATHEMATICAL SPACE", 0x205f},
    {"WORD JOINER", 0x2060},
    {"FUNCTION APPLICATION", 0x2061},
    {"INVISIBLE TIMES", 0x2062},
    {"INVISIBLE SEPARATOR", 0x2063},
    {"INVISIBLE PLUS", 0x2064},
    {"LEFT-TO-RIGHT ISOLATE", 0x2066},
    {"RIGHT-TO-LEFT ISOLATE", 0x2067},
    {"FIRST STRONG ISOLATE", 0x2068},
    {"POP DIRECTIONAL ISOLATE", 0x2069},
    {"INHIBIT SYMMETRIC SWAPPING", 0x206a},
    {"ACTIVATE SYMMETRIC SWAPPING", 0x206b},
    {"INHIBIT ARABIC FORM SHAPING", 0x206c},
    {"ACTIVATE ARABIC FORM SHAPING", 0x206d},
    {"NATIONAL DIGIT SHAPES", 0x206e},
    {"NOMINAL DIGIT SHAPES", 0x206f},
    {"NO-BREAK SPACE", 0xa0},
    {"SOFT HYPHEN", 0xad},
    {"LEFT-POINTING DOUBLE ANGLE QUOTATION MARK", 0xab},
    {"RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK", 0xbb},
    {"MIDDLE DOT", 0xb7},
    {"DEGREE SIGN", 0xb0},
    {"MULTIPLICATION SIGN", 0xd7},
    {"LEFTWARDS ARROW", 0x2190},
    {"RIGHTWARDS ARROW", 0x2192},
    {"CHECK MARK", 0x2713},
    {"BALLOT X", 0x2717},
    {"BLACK CIRCLE", 0x25cf},
    {"ZERO WIDTH NO-BREAK SPACE", 0xfeff},
    {"IDEOGRAPHIC SPACE", 0x3000},
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (position_ < source_.size()) {
      absl::Status status = NextSegment();
      if (!status.ok()) {
        return status;
      }
    }
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("template line ", line_, ": ", what));
  }

  void Add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + position_, source_.begin() + to, '\n'));
    position_ = to;
  }

  // Reads text up to the next tag, and then the tag.
  absl::Status NextSegment() {
    size_t open = position_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string_view::npos || open + 1 >= source_.size()) {
        open = source_.size();
        break;
      }
      const char next = source_[open + 1];
      if (next == '{' || next == '%' || next == '#') {
        break;
      }
      ++open;
    }
    const char type = open < source_.size() ? source_[open + 1] : 0;
    const char control = open + 2 < source_.size() ? source_[open + 2] : 0;
    EmitText(open, type, control);
    if (type == 0) {
      return absl::OkStatus();
    }
    const size_t body = open + 2 + (control == '-' || control == '+' ? 1 : 0);
    if (type == '#') {
      return SkipComment(body);
    }
    return Tag(body, type);
  }

  void EmitText(size_t end, char type, char control) {
    std::string text(source_.substr(position_, end - position_));
    if (trim_left_) {
      text.erase(0, std::find_if_not(text.begin(), text.end(), IsSpace) - text.begin());
    } else if (trim_newline_ && !text.empty() && text[0] == '\n') {
      text.erase(0, 1);
    }
    trim_left_ = trim_newline_ = false;
    if (control == '-' && type != 0) {
      while (!text.empty() && IsSpace(text.back())) {
        text.pop_back();
      }
    } else if ((type == '%' || type == '#') && control != '+') {
      StripIndent(end, &text);
    }
    if (!text.empty()) {
      Add(Token::Kind::kText, std::move(text));
    }
    Advance(end);
  }

  // Implements lstrip_blocks, which transformers sets: blanks between the start of a line and a block tag are
  // dropped.
  void StripIndent(size_t end, std::string* text) const {
    size_t start = end;
    while (start > 0 && (source_[start - 1] == ' ' || source_[start - 1] == '\t')) {
      --start;
    }
    if (start == 0 || source_[start - 1] == '\n') {
      text->resize(text->size() - std::min(text->size(), end - start));
    }
  }

  // Records what to drop after a tag: all white space if it ends with '-', else one newline after a block tag
  // (trim_blocks), unless it ends with '+'.
  void AfterTag(char control, bool block) {
    trim_left_ = control == '-';
    trim_newline_ = block && control != '+';
  }

  absl::Status SkipComment(size_t body) {
    const size_t close = source_.find("#}", body);
    if (close == std::string_view::npos) {
      return Error("a comment is not closed");
    }
    Advance(close + 2);
    AfterTag(close > body ? source_[close - 1] : 0, /*block=*/true);
    return absl::OkStatus();
  }

  absl::Status Tag(size_t body, char type) {
    const bool block = type == '%';
    Add(block ? Token::Kind::kStatementBegin : Token::Kind::kOutputBegin, "");
    const size_t first = tokens_.size();
    Advance(body);
    const std::string_view close = block ? "%}" : "}}";
    int depth = 0;
    while (true) {
      while (position_ < source_.size() && IsSpace(source_[position_])) {
        Advance(position_ + 1);
      }
      if (position_ >= source_.size()) {
        return Error(absl::StrCat("a tag is not closed by ", std::string(close)));
      }
      const char c = source_[position_];
      const bool control = (c == '-' || c == '+') && source_.substr(position_ + 1, 2) == close;
      if (control || (depth == 0 && source_.substr(position_, 2) == close)) {
        Advance(position_ + (control ? 3 : 2));
        AfterTag(control ? c : 0, block);
        Add(block ? Token::Kind::kStatementEnd : Token::Kind::kOutputEnd, "");
        break;
      }
      absl::Status status = NextToken(&depth);
      if (!status.ok()) {
        return status;
      }
    }
    if (block && tokens_.size() == first + 2 && tokens_[first].text == "raw") {
      return RawText(first - 1);
    }
    return absl::OkStatus();
  }

  // Replaces the tokens of {% raw %} by the text up to {% endraw %}, in which nothing is a tag.
  absl::Status RawText(size_t tag) {
    tokens_.resize(tag);
    for (size_t open = source_.find("{%", position_); open != std::string_view::npos;
         open = source_.find("{%", open + 2)) {
      size_t at = open + 2;
      const char control = at < source_.size() ? source_[at] : 0;
      at += control == '-' || control == '+' ? 1 : 0;
      while (at < source_.size() && IsSpace(source_[at])) {
        ++at;
      }
      if (source_.substr(at, 6) != "endraw") {
        continue;
      }
      const size_t close = source_.find("%}", at);
      if (close == std::string_view::npos) {
        break;
      }
      EmitText(open, '%', control);
      Advance(close + 2);
      AfterTag(source_[close - 1], /*block=*/true);
      return absl::OkStatus();
    }
    return Error("raw is not closed by endraw");
  }

  absl::Status NextToken(int* depth) {
    const char c = source_[position_];
    if (IsNameStart(c)) {
      size_t end = position_;
      while (end < source_.size() && IsNameChar(source_[end])) {
        ++end;
      }
      Add(Token::Kind::kName, std::string(source_.substr(position_, end - position_)));
      Advance(end);
      return absl::OkStatus();
    }
    if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      return Number();
    }
    if (c == '"' || c == '\'') {
      return Quoted(c);
    }
    constexpr std::array<std::string_view, 8> kLong = {"==", "!=", "<=", ">=", "//", "**", "->", ":="};
    for (const std::string_view op : kLong) {
      if (source_.substr(position_, 2) == op) {
        Add(Token::Kind::kOperator, std::string(op));
        Advance(position_ + 2);
        return absl::OkStatus();
      }
    }
    if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos) {
      return Error(absl::StrCat("unexpected character '", std::string(1, c), "'"));
    }
    // Brace depth distinguishes a map's closing brace from the first of the tag's two.
    *depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    Add(Token::Kind::kOperator, std::string(1, c));
    Advance(position_ + 1);
    return absl::OkStatus();
  }

  // Reads an integer of base 2, 8, 10 or 16, or a float; digits may be parted by `_`.
  absl::Status Number() {
    const char prefix = position_ + 1 < source_.size() ? static_cast<char>(source_[position_ + 1] | 32) : 0;
    if (source_[position_] == '0' && (prefix == 'x' || prefix == 'o' || prefix == 'b')) {
      return BasedNumber(prefix == 'x' ? 16 : prefix == 'o' ? 8 : 2);
    }
    size_t end = position_;
    const auto digit_at = [this](size_t at) {
      return at < source_.size() && std::isdigit(static_cast<unsigned char>(source_[at])) != 0;
    };
    const auto digits = [&] {
      while (digit_at(end) || (end < source_.size() && source_[end] == '_')) {
        ++end;
      }
    };
    digits();
    bool real = false;
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] | 32) == 'e') {
      const bool sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      if (digit_at(end + (sign ? 2 : 1))) {
        real = true;
        end += sign ? 2 : 1;
        digits();
      }
    }
    std::string text(source_.substr(position_, end - position_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(real ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(text));
    Advance(end);
    return absl::OkStatus();
  }

  absl::Status BasedNumber(int base) {
    size_t end = position_ + 2;
    Integer value = 0;
    for (; end < source_.size() &&
           (source_[end] == '_' || std::isxdigit(static_cast<unsigned char>(source_[end])) != 0);
         ++end) {
      const char c = source_[end];
      if (c == '_') {
        continue;
      }
      const int digit = c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
      if (digit >= base || __builtin_mul_overflow(value, Integer{base}, &value) ||
          __builtin_add_overflow(value, Integer{digit}, &value)) {
        return Error(
            absl::StrCat("a number of base ", base, " with an unfit digit, or of more than 128 bits"));
      }
    }
    if (end == position_ + 2) {
      return Error(absl::StrCat("a number of base ", base, " without digits"));
    }
    Add(Token::Kind::kInteger, IntegerText(value));
    Advance(end);
    return absl::OkStatus();
  }

  // Appends as UTF-8 the character with the hexadecimal code after source_[*at]. False if there are too few
  // digits, or no such character.
  bool CodePoint(size_t digits, size_t* at, std::string* text) const {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = ++*at < source_.size() ? source_[*at] : 0;
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) {
        return false;
      }
      code = code * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return AppendCode(code, text);
  }

  static bool AppendCode(uint32_t code, std::string* text) {
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      return false;
    }
    AppendUtf8(code, text);
    return true;
  }

  // Appends the character of up to three octal digits, the first at source_[*at].
  void Octal(size_t* at, std::string* text) const {
    uint32_t code = 0;
    size_t end = *at;
    for (; end < source_.size() && end < *at + 3 && source_[end] >= '0' && source_[end] <= '7'; ++end) {
      code = code * 8 + static_cast<uint32_t>(source_[end] - '0');
    }
    *at = end - 1;
    AppendUtf8(code, text);
  }

  // Reads {NAME} behind source_[*at].
  absl::Status NamedEscape(size_t* at, std::string* text) const {
    const size_t close = source_.find('}', *at);
    if (*at + 1 >= source_.size() || source_[*at + 1] != '{' || close == std::string_view::npos) {
      return Error("a \\N escape without its name");
    }
    const std::string name(source_.substr(*at + 2, close - *at - 2));
    for (const NamedCharacter& known : kNamedCharacters) {
      if (known.name == name) {
        AppendUtf8(known.code_point, text);
        *at = close;
        return absl::OkStatus();
      }
    }
    return absl::UnimplementedError(
        absl::StrCat("template line ", line_, ": the character name '", name, "' is not supported"));
  }

  // Reads the escape whose letter is source_[*at]; moves *at to its last byte. Others stay as they are.
  absl::Status Escape(size_t* at, std::string* text) const {
    const char escaped = source_[*at];
    constexpr std::string_view kLetters = "ntrabfv\\'\"";
    constexpr std::string_view kMeanings = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t known = kLetters.find(escaped); known != std::string_view::npos) {
      *text += kMeanings[known];
    } else if (escaped == 'x' || escaped == 'u' || escaped == 'U') {
      if (!CodePoint(escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8, at, text)) {
        return Error(absl::StrCat("a \\", std::string(1, escaped), " escape without its digits"));
      }
    } else if (escaped >= '0' && escaped <= '7') {
      Octal(at, text);
    } else if (escaped == 'N') {
      return NamedEscape(at, text);
    } else if (escaped != '\n') {
      *text += {'\\', escaped};
    }
    return absl::OkStatus();
  }

  absl::Status Quoted(char quote) {
    std::string text;
    size_t at = position_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\' || at + 1 >= source_.size()) {
        text += source_[at];
        continue;
      }
      ++at;
      absl::Status status = Escape(&at, &text);
      if (!status.ok()) {
        return status;
      }
    }
    if (at >= source_.size()) {
      return Error("a string is not closed");
    }
    Add(Token::Kind::kString, std::move(text));
    Advance(at + 1);
    return absl::OkStatus();
  }

  const std::string_view source_;
  size_t position_ = 0;
  int line_ = 1;
  bool trim_left_ = false;
  bool trim_newline_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  // Jinja normalizes all newlines to one kind.
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  // Drops one newline at the very end of a template (keep_trailing_newline is off).
  if (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return Lexer(text).Run();
}

}  // namespace sluice::jinja
