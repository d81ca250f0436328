#include "common/text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "common/text/unicode/newer_unicode.h"
#include "common/text/unicode/utf8.h"

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

}  // namespace sluice
