#include "common/text/regex.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// Returns the matches of `pattern` in `text`, joined by "|", or the error's text.
std::string Matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  if (!regex.ok()) {
    return std::string(regex.status().message());
  }
  RegexScratch scratch;
  std::vector<ByteRange> matches;
  if (const absl::Status status = (*regex)->FindAll(text, &scratch, &matches); !status.ok()) {
    return std::string(status.message());
  }
  std::string joined;
  for (const ByteRange& match : matches) {
    joined += (&match == matches.data() ? "" : "|") + text.substr(match.begin, match.end - match.begin);
  }
  return joined;
}

TEST(RegexTest, SpaceExcludesMongolianVowelSeparator) {
  EXPECT_EQ("\xC2\x85|\xE3\x80\x80", Matches("\\s", "a\xC2\x85z\xE1\xA0\x8E\xE3\x80\x80"));
  EXPECT_EQ("\xE1\xA0\x8E", Matches("\\S", "\t\xE1\xA0\x8E\n"));
}

TEST(RegexTest, CaselessContractionTakesLongS) {
  EXPECT_EQ("'\xC5\xBF|'LL", Matches("(?i:'s|'ll)", "it'\xC5\xBF we'LL"));
}

TEST(RegexTest, DollarMatchesAtEveryLineEnd) { EXPECT_EQ("  |\t", Matches("\\s+$", "a  \nb \tc\t")); }

TEST(RegexTest, TrailingSpacePatternIsLinear) {
  const std::string run(1 << 20, ' ');
  EXPECT_EQ("", Matches("\\s+$", run + "x"));
  EXPECT_EQ(run, Matches("\\s+$", "x" + run));
  EXPECT_EQ("  ", Matches("\\s+$", "  \n  x"));
}

TEST(RegexTest, IntervalFollowedByPlusRepeatsTheWhole) {
  EXPECT_EQ("1234567", Matches("\\d{1,3}+", "1234567"));
  EXPECT_EQ("abab", Matches("(?:ab){1}+", "ababa"));
  EXPECT_EQ("aaa", Matches("a{2,}", "aaa"));
  EXPECT_EQ("a{x}", Matches("a{x}", "a{x}"));
}

TEST(RegexTest, PossessiveAndLazyRepeatsKeepTheirMeaning) {
  EXPECT_EQ("", Matches("a++a", "aaa"));
  EXPECT_EQ("a|a", Matches("a+?", "aa"));
  EXPECT_EQ("aa|a", Matches("a{1,2}", "aaa"));
}

TEST(RegexTest, ClassesIntersectNestAndExclude) {
  EXPECT_EQ("b|c", Matches("[a-z&&[^aeiou]]", "abce"));
  EXPECT_EQ("ab|\xD1\x8F", Matches("[\\p{L}&&[^\\p{Han}]]+", "ab\xE4\xB8\xAD\xD1\x8F"));
  EXPECT_EQ("d", Matches("[^a[bc]]", "abcd"));
  EXPECT_EQ("-|1", Matches("[\\d-]", "a-1"));
  EXPECT_EQ("a|_", Matches("[^\\W\\d]", "a1_-"));
}

TEST(RegexTest, HexAndVerticalTabAreOnigurumas) {
  EXPECT_EQ("f|0", Matches("\\h", "fg0"));
  EXPECT_EQ("\v", Matches("\\v", "a\nb\v"));
}

TEST(RegexTest, NewerCharactersHaveTheirUnicode16Category) {
  EXPECT_EQ("\xF0\xB1\x8D\x90", Matches("\\p{L}", "\xF0\xB1\x8D\x90"));  // U+31350, Han Extension H
  EXPECT_EQ("\xF0\x9F\xAB\xA9", Matches("[\\p{P}\\p{S}]+",
                                        "a\xF0\x9F\xAB\xA9"
                                        "b"));  // U+1FAE9, an emoji
  EXPECT_EQ("a|b", Matches("[^\\p{S}]",
                           "a\xF0\x9F\xAB\xA9"
                           "b"));
}

TEST(RegexTest, ScriptsAreExactNotExtended) {
  EXPECT_EQ("\xE4\xB8\x80", Matches("\\p{Han}", "\xE4\xB8\x80\xE3\x80\x81"));  // not U+3001
}

TEST(RegexTest, EmptyMatchesBehindAMatchDoNotCount) {
  const auto regex = Regex::Compile("x*");
  ASSERT_TRUE(regex.ok()) << regex.status();
  RegexScratch scratch;
  std::vector<ByteRange> matches;
  ASSERT_TRUE((*regex)->FindAll("axxb", &scratch, &matches).ok());
  std::string found;
  for (const ByteRange& match : matches) {
    found += std::to_string(match.begin) + "-" + std::to_string(match.end) + " ";
  }
  EXPECT_EQ("0-0 1-3 4-4 ", found);
}

TEST(RegexTest, LookbehindDoesNotSeeBeforeTheText) { EXPECT_EQ("b", Matches("(?<!a)b", "bab")); }

TEST(RegexTest, UnsupportedConstructsAreRefusedByName) {
  for (const char* pattern : {"(*SKIP)a", "(a)\\1", "[[:alpha:]]", "\\X", "(?<name>a)", "(?P<n>a)", "\\p{Lx}",
                              "\\Kb", "a(?i)b|c", "(?x: a)", "\\xff", "\\pL", "(?~a)"}) {
    const auto translated = TranslateRegex(pattern);
    EXPECT_EQ(absl::StatusCode::kUnimplemented, translated.status().code())
        << pattern << " " << translated.status();
  }
  EXPECT_NE(std::string::npos, Matches("[[:alpha:]]", "a").find("POSIX bracket"));
}

TEST(RegexTest, UnfinishedPatternsAreInvalid) {
  for (const char* pattern : {"(a", "a)", "[a", "\\", "[\\", "\\x{110000}", "\\x{d800}", "\\u12", "(?i",
                              "\\p{NoScript}", "a**", "[b-a]"}) {
    EXPECT_FALSE(Regex::Compile(pattern).ok()) << pattern;
  }
}

TEST(RegexTest, RunawayBacktrackingEndsInAnError) {
  EXPECT_NE(std::string::npos,
            Matches("(?:a|aa)+$|(?:(?:a+)+b)+c", std::string(64, 'a') + "!").find("limit"));
}

}  // namespace
}  // namespace sluice
