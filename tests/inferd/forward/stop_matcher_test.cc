#include <algorithm>
#include <random>

#include "gtest/gtest.h"
#include "inferd/forward/sequence.h"

namespace sluice::inferd {
namespace {

struct Outcome {
  std::string text;
  int matched = -1;
};

Outcome RunPieces(StopMatcher& matcher, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    if (matcher.Push(piece, &outcome.text)) {
      outcome.matched = matcher.matched();
      return outcome;
    }
  }
  matcher.Flush(&outcome.text);
  return outcome;
}

TEST(StopMatcherTest, WithoutStopsTextPassesAtOnce) {
  StopMatcher matcher({}, false);
  std::string out;
  EXPECT_FALSE(matcher.Push("hello", &out));
  EXPECT_EQ(out, "hello");
}

TEST(StopMatcherTest, HoldsBackPossibleStops) {
  StopMatcher matcher({"END"}, false);
  std::string out;
  EXPECT_FALSE(matcher.Push("the E", &out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(matcher.Push("N", &out));
  EXPECT_EQ(out, "the ");
  EXPECT_FALSE(matcher.Push("E", &out));
  EXPECT_EQ(out, "the EN");
  EXPECT_TRUE(matcher.Push("ND and more", &out));
  EXPECT_EQ(out, "the EN");
  EXPECT_EQ(matcher.matched(), 0);
}

TEST(StopMatcherTest, FlushReleasesHeldText) {
  StopMatcher matcher({"END"}, false);
  std::string out;
  matcher.Push("EN", &out);
  EXPECT_EQ(out, "");
  matcher.Flush(&out);
  EXPECT_EQ(out, "EN");
}

TEST(StopMatcherTest, StopIsIncludedOnRequest) {
  StopMatcher matcher({"\n\n"}, true);
  EXPECT_EQ(RunPieces(matcher, {"a\n", "b\n", "\nc"}).text, "a\nb\n\n");
}

TEST(StopMatcherTest, EarliestThenLongestStopWins) {
  StopMatcher shorter({"abcd", "bc"}, false);
  const Outcome first = RunPieces(shorter, {"xabcd"});
  EXPECT_EQ(first.matched, 1);
  EXPECT_EQ(first.text, "xa");
  StopMatcher same_end({"c", "bc", "abc"}, false);
  const Outcome longest = RunPieces(same_end, {"xabc"});
  EXPECT_EQ(longest.matched, 2);
  EXPECT_EQ(longest.text, "x");
}

TEST(StopMatcherTest, RepeatingPatternsAreFoundThroughTheirBorders) {
  StopMatcher matcher({"aab"}, false);
  const Outcome outcome = RunPieces(matcher, {"a", "a", "a", "b"});
  EXPECT_EQ(outcome.matched, 0);
  EXPECT_EQ(outcome.text, "a");
}

// The definition, by brute force over the whole text.
Outcome Definition(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (end >= stops[i].size() && text.compare(end - stops[i].size(), stops[i].size(), stops[i]) == 0 &&
          (best < 0 || stops[i].size() > stops[best].size())) {
        best = static_cast<int>(i);
      }
    }
    if (best >= 0) {
      return {text.substr(0, end - stops[best].size()), best};
    }
  }
  return {text, -1};
}

TEST(StopMatcherTest, MatchesTheDefinitionForAnySplit) {
  std::mt19937 random(11);
  int matches = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (uint32_t i = 0; i < 1 + random() % 3; ++i) {
      std::string stop;
      for (uint32_t k = 0; k < 1 + random() % 5; ++k) {
        stop.push_back(static_cast<char>('a' + random() % 3));
      }
      stops.push_back(stop);
    }
    std::string text;
    for (uint32_t k = 0; k < random() % 30; ++k) {
      text.push_back(static_cast<char>('a' + random() % 3));
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 6;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    StopMatcher matcher(stops, false);
    const Outcome got = RunPieces(matcher, pieces);
    const Outcome want = Definition(text, stops);
    ASSERT_EQ(got.matched, want.matched) << text;
    ASSERT_EQ(got.text, want.text) << text;
    matches += want.matched >= 0;
  }
  EXPECT_GT(matches, 1000);
  EXPECT_LT(matches, 4900);
}

TEST(StopMatcherTest, NoPartOfAStopIsSent) {
  const std::string stop = "stopword";
  const std::string text = "a stopwor stopw stopword";
  StopMatcher matcher({stop}, false);
  std::string out;
  for (const char byte : text) {
    matcher.Push(std::string(1, byte), &out);
    const size_t longest_suffix_that_is_a_prefix = [&] {
      for (size_t n = std::min(stop.size() - 1, out.size()); n > 0; --n) {
        if (out.compare(out.size() - n, n, stop, 0, n) == 0) {
          return n;
        }
      }
      return size_t{0};
    }();
    EXPECT_EQ(longest_suffix_that_is_a_prefix, 0u) << out;
  }
  EXPECT_EQ(out, "a stopwor stopw ");
}

}  // namespace
}  // namespace sluice::inferd
