#include "common/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace sluice {
namespace {

utf8proc_category_t CategoryOf(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

int CombiningClass(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// True for letters by property Other_Alphabetic whose category is So: circled and squared Latin letters.
bool IsAlphabeticSymbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

// True if the form leaves any text of such characters unchanged: below U+0300 nothing composes or reorders
// canonically, and ASCII has no decomposition of any kind.
bool IsUnchangedBy(UnicodeForm form, std::string_view text) {
  // Lead bytes up to 0xCB begin characters up to U+02FF.
  const uint8_t limit = form == UnicodeForm::kNfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [limit](char c) { return static_cast<uint8_t>(c) < limit; });
}

// Characters newer than Unicode 9.0 that decompose, compose or have a combining class in the Unicode 15.0 of
// utf8proc 2.8. Hugging Face `tokenizers` normalizes by Unicode 9.0, in which they are unassigned and stay
// unchanged; the models were trained on that.
struct CodePointRange {
  char32_t first;
  char32_t last;
};
constexpr CodePointRange kNewerThanReference[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool IsNewerThanReference(char32_t c) {
  const auto* const range =
      std::lower_bound(std::begin(kNewerThanReference), std::end(kNewerThanReference), c,
                       [](const CodePointRange& r, char32_t value) { return r.last < value; });
  return range != std::end(kNewerThanReference) && range->first <= c;
}

// Puts runs of combining marks into canonical order. utf8proc's own reordering is a bubble sort, quadratic in
// the length of a run, which a client could make as long as a text.
void SortMarks(std::vector<utf8proc_int32_t>* points) {
  for (size_t i = 0; i < points->size();) {
    if (CombiningClass((*points)[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < points->size() && CombiningClass((*points)[end]) != 0) {
      ++end;
    }
    std::stable_sort(
        points->begin() + static_cast<ptrdiff_t>(i), points->begin() + static_cast<ptrdiff_t>(end),
        [](utf8proc_int32_t a, utf8proc_int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    i = end;
  }
}

bool IsCompatible(UnicodeForm form) { return form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd; }
bool IsComposed(UnicodeForm form) { return form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc; }

void AppendDecomposed(UnicodeForm form, char32_t c, std::vector<utf8proc_int32_t>* points) {
  constexpr utf8proc_ssize_t kMaxParts = 32;  // the longest decomposition in Unicode has 18 code points
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (IsCompatible(form) ? UTF8PROC_COMPAT : 0));
  utf8proc_int32_t parts[kMaxParts];
  int last_boundary = 0;
  const utf8proc_ssize_t n =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, kMaxParts, options, &last_boundary);
  if (n > 0 && n <= kMaxParts) {
    points->insert(points->end(), parts, parts + n);
  } else {
    points->push_back(static_cast<utf8proc_int32_t>(c));
  }
}

// Puts the decomposed `points` into order, composes them if the form requires it, appends them to `out` and
// clears them.
void AppendNormalized(UnicodeForm form, std::vector<utf8proc_int32_t>* points, std::string* out) {
  SortMarks(points);
  auto length = static_cast<utf8proc_ssize_t>(points->size());
  if (IsComposed(form)) {
    length = utf8proc_normalize_utf32(points->data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    AppendUtf8(static_cast<char32_t>((*points)[static_cast<size_t>(i)]), out);
  }
  points->clear();
}

}  // namespace

bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) {
    return c >= '0' && c <= '9';
  }
  const utf8proc_category_t category = CategoryOf(c);
  return (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) ||
         NewerCategoryOf(c).substr(0, 1) == "N";
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
  }
  const utf8proc_category_t category = CategoryOf(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsWordChar(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  const utf8proc_category_t category = CategoryOf(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || IsAlphabeticSymbol(c) ||
         NewerCategoryOf(c).substr(0, 1) == "L" || NewerCategoryOf(c).substr(0, 1) == "M" ||
         NewerCategoryOf(c) == "Nd";
}

std::string Normalize(UnicodeForm form, std::string_view text) {
  if (IsUnchangedBy(form, text)) {
    return std::string(text);
  }
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    // An unassigned character is a border: nothing before it composes with or moves after the text behind it.
    if (IsNewerThanReference(c)) {
      AppendNormalized(form, &points, &out);
      AppendUtf8(c, &out);
    } else {
      AppendDecomposed(form, c, &points);
    }
  }
  AppendNormalized(form, &points, &out);
  return out;
}

std::string Lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    if (c < 0x80) {
      out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c));
    } else if (c == 0x130) {
      out.append("i\xCC\x87");  // U+0130 is the only character whose lower case has two code points
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
    }
  }
  return out;
}

namespace {

// Characters whose upper or title case has several characters: each, and behind it its mapping (Unicode's
// SpecialCasing).
constexpr std::string_view kLongUppercase =
    "ßSS ŉʼN ǰJ\u030c ΐΙ\u0308\u0301 ΰΥ\u0308\u0301 ևԵՒ ẖH\u0331 ẗT\u0308 ẘW\u030a ẙY\u030a ẚAʾ "
    "ὐΥ\u0313 ὒΥ\u0313\u0300 ὔΥ\u0313\u0301 ὖΥ\u0313\u0342 ᾀἈΙ ᾁἉΙ ᾂἊΙ ᾃἋΙ ᾄἌΙ ᾅἍΙ ᾆἎΙ ᾇἏΙ ᾈἈΙ ᾉἉΙ "
    "ᾊἊΙ ᾋἋΙ ᾌἌΙ ᾍἍΙ ᾎἎΙ ᾏἏΙ ᾐἨΙ ᾑἩΙ ᾒἪΙ ᾓἫΙ ᾔἬΙ ᾕἭΙ ᾖἮΙ ᾗἯΙ ᾘἨΙ ᾙἩΙ ᾚἪΙ ᾛἫΙ ᾜἬΙ ᾝἭΙ ᾞἮΙ ᾟἯΙ ᾠὨΙ ᾡὩΙ "
    "ᾢὪΙ ᾣὫΙ ᾤὬΙ ᾥὭΙ ᾦὮΙ ᾧὯΙ ᾨὨΙ ᾩὩΙ ᾪὪΙ ᾫὫΙ ᾬὬΙ ᾭὭΙ ᾮὮΙ ᾯὯΙ ᾲᾺΙ ᾳΑΙ ᾴΆΙ ᾶΑ\u0342 ᾷΑ\u0342Ι ᾼΑΙ ῂῊΙ "
    "ῃΗΙ ῄΉΙ ῆΗ\u0342 ῇΗ\u0342Ι ῌΗΙ ῒΙ\u0308\u0300 ΐΙ\u0308\u0301 ῖΙ\u0342 ῗΙ\u0308\u0342 "
    "ῢΥ\u0308\u0300 ΰΥ\u0308\u0301 ῤΡ\u0313 ῦΥ\u0342 ῧΥ\u0308\u0342 ῲῺΙ ῳΩΙ ῴΏΙ ῶΩ\u0342 ῷΩ\u0342Ι "
    "ῼΩΙ ﬀFF ﬁFI ﬂFL ﬃFFI ﬄFFL ﬅST ﬆST ﬓՄՆ ﬔՄԵ ﬕՄԻ ﬖՎՆ ﬗՄԽ ";
constexpr std::string_view kLongTitlecase =
    "ßSs ŉʼN ǰJ\u030c ΐΙ\u0308\u0301 ΰΥ\u0308\u0301 ևԵւ ẖH\u0331 ẗT\u0308 ẘW\u030a ẙY\u030a ẚAʾ "
    "ὐΥ\u0313 ὒΥ\u0313\u0300 ὔΥ\u0313\u0301 ὖΥ\u0313\u0342 ᾲᾺ\u0345 ᾴΆ\u0345 ᾶΑ\u0342 ᾷΑ\u0342\u0345 "
    "ῂῊ\u0345 ῄΉ\u0345 ῆΗ\u0342 ῇΗ\u0342\u0345 ῒΙ\u0308\u0300 ΐΙ\u0308\u0301 ῖΙ\u0342 ῗΙ\u0308\u0342 "
    "ῢΥ\u0308\u0300 ΰΥ\u0308\u0301 ῤΡ\u0313 ῦΥ\u0342 ῧΥ\u0308\u0342 ῲῺ\u0345 ῴΏ\u0345 ῶΩ\u0342 "
    "ῷΩ\u0342\u0345 ﬀFf ﬁFi ﬂFl ﬃFfi ﬄFfl ﬅSt ﬆSt ﬓՄն ﬔՄե ﬕՄի ﬖՎն ﬗՄխ ";

// Returns the mapping of `c` in one of the tables above; empty if it has none there.
std::string_view LongMapping(char32_t c, std::string_view table) {
  if (c < 0x80) {
    return {};
  }
  std::string key;
  AppendUtf8(c, &key);
  for (size_t at = 0; at < table.size();) {
    const size_t end = table.find(' ', at);
    if (table.compare(at, key.size(), key) == 0) {
      return table.substr(at + key.size(), end - at - key.size());
    }
    at = end + 1;
  }
  return {};
}

}  // namespace

void AppendInCase(char32_t code_point, LetterCase letter_case, std::string* out) {
  const auto c = static_cast<utf8proc_int32_t>(code_point);
  if (letter_case == LetterCase::kLower) {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(c)), out);
    if (code_point == 0x130) {  // capital I with a dot keeps its dot
      AppendUtf8(0x307, out);
    }
    return;
  }
  const bool upper = letter_case == LetterCase::kUpper;
  if (const std::string_view text = LongMapping(code_point, upper ? kLongUppercase : kLongTitlecase);
      !text.empty()) {
    out->append(text);
    return;
  }
  AppendUtf8(static_cast<char32_t>(upper ? utf8proc_toupper(c) : utf8proc_totitle(c)), out);
}

bool IsCasedLetter(char32_t code_point) {
  const auto c = static_cast<utf8proc_int32_t>(code_point);
  const utf8proc_category_t category = CategoryOf(code_point);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT || utf8proc_tolower(c) != c || utf8proc_toupper(c) != c;
}

bool IsLetter(char32_t code_point) {
  const utf8proc_category_t category = CategoryOf(code_point);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDigit(char32_t code_point) {
  const auto in = [code_point](char32_t first, char32_t last) {
    return code_point >= first && code_point <= last;
  };
  return CategoryOf(code_point) == UTF8PROC_CATEGORY_ND || code_point == 0xb9 || in(0xb2, 0xb3) ||
         code_point == 0x2070 || in(0x2074, 0x2079) || in(0x2080, 0x2089) || in(0x2460, 0x2468) ||
         in(0x2474, 0x247c) || in(0x2488, 0x2490) || in(0x2776, 0x277e) || in(0x2780, 0x2788) ||
         in(0x278a, 0x2792);
}

bool IsPythonBlank(char32_t code_point) {
  return IsWhitespace(code_point) || (code_point >= 0x1c && code_point <= 0x1f);
}

bool IsPrintable(char32_t code_point) {
  switch (CategoryOf(code_point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code_point == ' ';
    default:
      return true;
  }
}

namespace {

struct NewerRange {
  char32_t first;
  char32_t last;
  std::string_view category;
};

// Difference between the two engines (named in the header), found by querying both for every code point and
// category.
constexpr NewerRange kNewer[] = {
    {0x897, 0x897, "Mn"},     {0xCF3, 0xCF3, "Mc"},     {0xECE, 0xECE, "Mn"},     {0x1B4E, 0x1B4F, "Po"},
    {0x1B7F, 0x1B7F, "Po"},   {0x1C89, 0x1C89, "Lu"},   {0x1C8A, 0x1C8A, "Ll"},   {0x2427, 0x2429, "So"},
    {0x2FFC, 0x2FFF, "So"},   {0x31E4, 0x31E5, "So"},   {0x31EF, 0x31EF, "So"},   {0xA7CB, 0xA7CC, "Lu"},
    {0xA7CD, 0xA7CD, "Ll"},   {0xA7DA, 0xA7DA, "Lu"},   {0xA7DB, 0xA7DB, "Ll"},   {0xA7DC, 0xA7DC, "Lu"},
    {0x105C0, 0x105F3, "Lo"}, {0x10D40, 0x10D49, "Nd"}, {0x10D4A, 0x10D4D, "Lo"}, {0x10D4E, 0x10D4E, "Lm"},
    {0x10D4F, 0x10D4F, "Lo"}, {0x10D50, 0x10D65, "Lu"}, {0x10D69, 0x10D6D, "Mn"}, {0x10D6E, 0x10D6E, "Pd"},
    {0x10D6F, 0x10D6F, "Lm"}, {0x10D70, 0x10D85, "Ll"}, {0x10D8E, 0x10D8F, "Sm"}, {0x10EC2, 0x10EC4, "Lo"},
    {0x10EFC, 0x10EFF, "Mn"}, {0x1123F, 0x11240, "Lo"}, {0x11241, 0x11241, "Mn"}, {0x11380, 0x11389, "Lo"},
    {0x1138B, 0x1138B, "Lo"}, {0x1138E, 0x1138E, "Lo"}, {0x11390, 0x113B5, "Lo"}, {0x113B7, 0x113B7, "Lo"},
    {0x113B8, 0x113BA, "Mc"}, {0x113BB, 0x113C0, "Mn"}, {0x113C2, 0x113C2, "Mc"}, {0x113C5, 0x113C5, "Mc"},
    {0x113C7, 0x113CA, "Mc"}, {0x113CC, 0x113CD, "Mc"}, {0x113CE, 0x113CE, "Mn"}, {0x113CF, 0x113CF, "Mc"},
    {0x113D0, 0x113D0, "Mn"}, {0x113D1, 0x113D1, "Lo"}, {0x113D2, 0x113D2, "Mn"}, {0x113D3, 0x113D3, "Lo"},
    {0x113D4, 0x113D5, "Po"}, {0x113D7, 0x113D8, "Po"}, {0x113E1, 0x113E2, "Mn"}, {0x116D0, 0x116E3, "Nd"},
    {0x11B00, 0x11B09, "Po"}, {0x11BC0, 0x11BE0, "Lo"}, {0x11BE1, 0x11BE1, "Po"}, {0x11BF0, 0x11BF9, "Nd"},
    {0x11F00, 0x11F01, "Mn"}, {0x11F02, 0x11F02, "Lo"}, {0x11F03, 0x11F03, "Mc"}, {0x11F04, 0x11F10, "Lo"},
    {0x11F12, 0x11F33, "Lo"}, {0x11F34, 0x11F35, "Mc"}, {0x11F36, 0x11F3A, "Mn"}, {0x11F3E, 0x11F3F, "Mc"},
    {0x11F40, 0x11F40, "Mn"}, {0x11F41, 0x11F41, "Mc"}, {0x11F42, 0x11F42, "Mn"}, {0x11F43, 0x11F4F, "Po"},
    {0x11F50, 0x11F59, "Nd"}, {0x11F5A, 0x11F5A, "Mn"}, {0x1342F, 0x1342F, "Lo"}, {0x13439, 0x1343F, "Cf"},
    {0x13440, 0x13440, "Mn"}, {0x13441, 0x13446, "Lo"}, {0x13447, 0x13455, "Mn"}, {0x13460, 0x143FA, "Lo"},
    {0x16100, 0x1611D, "Lo"}, {0x1611E, 0x16129, "Mn"}, {0x1612A, 0x1612C, "Mc"}, {0x1612D, 0x1612F, "Mn"},
    {0x16130, 0x16139, "Nd"}, {0x16D40, 0x16D42, "Lm"}, {0x16D43, 0x16D6A, "Lo"}, {0x16D6B, 0x16D6C, "Lm"},
    {0x16D6D, 0x16D6F, "Po"}, {0x16D70, 0x16D79, "Nd"}, {0x18CFF, 0x18CFF, "Lo"}, {0x1B132, 0x1B132, "Lo"},
    {0x1B155, 0x1B155, "Lo"}, {0x1CC00, 0x1CCEF, "So"}, {0x1CCF0, 0x1CCF9, "Nd"}, {0x1CD00, 0x1CEB3, "So"},
    {0x1D2C0, 0x1D2D3, "No"}, {0x1DF25, 0x1DF2A, "Ll"}, {0x1E030, 0x1E06D, "Lm"}, {0x1E08F, 0x1E08F, "Mn"},
    {0x1E4D0, 0x1E4EA, "Lo"}, {0x1E4EB, 0x1E4EB, "Lm"}, {0x1E4EC, 0x1E4EF, "Mn"}, {0x1E4F0, 0x1E4F9, "Nd"},
    {0x1E5D0, 0x1E5ED, "Lo"}, {0x1E5EE, 0x1E5EF, "Mn"}, {0x1E5F0, 0x1E5F0, "Lo"}, {0x1E5F1, 0x1E5FA, "Nd"},
    {0x1E5FF, 0x1E5FF, "Po"}, {0x1F6DC, 0x1F6DC, "So"}, {0x1F774, 0x1F776, "So"}, {0x1F77B, 0x1F77F, "So"},
    {0x1F7D9, 0x1F7D9, "So"}, {0x1F8B2, 0x1F8BB, "So"}, {0x1F8C0, 0x1F8C1, "So"}, {0x1FA75, 0x1FA77, "So"},
    {0x1FA87, 0x1FA89, "So"}, {0x1FA8F, 0x1FA8F, "So"}, {0x1FAAD, 0x1FAAF, "So"}, {0x1FABB, 0x1FABF, "So"},
    {0x1FAC6, 0x1FAC6, "So"}, {0x1FACE, 0x1FACF, "So"}, {0x1FADA, 0x1FADC, "So"}, {0x1FADF, 0x1FADF, "So"},
    {0x1FAE8, 0x1FAE9, "So"}, {0x1FAF7, 0x1FAF8, "So"}, {0x1FBCB, 0x1FBEF, "So"}, {0x2B739, 0x2B739, "Lo"},
    {0x2EBF0, 0x2EE5D, "Lo"}, {0x31350, 0x323AF, "Lo"}};

// CJK Unified Ideographs: one more of Extension C, Extensions I and H.
constexpr char32_t kFirstHan = 0x2B739;
constexpr char32_t kLastHan = 0x323AF;

bool Belongs(const NewerRange& range, std::string_view property) {
  const char group = range.category[0];
  if (property == "Han") {
    return range.first >= kFirstHan && range.last <= kLastHan;
  }
  if (property == "Alphabetic") {
    return group == 'L' || group == 'M';
  }
  if (property == "Word") {
    return group == 'L' || group == 'M' || range.category == "Nd";
  }
  return range.category.substr(0, property.size()) == property;
}

}  // namespace

std::string NewerCharactersOf(std::string_view property) {
  std::string content;
  for (const NewerRange& range : kNewer) {
    if (!property.empty() && Belongs(range, property)) {
      absl::StrAppend(&content, "\\x{", absl::Hex(static_cast<uint32_t>(range.first)), "}-\\x{",
                      absl::Hex(static_cast<uint32_t>(range.last)), "}");
    }
  }
  return content;
}

std::string_view NewerCategoryOf(char32_t code_point) {
  const auto* const range =
      std::lower_bound(std::begin(kNewer), std::end(kNewer), code_point,
                       [](const NewerRange& r, char32_t value) { return r.last < value; });
  const bool found = range != std::end(kNewer) && range->first <= code_point;
  return found ? range->category : std::string_view();
}

namespace {

// Printable bytes represent themselves; the other 68, in ascending order, are U+0100 and following.
constexpr bool IsPrintable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr char32_t kFirstOther = 0x100;
constexpr char32_t kEnd = 0x144;

constexpr std::array<char16_t, 256> MakeCharOfByte() {
  std::array<char16_t, 256> table{};
  char16_t next = kFirstOther;
  for (int byte = 0; byte < 256; ++byte) {
    table[byte] = IsPrintable(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return table;
}

constexpr std::array<char16_t, 256> kCharOfByte = MakeCharOfByte();

constexpr std::array<int16_t, kEnd> MakeByteOfChar() {
  std::array<int16_t, kEnd> table{};
  for (int16_t& entry : table) {
    entry = -1;
  }
  for (int byte = 0; byte < 256; ++byte) {
    table[kCharOfByte[byte]] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr std::array<int16_t, kEnd> kByteOfChar = MakeByteOfChar();

}  // namespace

void AppendByteAlphabet(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) {
    AppendUtf8(kCharOfByte[static_cast<uint8_t>(byte)], out);
  }
}

// A token with any character outside of the alphabet is an added token and represents its own text.
void AppendBytesOfToken(std::string_view token, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < token.size();) {
    const char32_t c = NextCodePoint(token, &i);
    if (c >= kEnd || kByteOfChar[c] < 0) {
      out->resize(before);
      out->append(token);
      return;
    }
    out->push_back(static_cast<char>(kByteOfChar[c]));
  }
}

}  // namespace sluice
