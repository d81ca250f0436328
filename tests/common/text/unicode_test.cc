#include "common/text/unicode.h"

#include <string>

#include "common/base/utf8.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

std::string Utf8(std::u32string_view points) {
  std::string text;
  for (const char32_t c : points) {
    AppendUtf8(c, &text);
  }
  return text;
}

TEST(Utf8Test, EachMaximalIllFormedPartBecomesOneReplacement) {
  const std::string r(kReplacementUtf8);
  EXPECT_EQ("a" + r + "b", ReplaceIllFormedUtf8("a\xE2\x82"
                                                "b"));                 // cut off
  EXPECT_EQ(r + r + "(", ReplaceIllFormedUtf8("\xC0\xAF("));           // overlong
  EXPECT_EQ(r + r + r, ReplaceIllFormedUtf8("\xED\xA0\x80"));          // surrogate
  EXPECT_EQ(r + r + r + r, ReplaceIllFormedUtf8("\xF4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_EQ(r + "\xC3\xA9" + r, ReplaceIllFormedUtf8("\xF0\x9F\x98\xC3\xA9\xF0"));
  EXPECT_EQ(std::string("\0z", 2), ReplaceIllFormedUtf8(std::string("\0z", 2)));
}

TEST(Utf8Test, WellFormedMeansUnchangedByReplacement) {
  for (const std::string& text :
       {std::string("plain ascii text"), Utf8(U"\u00E9\u4E2D\U0001F600"), std::string("\xF0\x9F"),
        std::string("12345678\xFF"), std::string("\xE0\x80\x80")}) {
    EXPECT_EQ(ReplaceIllFormedUtf8(text) == text, IsWellFormedUtf8(text));
  }
}

TEST(ByteAlphabetTest, EveryByteSurvivesTheWayThereAndBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
  }
  std::string spelt;
  AppendByteAlphabet(bytes, &spelt);
  EXPECT_TRUE(IsWellFormedUtf8(spelt));
  std::string back;
  AppendBytesOfToken(spelt, &back);
  EXPECT_EQ(bytes, back);
}

TEST(ByteAlphabetTest, TokenOutsideTheAlphabetIsTakenAsItIs) {
  std::string out;
  AppendBytesOfToken("a\xEF\xBD\x9C\xC4\xA0", &out);
  EXPECT_EQ("a\xEF\xBD\x9C\xC4\xA0", out);
}

TEST(UnicodeTest, FormsComposeAndDecompose) {
  EXPECT_EQ(Utf8(U"\u00E9"), Normalize(UnicodeForm::kNfc, Utf8(U"e\u0301")));
  EXPECT_EQ(Utf8(U"e\u0301"), Normalize(UnicodeForm::kNfd, Utf8(U"\u00E9")));
  EXPECT_EQ("fi", Normalize(UnicodeForm::kNfkc, Utf8(U"\uFB01")));
  EXPECT_EQ(Utf8(U"\uAC01"), Normalize(UnicodeForm::kNfc, Utf8(U"\u1100\u1161\u11A8")));
  EXPECT_EQ(Utf8(U"\u1E69"), Normalize(UnicodeForm::kNfc, Utf8(U"s\u0307\u0323")));
  EXPECT_EQ(Utf8(U"\u03A9"), Normalize(UnicodeForm::kNfc, Utf8(U"\u2126")));
}

TEST(UnicodeTest, CharactersNewerThanUnicode9StayAndSeparate) {
  // U+0D3B has combining class 9 since Unicode 10: it would reorder and let the accent through.
  const std::string text = Utf8(U"e\u0D3B\u0301");
  EXPECT_EQ(text, Normalize(UnicodeForm::kNfc, text));
}

TEST(UnicodeTest, LongRunsOfMarksAreOrderedInReasonableTime) {
  std::u32string points = U"a";
  std::u32string ordered = U"a";
  constexpr int kMarks = 200000;
  for (int i = 0; i < kMarks; ++i) {
    points += i % 2 == 0 ? U'\u0301' : U'\u0323';
  }
  ordered.append(kMarks / 2, U'\u0323').append(kMarks / 2, U'\u0301');
  EXPECT_EQ(Utf8(ordered), Normalize(UnicodeForm::kNfd, Utf8(points)));
}

TEST(UnicodeTest, LowercaseGoesCharacterByCharacter) {
  EXPECT_EQ(Utf8(U"abc\u00E9\u03C3i\u0307"), Lowercase(Utf8(U"AbC\u00C9\u03A3\u0130")));
}

TEST(UnicodeTest, PredicatesFollowRustsDefinitions) {
  EXPECT_TRUE(IsWhitespace(0x85) && IsWhitespace(0x3000) && !IsWhitespace(0x180E) && !IsWhitespace(0x200B));
  EXPECT_TRUE(IsNumeric(0xBD) && IsNumeric(0x2167) && IsNumeric(0x663) && !IsNumeric('a'));
  EXPECT_TRUE(IsPunctuation('$') && IsPunctuation(0x3001) && !IsPunctuation(0x20AC));
  EXPECT_TRUE(IsWordChar('_') && IsWordChar(0x4E2D) && IsWordChar(0x301) && IsWordChar(0x200D) &&
              !IsWordChar('-'));
}

}  // namespace
}  // namespace sluice
