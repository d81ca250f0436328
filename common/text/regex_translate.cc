// Translation of Oniguruma patterns to PCRE2: character sets, then constructs.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/text/regex.h"
#include "common/text/unicode.h"

namespace sluice {

// Sets of Oniguruma's dialect (\s, \w, \p{..}) as content of PCRE2 classes, to be put between [ and ].
//
// Each begins and ends with a range or a property, so that a hyphen after it never makes a range.
//
// Thread safety: constants and free functions, safe to use from any thread.

// PCRE2's own \s has U+180E, too.
inline constexpr const char* kSpaceSet =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}\\x{2000}-\\x{"
    "200a}";
inline constexpr const char* kHexSet = "0-9A-Fa-f";  // \h

// Returns \w. Outside of classes it also matches some digits and fractions of Latin-1.
std::string WordSet();
inline constexpr const char* kLatin1WordSet = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Returns \p{name}: a category by its short or long name, a few binary properties, or else a script (PCRE2
// refuses unknown ones). UNIMPLEMENTED for other names.
absl::StatusOr<std::string> PropertySet(std::string_view name);

namespace {

struct NamePair {
  const char* name;  // lower case, without spaces, hyphens and underscores
  const char* pcre;
};

constexpr std::array<NamePair, 27> kLongNames = {{
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"other", "C"},
    {"alphabetic", "Alphabetic"},
    {"alpha", "Alphabetic"},
    {"uppercase", "Uppercase"},
    {"lowercase", "Lowercase"},
    {"ideographic", "Ideographic"},
    {"emoji", "Emoji"},
}};

constexpr std::string_view kCategories =
    " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co "
    "Cn ";

}  // namespace

// Returns Oniguruma's \w, which is wider than PCRE2's: it has marks and connectors.
std::string WordSet() {
  return absl::StrCat("\\p{Alphabetic}\\p{M}", NewerCharactersOf("Word"), "\\p{Nd}\\p{Pc}");
}

absl::StatusOr<std::string> PropertySet(std::string_view name) {
  // Oniguruma compares names of properties without case, spaces, hyphens and underscores.
  std::string plain;
  for (const char c : name) {
    if (absl::ascii_isalpha(static_cast<unsigned char>(c))) {
      plain.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    } else if (c != '_' && c != ' ' && c != '-') {
      return absl::UnimplementedError(absl::StrCat("property ", std::string(name), " is not supported"));
    }
  }
  std::string pcre;
  for (const NamePair& pair : kLongNames) {
    if (plain == pair.name) {
      pcre = pair.pcre;
    }
  }
  if (pcre.empty() && plain.size() <= 2) {
    if (plain.empty() ||
        kCategories.find(absl::StrCat(" ", std::string(name), " ")) == std::string_view::npos) {
      return absl::UnimplementedError(absl::StrCat("property ", std::string(name), " is not supported"));
    }
    pcre = std::string(name);
  }
  if (pcre.empty()) {
    return absl::StrCat("\\p{sc:", std::string(name), "}", NewerCharactersOf(name));
  }
  return absl::StrCat("\\p{", pcre, "}", NewerCharactersOf(pcre));
}

namespace {

// Translator: reads an Oniguruma pattern and writes the PCRE2 pattern that matches the same. Every construct
// is written explicitly, as sets and groups, since the two engines differ in the meaning of short forms;
// constructs without an equivalent are refused.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Run() {
    // Searching for \s+$ from every position of a long run of spaces is quadratic. All ends of a match were
    // tried from the run's first space, so the rest of the run is skipped: the same matches in linear time.
    if (pattern_ == "\\s+$") {
      return absl::StrCat("[", kSpaceSet, "]+$|[", kSpaceSet, "]+(*SKIP)(*FAIL)");
    }
    while (!AtEnd()) {
      RETURN_IF_ERROR(Element());
    }
    if (!group_starts_.empty()) {
      return absl::InvalidArgumentError("unclosed group");
    }
    return out_;
  }

 private:
  bool AtEnd() const { return position_ >= pattern_.size(); }
  char Peek() const { return pattern_[position_]; }
  bool Take(std::string_view text) {
    if (pattern_.substr(position_, text.size()) != text) {
      return false;
    }
    position_ += text.size();
    return true;
  }

  absl::Status Unsupported(std::string_view construct) const {
    return absl::UnimplementedError(
        absl::StrCat("construct ", std::string(construct), " at byte ", position_, " is not supported"));
  }

  static std::string Literal(char32_t c) {
    if (c < 0x80) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) ? std::string(1, static_cast<char>(c))
                                                                : absl::StrCat("\\x{", absl::Hex(c), "}");
    }
    return absl::StrCat("\\x{", absl::Hex(static_cast<uint32_t>(c)), "}");
  }

  void Atom(const std::string& text) {
    atom_start_ = out_.size();
    out_.append(text);
    has_atom_ = true;
  }

  absl::Status Element() {
    const char c = Peek();
    switch (c) {
      case '\\':
        return TopEscape();
      case '[': {
        ASSIGN_OR_RETURN(const std::string set, Class(0));
        Atom(set);
        return absl::OkStatus();
      }
      case '(':
        return OpenGroup();
      case ')':
        return CloseGroup();
      case '*':
      case '+':
      case '?':
        return Repeat();
      case '{':
        return Interval();
      case '|':
      case '^':
      case '$':
        ++position_;
        out_.push_back(c);
        has_atom_ = false;
        return absl::OkStatus();
      case '.':
        ++position_;
        Atom(".");
        return absl::OkStatus();
      default:
        Atom(Literal(NextCodePoint(pattern_, &position_)));
        return absl::OkStatus();
    }
  }

  absl::Status Repeat() {
    if (!has_atom_) {
      return Unsupported("repeat of nothing");
    }
    out_.push_back(pattern_[position_++]);
    if (!AtEnd() && (Peek() == '?' || Peek() == '+')) {
      out_.push_back(pattern_[position_++]);
    }
    has_atom_ = false;
    return absl::OkStatus();
  }

  // Reads {n}, {n,}, {n,m}, {,m}; any other form is a literal brace. A + or (after {n}) ? after it repeats
  // the whole in Oniguruma, while PCRE2 would read it as possessive or lazy.
  absl::Status Interval() {
    size_t end = position_ + 1;
    std::string low;
    std::string high;
    bool comma = false;
    for (; end < pattern_.size() && pattern_[end] != '}'; ++end) {
      const char c = pattern_[end];
      if (c == ',' && !comma) {
        comma = true;
      } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
        (comma ? high : low).push_back(c);
      } else {
        break;
      }
    }
    const bool is_interval = end < pattern_.size() && pattern_[end] == '}' && !(low.empty() && high.empty());
    if (!is_interval) {
      ++position_;
      Atom("\\{");
      return absl::OkStatus();
    }
    if (!has_atom_) {
      return Unsupported("interval of nothing");
    }
    position_ = end + 1;
    absl::StrAppend(&out_, "{", low.empty() ? "0" : low, comma ? "," : "", high, "}");
    has_atom_ = false;
    if (AtEnd()) {
      return absl::OkStatus();
    }
    if (Peek() == '?' && comma) {
      out_.push_back(pattern_[position_++]);
    } else if (Peek() == '+' || Peek() == '?' || Peek() == '*') {
      const std::string repeated = out_.substr(atom_start_);
      out_.resize(atom_start_);
      absl::StrAppend(&out_, "(?:", repeated, ")", std::string(1, pattern_[position_++]));
    }
    return absl::OkStatus();
  }

  absl::Status OpenGroup() {
    constexpr size_t kMaxDepth = 64;
    if (group_starts_.size() >= kMaxDepth) {
      return Unsupported("group nested deeper than 64");
    }
    const size_t start = out_.size();
    for (const char* open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (Take(open)) {
        out_.append(open);
        group_starts_.push_back(start);
        has_atom_ = false;
        return absl::OkStatus();
      }
    }
    if (pattern_.substr(position_, 2) == "(*") {
      return Unsupported("(*");
    }
    if (pattern_.substr(position_, 2) == "(?") {
      return Options(start);
    }
    // Captures are never referenced, so a group only groups.
    ++position_;
    out_.append("(?:");
    group_starts_.push_back(start);
    has_atom_ = false;
    return absl::OkStatus();
  }

  // Reads (?i:...), (?m-i:...), and (?i) at the beginning of the pattern or a group; elsewhere (?i) extends
  // over the following alternatives in Oniguruma.
  absl::Status Options(size_t start) {
    const bool leads = start == 0 || (!group_starts_.empty() && out_.back() == ':');
    size_t end = position_ + 2;
    std::string options;
    for (; end < pattern_.size() && pattern_[end] != ':' && pattern_[end] != ')'; ++end) {
      const char c = pattern_[end];
      if (c != 'i' && c != 'm' && c != '-') {
        return Unsupported(pattern_.substr(position_, end - position_ + 1));
      }
      options.push_back(c == 'm' ? 's' : c);
    }
    if (end >= pattern_.size() || options.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unfinished group at byte ", position_));
    }
    if (pattern_[end] == ')' && !leads) {
      return Unsupported("option that is not at the beginning of a group");
    }
    absl::StrAppend(&out_, "(?", options, std::string(1, pattern_[end]));
    if (pattern_[end] == ':') {
      group_starts_.push_back(start);
    }
    position_ = end + 1;
    has_atom_ = false;
    return absl::OkStatus();
  }

  absl::Status CloseGroup() {
    if (group_starts_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unmatched ) at byte ", position_));
    }
    ++position_;
    out_.push_back(')');
    atom_start_ = group_starts_.back();
    group_starts_.pop_back();
    has_atom_ = true;
    return absl::OkStatus();
  }

  absl::Status TopEscape() {
    if (position_ + 1 >= pattern_.size()) {
      return absl::InvalidArgumentError("pattern ends in a backslash");
    }
    const char c = pattern_[position_ + 1];
    const std::string word = absl::StrCat("[", word_, kLatin1WordSet, "]");
    switch (c) {
      case 'A':
      case 'z':
      case 'Z':
      case 'G':
        absl::StrAppend(&out_, "\\", std::string(1, c));
        break;
      case 'b':
        absl::StrAppend(&out_, "(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
        break;
      case 'B':
        absl::StrAppend(&out_, "(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
        break;
      case 'w':
      case 'W':
        Atom(c == 'w' ? word : absl::StrCat("[^", word.substr(1)));
        position_ += 2;
        return absl::OkStatus();
      default: {
        ASSIGN_OR_RETURN(const Escaped escaped, Escape());
        Atom(escaped.kind == Escaped::kCharacter
                 ? escaped.content
                 : absl::StrCat(escaped.kind == Escaped::kSet ? "[" : "[^", escaped.content, "]"));
        return absl::OkStatus();
      }
    }
    position_ += 2;
    has_atom_ = false;
    return absl::OkStatus();
  }

  // Meaning of an escape: a character, or the content of a class to be included or excluded.
  struct Escaped {
    std::string content;
    enum Kind { kCharacter, kSet, kExcludedSet } kind;
  };

  // Moves past the escape at position_, which has at least one character after the backslash.
  absl::StatusOr<Escaped> Escape() {
    const char c = pattern_[position_ + 1];
    std::string set;
    switch (absl::ascii_tolower(static_cast<unsigned char>(c))) {
      case 's':
        set = kSpaceSet;
        break;
      case 'w':
        set = word_;
        break;
      case 'h':
        set = kHexSet;
        break;
      case 'd':
        set = *PropertySet("Nd");
        break;
      case 'p':
        return Property();
      default: {
        ASSIGN_OR_RETURN(const std::string character, EscapedCharacter());
        return Escaped{character, Escaped::kCharacter};
      }
    }
    position_ += 2;
    return Escaped{
        set, absl::ascii_isupper(static_cast<unsigned char>(c)) ? Escaped::kExcludedSet : Escaped::kSet};
  }

  absl::StatusOr<std::string> EscapedCharacter() {
    const char c = pattern_[position_ + 1];
    constexpr std::string_view kControls = "tnrfvae";
    constexpr std::array<char32_t, 7> kControlValues = {0x09, 0x0A, 0x0D, 0x0C, 0x0B, 0x07, 0x1B};
    if (const size_t i = kControls.find(c); i != std::string_view::npos) {
      position_ += 2;
      return Literal(kControlValues[i]);
    }
    if (c == 'x' || c == 'u') {
      return CodePointEscape();
    }
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return Unsupported(pattern_.substr(position_, 2));
    }
    ++position_;
    return Literal(NextCodePoint(pattern_, &position_));
  }

  // Reads \xHH (ASCII only: beyond it Oniguruma means a byte), \x{H...}, \uHHHH.
  absl::StatusOr<std::string> CodePointEscape() {
    const bool braces = pattern_.substr(position_, 3) == "\\x{";
    const size_t begin = position_ + (braces ? 3 : 2);
    size_t length = pattern_[position_ + 1] == 'u' ? 4 : 2;
    if (braces) {
      const size_t close = pattern_.find('}', begin);
      length = close == std::string_view::npos ? 0 : close - begin;
    }
    const std::string digits(pattern_.substr(begin, length));
    uint32_t value = 0;
    if (length == 0 || length > 8 || digits.size() != length || !absl::SimpleHexAtoi(digits, &value) ||
        value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      return absl::InvalidArgumentError(absl::StrCat("bad code point at byte ", position_));
    }
    if (value >= 0x80 && !braces && length == 2) {
      return Unsupported("byte escape above 0x7f");
    }
    position_ = begin + length + (braces ? 1 : 0);
    return Literal(value);
  }

  absl::StatusOr<Escaped> Property() {
    bool negated = pattern_[position_ + 1] == 'P';
    const size_t close = pattern_.find('}', position_);
    if (pattern_.substr(position_ + 2, 1) != "{" || close == std::string_view::npos) {
      return Unsupported("property without braces");
    }
    std::string_view name = pattern_.substr(position_ + 3, close - position_ - 3);
    if (name.substr(0, 1) == "^") {
      negated = !negated;
      name.remove_prefix(1);
    }
    ASSIGN_OR_RETURN(const std::string content, PropertySet(name));
    position_ = close + 1;
    return Escaped{content, negated ? Escaped::kExcludedSet : Escaped::kSet};
  }

  // One operand of && in a class: a union of plain content and of sets that need brackets of their own.
  struct Operand {
    std::string content;
    std::vector<std::string> sets;
    std::string Expression() const {
      if (sets.empty()) {
        return absl::StrCat("[", content, "]");
      }
      std::string all = content.empty() ? "" : absl::StrCat("[", content, "]");
      for (const std::string& set : sets) {
        absl::StrAppend(&all, all.empty() ? "" : "|", set);
      }
      return absl::StrCat("(?:", all, ")");
    }
    bool empty() const { return content.empty() && sets.empty(); }
  };

  // Translates a bracketed class at '[' to an expression that matches one character.
  absl::StatusOr<std::string> Class(int depth) {
    constexpr int kMaxDepth = 8;
    if (depth > kMaxDepth || pattern_.substr(position_, 2) == "[:") {
      return Unsupported(depth > kMaxDepth ? "class nested deeper than 8" : "POSIX bracket");
    }
    ++position_;
    const bool negated = Take("^");
    std::vector<Operand> operands(1);
    while (true) {
      if (AtEnd()) {
        return absl::InvalidArgumentError("unclosed class");
      }
      if (Take("]")) {
        break;
      }
      if (Take("&&")) {
        operands.emplace_back();
        continue;
      }
      RETURN_IF_ERROR(ClassItem(depth, &operands.back()));
    }
    for (const Operand& operand : operands) {
      if (operand.empty()) {
        return Unsupported("empty class");
      }
    }
    if (operands.size() == 1 && operands[0].sets.empty()) {
      return absl::StrCat(negated ? "[^" : "[", operands[0].content, "]");
    }
    std::string all;
    for (size_t i = 0; i + 1 < operands.size(); ++i) {
      absl::StrAppend(&all, "(?=", operands[i].Expression(), ")");
    }
    absl::StrAppend(&all, operands.back().Expression());
    return negated ? absl::StrCat("(?:(?!", all, ")(?s:.))") : absl::StrCat("(?:", all, ")");
  }

  absl::Status ClassItem(int depth, Operand* operand) {
    const char c = Peek();
    if (c == '[') {
      ASSIGN_OR_RETURN(std::string set, Class(depth + 1));
      operand->sets.push_back(std::move(set));
      return absl::OkStatus();
    }
    if (c == '-') {
      ++position_;
      operand->content.push_back('-');
      return absl::OkStatus();
    }
    if (c != '\\') {
      operand->content.append(Literal(NextCodePoint(pattern_, &position_)));
      return absl::OkStatus();
    }
    if (position_ + 1 >= pattern_.size()) {
      return absl::InvalidArgumentError("pattern ends in a backslash");
    }
    if (pattern_[position_ + 1] == 'b') {
      position_ += 2;
      operand->content.append("\\x{8}");
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Escaped escaped, Escape());
    if (escaped.kind == Escaped::kExcludedSet) {
      operand->sets.push_back(absl::StrCat("[^", escaped.content, "]"));
      return absl::OkStatus();
    }
    if (escaped.kind == Escaped::kSet && !operand->content.empty() && operand->content.back() == '-') {
      operand->content.pop_back();
      operand->content.append("\\-");
    }
    operand->content.append(escaped.content);
    return absl::OkStatus();
  }

  const std::string word_ = WordSet();
  const std::string_view pattern_;
  size_t position_ = 0;
  std::string out_;
  std::vector<size_t> group_starts_;  // offsets in out_
  size_t atom_start_ = 0;             // offset in out_ of the operand of a repeat
  bool has_atom_ = false;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace sluice
