#include "common/text/unicode/regex_sets.h"

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/text/unicode/newer_unicode.h"

namespace sluice {
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

}  // namespace sluice
