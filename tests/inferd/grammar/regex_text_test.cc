// Rewritten regexes.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inferd/grammar/grammar_text.h"

namespace sluice::inferd {
namespace {

using testing::HasSubstr;

std::string Plain(const std::string& regex) { return RewriteRegex(regex, false).value_or("refused"); }
std::string InJson(const std::string& regex) { return RewriteRegex(regex, true).value_or("refused"); }

TEST(RegexTextTest, KeepsWhatARegexSays) {
  EXPECT_EQ(Plain("^ab|c?d+?(?<name>e)*(?:f){2}g{3,}h{4,5}$"), "ab|c?d+(?:e)*(?:f){2}g{3,}h{4,5}");
  EXPECT_EQ(Plain("()|"), "(?:)|");
  EXPECT_EQ(Plain("[a-cb-d]"), "[a-d]");
  EXPECT_EQ(Plain("[x]"), "x");
  EXPECT_EQ(Plain("\\x41\\u0042\\u{43}\\."), "ABC\\u{2e}");
  EXPECT_EQ(Plain("\\d[\\w-]"), "[0-9][\\u{2d}0-9A-Z\\u{5f}a-z]");
  EXPECT_EQ(Plain("[^\\x01-\\uffff]"), "[\\u{10000}-\\u{10ffff}]");
  EXPECT_EQ(Plain("."), "[\\u{1}-\\u{9}\\u{b}-\\u{d7ff}\\u{e000}-\\u{10ffff}]");
  EXPECT_EQ(Plain("é"), "\\u{e9}");
}

TEST(RegexTextTest, NeverBeginsAClassWithACircumflex) {
  EXPECT_EQ(Plain("[\\^x]"), "[x\\u{5e}]");
  EXPECT_EQ(Plain("[\\^-b]"), "[\\u{5f}-b\\u{5e}]");
  EXPECT_EQ(Plain("[\\^]"), "\\u{5e}");
}

TEST(RegexTextTest, KeepsToTheCharactersOfJsonStrings) {
  EXPECT_EQ(InJson("\"+"), "(?:\\u{5c}\\u{22})+");
  EXPECT_EQ(InJson("\\\\"), "(?:\\u{5c}\\u{5c})");
  EXPECT_EQ(InJson("\\n"), "(?:\\u{5c}u000a)");
  EXPECT_EQ(InJson("[!-#]"), "[\\u{21}\\u{23}]");
  EXPECT_EQ(InJson("\\s"), "[\\u{20}]");
  EXPECT_EQ(InJson("[\\n\\t]"), "refused");
}

TEST(RegexTextTest, RefusesByPlace) {
  for (const auto& [regex, place, what] : {
           std::tuple{"a(b", "byte 3", "( without"},
           std::tuple{"ab)", "byte 2", "unmatched"},
           std::tuple{"a[b", "byte 1", "[ without"},
           std::tuple{"[b-a]", "byte 4", "range"},
           std::tuple{"*a", "byte 0", "nothing to repeat"},
           std::tuple{"a+*", "byte 2", "of a repetition"},
           std::tuple{"a{3,2}", "byte 5", "less"},
           std::tuple{"a{,2}", "byte 2", "count"},
           std::tuple{"a{10001}", "", "above 10000"},
           std::tuple{"a{99999999999999999999}", "", "above"},
           std::tuple{"a^b", "byte 1", "beginning"},
           std::tuple{"a$b", "byte 1", "end"},
           std::tuple{"(?=a)", "byte 1", "look-around"},
           std::tuple{"(?<!a)", "byte 1", "look-around"},
           std::tuple{"(?i)a", "byte 1", "flags"},
           std::tuple{"(?<a", "byte 1", "name"},
           std::tuple{"a\\b", "byte 2", "\\b"},
           std::tuple{"(a)\\1", "byte 4", "\\1"},
           std::tuple{"\\p{L}", "byte 1", "\\p"},
           std::tuple{"\\", "byte 1", "at the end"},
           std::tuple{"\\xz", "byte 2", "escape"},
           std::tuple{"\\u{110000}", "", "escape"},
           std::tuple{"\\u{0}", "", "escape"},
           std::tuple{"[]", "byte 2", "class"},
       }) {
    const absl::Status status = RewriteRegex(regex, false).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << regex;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr(place), HasSubstr(what))) << regex;
  }
  const std::string deep = std::string(201, '(') + "a" + std::string(201, ')');
  EXPECT_THAT(std::string(RewriteRegex(deep, false).status().message()), HasSubstr("200"));
}

}  // namespace
}  // namespace sluice::inferd
