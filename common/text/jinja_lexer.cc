#include <algorithm>
#include <array>
#include <cctype>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/text/jinja_parser.h"

namespace sluice::jinja {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }
bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsNameChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

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
      Number();
      return absl::OkStatus();
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

  void Number() {
    size_t end = position_;
    const auto digits = [&] {
      while (end < source_.size() &&
             (std::isdigit(static_cast<unsigned char>(source_[end])) != 0 || source_[end] == '_')) {
        ++end;
      }
    };
    digits();
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' &&
        std::isdigit(static_cast<unsigned char>(source_[end + 1])) != 0) {
      real = true;
      ++end;
      digits();
    }
    std::string text(source_.substr(position_, end - position_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(real ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(text));
    Advance(end);
  }

  // Appends as UTF-8 the character with the hexadecimal code after source_[*at]. False if there are too few
  // digits.
  bool CodePoint(size_t digits, size_t* at, std::string* text) const {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = ++*at < source_.size() ? source_[*at] : 0;
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) {
        return false;
      }
      code = code * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code < 0x80) {
      *text += static_cast<char>(code);
    } else if (code < 0x800) {
      *text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else {
      *text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                static_cast<char>(0x80 | (code & 63))};
    }
    return true;
  }

  absl::Status Quoted(char quote) {
    std::string text;
    size_t at = position_ + 1;
    for (; at < source_.size() && source_[at] != quote; ++at) {
      if (source_[at] != '\\' || at + 1 >= source_.size()) {
        text += source_[at];
        continue;
      }
      const char escaped = source_[++at];
      switch (escaped) {
        case 'n':
          text += '\n';
          break;
        case 't':
          text += '\t';
          break;
        case 'r':
          text += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          text += escaped;
          break;
        case '\n':
          break;
        case 'x':
        case 'u':
          if (!CodePoint(escaped == 'x' ? 2 : 4, &at, &text)) {
            return Error(absl::StrCat("a \\", std::string(1, escaped), " escape without its digits"));
          }
          break;
        default:
          text += '\\';
          text += escaped;
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
