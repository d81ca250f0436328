#include "inferd/grammar/grammar_text.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace sluice::inferd {
namespace {

constexpr uint32_t kLastCharacter = 0x10ffff;

// Disjoint ranges in ascending order.
using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

const Ranges kDigits = {{'0', '9'}};
const Ranges kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces = {{0x09, 0x0d}, {' ', ' '}};
const Ranges kSurrogates = {{0xd800, 0xdfff}};  // not in any text
// Characters that need an escape in a JSON string.
const Ranges kEscaped = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};

Ranges Normal(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges normal;
  for (const auto& [low, high] : ranges) {
    if (!normal.empty() && low <= normal.back().second + 1) {
      normal.back().second = std::max(normal.back().second, high);
    } else {
      normal.push_back({low, high});
    }
  }
  return normal;
}

Ranges Without(const Ranges& all, const Ranges& taken) {
  Ranges left;
  for (auto [low, high] : all) {
    for (const auto& [from, to] : taken) {
      if (to < low || from > high) {
        continue;
      }
      if (from > low) {
        left.push_back({low, from - 1});
      }
      low = to + 1;
      if (low > high) {
        break;
      }
    }
    if (low <= high) {
      left.push_back({low, high});
    }
  }
  return left;
}

// Excludes NUL, which no text contains.
Ranges Complement(const Ranges& ranges) { return Without({{1, kLastCharacter}}, ranges); }

class Rewriter {
 public:
  Rewriter(std::string_view regex, bool in_json_string) : regex_(regex), json_(in_json_string) {}

  absl::StatusOr<std::string> Run() {
    if (Peek() == '^') {
      ++at_;
    }
    RETURN_IF_ERROR(Alternatives(0));
    if (at_ < regex_.size()) {
      return Error("an unmatched )");
    }
    return std::move(out_);
  }

 private:
  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("at byte ", at_, ": ", what));
  }
  bool AtEnd() const { return at_ >= regex_.size(); }
  char Peek() const { return AtEnd() ? '\0' : regex_[at_]; }
  bool Begins(std::string_view text) const { return regex_.substr(at_, text.size()) == text; }

  absl::Status Alternatives(int depth);
  absl::Status Atom(int depth);
  absl::Status Group(int depth);
  absl::Status Quantifier();
  absl::StatusOr<uint32_t> Count();
  absl::StatusOr<Ranges> Class();
  absl::StatusOr<Ranges> ClassMember();
  absl::StatusOr<Ranges> Escape();
  absl::StatusOr<Ranges> HexEscape(size_t least, size_t most);
  uint32_t Character();
  absl::Status Write(const Ranges& ranges);
  void WriteCharacter(uint32_t character);

  const std::string_view regex_;
  const bool json_;
  size_t at_ = 0;
  std::string out_;
};

absl::Status Rewriter::Alternatives(int depth) {
  while (!AtEnd() && Peek() != ')') {
    if (Peek() == '|') {
      out_ += '|';
      ++at_;
    } else if (Peek() == '$' && at_ + 1 == regex_.size()) {
      ++at_;
    } else {
      RETURN_IF_ERROR(Atom(depth));
      RETURN_IF_ERROR(Quantifier());
    }
  }
  return absl::OkStatus();
}

absl::Status Rewriter::Atom(int depth) {
  switch (Peek()) {
    case '(':
      return Group(depth);
    case '[': {
      ASSIGN_OR_RETURN(const Ranges ranges, Class());
      return Write(ranges);
    }
    case '\\': {
      ASSIGN_OR_RETURN(const Ranges ranges, Escape());
      return Write(ranges);
    }
    case '.':
      ++at_;
      return Write(Complement({{'\n', '\n'}}));
    case '^':
    case '$':
      return Error(absl::StrCat(std::string(1, Peek()), " is supported at the beginning and the end only"));
    case '*':
    case '+':
    case '?':
    case '{':
      return Error("nothing to repeat");
    default: {
      const uint32_t character = Character();
      return Write({{character, character}});
    }
  }
}

absl::Status Rewriter::Group(int depth) {
  if (depth == kMaxRegexDepth) {
    return Error(absl::StrCat("groups deeper than ", kMaxRegexDepth));
  }
  ++at_;
  if (Begins("?:")) {
    at_ += 2;
  } else if (Begins("?<") && !Begins("?<=") && !Begins("?<!")) {
    const size_t end = regex_.find('>', at_);
    if (end == std::string_view::npos) {
      return Error("a group's name without an end");
    }
    at_ = end + 1;
  } else if (Begins("?=") || Begins("?!") || Begins("?<")) {
    return Error("look-around is not supported");
  } else if (Peek() == '?') {
    return Error("flags of a group are not supported");
  }
  out_ += "(?:";
  RETURN_IF_ERROR(Alternatives(depth + 1));
  if (Peek() != ')') {
    return Error("a ( without its )");
  }
  ++at_;
  out_ += ')';
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Rewriter::Count() {
  uint32_t count = 0;
  const size_t begin = at_;
  for (; absl::ascii_isdigit(static_cast<unsigned char>(Peek())); ++at_) {
    count = count * 10 + static_cast<uint32_t>(Peek() - '0');
    if (count > kMaxRepetitions) {
      return Error(absl::StrCat("a repetition count above ", kMaxRepetitions));
    }
  }
  return at_ == begin ? absl::StatusOr<uint32_t>(Error("a repetition without a count")) : count;
}

absl::Status Rewriter::Quantifier() {
  const char kind = Peek();
  if (kind == '*' || kind == '+' || kind == '?') {
    out_ += kind;
    ++at_;
  } else if (kind == '{') {
    ++at_;
    ASSIGN_OR_RETURN(const uint32_t least, Count());
    absl::StrAppend(&out_, "{", least);
    if (Peek() == ',') {
      ++at_;
      out_ += ',';
      if (Peek() != '}') {
        ASSIGN_OR_RETURN(const uint32_t most, Count());
        if (most < least) {
          return Error("a repetition of at most less than at least");
        }
        absl::StrAppend(&out_, most);
      }
    }
    if (Peek() != '}') {
      return Error("a { without its }");
    }
    ++at_;
    out_ += '}';
  } else {
    return absl::OkStatus();
  }
  if (Peek() == '?') {
    ++at_;  // lazy or greedy: the matched texts are the same
  }
  const bool again = !AtEnd() && std::string_view("*+?{").find(Peek()) != std::string_view::npos;
  return again ? Error("a repetition of a repetition") : absl::OkStatus();
}

absl::StatusOr<Ranges> Rewriter::Class() {
  const size_t begin = at_++;
  const bool negated = Peek() == '^';
  at_ += negated ? 1 : 0;
  Ranges ranges;
  while (!AtEnd() && Peek() != ']') {
    ASSIGN_OR_RETURN(Ranges member, ClassMember());
    const bool single = member.size() == 1 && member[0].first == member[0].second;
    if (single && Peek() == '-' && at_ + 1 < regex_.size() && regex_[at_ + 1] != ']') {
      ++at_;
      ASSIGN_OR_RETURN(const Ranges high, ClassMember());
      if (high.size() != 1 || high[0].first != high[0].second || high[0].first < member[0].first) {
        return Error("a range whose end is not behind its beginning");
      }
      member[0].second = high[0].first;
    }
    ranges.insert(ranges.end(), member.begin(), member.end());
  }
  if (AtEnd()) {
    at_ = begin;
    return Error("a [ without its ]");
  }
  ++at_;
  ranges = Normal(std::move(ranges));
  return negated ? Complement(ranges) : ranges;
}

absl::StatusOr<Ranges> Rewriter::ClassMember() {
  if (Peek() == '\\') {
    return Escape();
  }
  const uint32_t character = Character();
  return Ranges{{character, character}};
}

absl::StatusOr<Ranges> Rewriter::Escape() {
  ++at_;
  if (AtEnd()) {
    return Error("a \\ at the end");
  }
  const char kind = Peek();
  const auto one = [](uint32_t character) { return Ranges{{character, character}}; };
  if (!absl::ascii_isalnum(static_cast<unsigned char>(kind))) {
    return one(Character());
  }
  ++at_;
  switch (kind) {
    case 'd':
      return kDigits;
    case 'D':
      return Complement(kDigits);
    case 'w':
      return kWords;
    case 'W':
      return Complement(kWords);
    case 's':
      return kSpaces;
    case 'S':
      return Complement(kSpaces);
    case 'n':
      return one('\n');
    case 'r':
      return one('\r');
    case 't':
      return one('\t');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case 'x':
      return HexEscape(2, 2);
    case 'u':
      if (Peek() != '{') {
        return HexEscape(4, 4);
      } else {
        ++at_;
        ASSIGN_OR_RETURN(const Ranges character, HexEscape(1, 6));
        if (Peek() != '}') {
          return Error("a \\u{ without its }");
        }
        ++at_;
        return character;
      }
    default:
      --at_;
      return Error(absl::StrCat("\\", std::string(1, kind), " is not supported"));
  }
}

absl::StatusOr<Ranges> Rewriter::HexEscape(size_t least, size_t most) {
  uint32_t value = 0;
  size_t digits = 0;
  for (; digits < most && absl::ascii_isxdigit(static_cast<unsigned char>(Peek())); ++digits, ++at_) {
    const char digit = absl::ascii_tolower(static_cast<unsigned char>(Peek()));
    value = value * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  if (digits < least || value == 0 || value > kLastCharacter) {
    return Error("an escape that spells no character");
  }
  return Ranges{{value, value}};
}

uint32_t Rewriter::Character() {
  const Utf8Char next = DecodeUtf8(regex_.substr(at_));
  at_ += static_cast<size_t>(next.length);
  return static_cast<uint32_t>(next.code_point);
}

absl::Status Rewriter::Write(const Ranges& ranges) {
  const bool single = ranges.size() == 1 && ranges[0].first == ranges[0].second;
  if (single && json_ && ranges != Without(ranges, kEscaped)) {
    const char character = static_cast<char>(ranges[0].first);
    out_ += "(?:";
    for (const char c : character == '"' || character == '\\' ? std::string("\\") + character
                                                              : absl::StrFormat("\\u%04x", ranges[0].first)) {
      WriteCharacter(static_cast<unsigned char>(c));
    }
    out_ += ')';
    return absl::OkStatus();
  }
  Ranges left = Without(ranges, kSurrogates);
  if (json_) {
    left = Without(left, kEscaped);
  }
  if (left.empty()) {
    return Error(json_ ? "no character that a JSON string holds without an escape"
                       : "a class without characters");
  }
  if (single) {
    WriteCharacter(left[0].first);
    return absl::OkStatus();
  }
  // xgrammar treats a leading ^ as negation, escaped or not.
  if (left[0].first == '^') {
    std::rotate(left.begin(), left.begin() + 1, left.end());
    if (left.back().second > '^') {
      left.insert(left.begin(), {'^' + 1, left.back().second});
      left.back().second = '^';
    }
  }
  out_ += '[';
  for (const auto& [low, high] : left) {
    WriteCharacter(low);
    if (high > low) {
      out_ += '-';
      WriteCharacter(high);
    }
  }
  out_ += ']';
  return absl::OkStatus();
}

void Rewriter::WriteCharacter(uint32_t character) {
  if (character < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(character))) {
    out_ += static_cast<char>(character);
  } else {
    absl::StrAppendFormat(&out_, "\\u{%x}", character);
  }
}

}  // namespace

absl::StatusOr<std::string> RewriteRegex(std::string_view regex, bool in_json_string) {
  return Rewriter(regex, in_json_string).Run();
}

namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&quoted, "\\u%04x", static_cast<unsigned>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return absl::StrCat(quoted, "\"");
}

}  // namespace

std::string ChoiceGrammar(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    absl::StrAppend(&grammar, i == 0 ? "" : " | ", Quoted(choices[i]));
  }
  return absl::StrCat(grammar, "\n");
}

absl::Status CheckCounts(std::string_view text, uint64_t maximum) {
  for (size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
    for (size_t begin = at + 1; begin < text.size();) {
      size_t end = begin;
      while (end < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) {
        ++end;
      }
      uint64_t count = 0;
      const std::string digits(text.substr(begin, end - begin));
      if (!digits.empty() && (!absl::SimpleAtoi(digits, &count) || count > maximum)) {
        return absl::InvalidArgumentError(absl::StrCat("a repetition of ", digits.substr(0, 40),
                                                       " times at byte ", at, "; at most ", maximum,
                                                       " are supported"));
      }
      // Spaces are allowed within; the second number of {n,m} follows.
      while (end < text.size() && (text[end] == ' ' || text[end] == ',')) {
        ++end;
      }
      if (end == begin || end >= text.size() || !absl::ascii_isdigit(static_cast<unsigned char>(text[end]))) {
        break;
      }
      begin = end;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::inferd
