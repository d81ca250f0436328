#include "common/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "common/text/utf8.h"

namespace sluice {
namespace {

utf8proc_category_t CategoryOf(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

int CombiningClass(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// Letters by property Other_Alphabetic whose category is So: circled and squared Latin letters.
bool IsAlphabeticSymbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

// True where the form leaves any text of such characters as it is: below U+0300 nothing composes or reorders
// canonically, and ASCII has no decomposition of any kind.
bool IsUnchangedBy(UnicodeForm form, std::string_view text) {
  // Lead bytes up to 0xCB begin characters up to U+02FF.
  const uint8_t limit = form == UnicodeForm::kNfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [limit](char c) { return static_cast<uint8_t>(c) < limit; });
}

// utf8proc's own reordering is a bubble sort, quadratic in the length of a run of marks.
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
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
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
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D || IsAlphabeticSymbol(c);
}

std::string Normalize(UnicodeForm form, std::string_view text) {
  if (IsUnchangedBy(form, text)) {
    return std::string(text);
  }
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const auto decompose_options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                                (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const char32_t c = NextCodePoint(text, &i);
    // The longest decomposition in Unicode has 18 code points.
    utf8proc_int32_t parts[32];
    int last_boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32,
                                                       decompose_options, &last_boundary);
    if (n > 0 && n <= 32) {
      points.insert(points.end(), parts, parts + n);
    } else {
      points.push_back(static_cast<utf8proc_int32_t>(c));
    }
  }
  SortMarks(&points);
  auto length = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    length = utf8proc_normalize_utf32(points.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    AppendUtf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), &out);
  }
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
      out.append("i\xCC\x87");  // U+0130 is the one character whose lower case has two code points
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), &out);
    }
  }
  return out;
}

}  // namespace sluice
