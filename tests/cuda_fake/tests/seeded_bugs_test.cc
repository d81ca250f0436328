// The checks against bugs that are known to be there: one that stops finding its bug, in any seed, is broken.
#include "tests/cuda_fake/tests/seeded_bugs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/str_split.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::cuda_fake {
namespace {

// Two rows of 257 quads: more than a block's threads. 33 groups, the last one short, and 9 rows for blocks of
// four; tiles with rows and tokens to spare, of two chunks of columns; a span and a part of one, a page and a
// part of one; more blocks of neurons than are added up at once, the last one short.
constexpr uint32_t kNormRows = 2;
constexpr uint32_t kNormCols = 1028;
constexpr uint32_t kRows = 9;
constexpr uint32_t kCols = 2100;
constexpr uint32_t kTileTokens = 18;
constexpr uint32_t kTileCols = 612;
constexpr uint32_t kPositions = 300;
constexpr uint32_t kNeurons = 2090;
constexpr uint32_t kHidden = 160;

std::vector<SeededBug> AllBugs() {
  std::vector<SeededBug> bugs;
  for (const auto add : {AddBugsOf_norm, AddBugsOf_round, AddBugsOf_gemv, AddBugsOf_tiles,
                         AddBugsOf_attention, AddBugsOf_coefficients, AddBugsOf_down}) {
    add(&bugs);
  }
  return bugs;
}

// Returns the kernel's result for its case.
std::vector<float> ResultOf(const std::string& kernel, const KernelEntries& entries) {
  uint64_t stride = 0;
  if (kernel == "norm") {
    return RunRmsNorm(entries, RandomFloats(kNormRows * kNormCols, 3), RandomFloats(kNormCols, 4), kNormRows,
                      1e-5f);
  }
  if (kernel == "tiles") {
    const std::vector<uint8_t> rows = RandomQ4Rows(kRows, kTileCols, &stride, 5);
    return RunTilesQ4(entries, RandomFloats(kTileTokens * kTileCols, 3), kTileTokens, rows, kRows, stride);
  }
  if (kernel == "attention") {
    return RunAttentionF16(entries, kPositions);
  }
  if (kernel == "coefficients" || kernel == "down") {
    return RunExpertQ4(entries, RandomFloats(kHidden, 3), kNeurons);
  }
  const std::vector<uint8_t> rows = RandomQ4Rows(kRows, kCols, &stride, 5);
  return RunGemvQ4(entries, RandomFloats(kCols, 3), rows, kRows, stride);
}

// The same of the kernels as they are, which the operations' tests hold against the reference.
const std::vector<float>& Expected(const std::string& kernel) {
  static auto* const all = new std::map<std::string, std::vector<float>>;
  std::vector<float>& expected = (*all)[kernel];
  if (expected.empty()) {
    ResetFake({});
    expected = ResultOf(kernel, {});
    EXPECT_TRUE(TakeReports().empty());
  }
  return expected;
}

class SeededBugTest : public testing::TestWithParam<SeededBug> {};

TEST_P(SeededBugTest, IsFoundAndNamedInEverySeed) {
  const SeededBug& bug = GetParam();
  const std::vector<float>& expected = Expected(bug.kernel);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    ResetFake({.seed = seed});
    const std::vector<float> y = ResultOf(bug.kernel, bug.entries);
    const bool right =
        y.size() == expected.size() && std::memcmp(y.data(), expected.data(), 4 * y.size()) == 0;
    const std::vector<Report> reports = TakeReports();
    if (bug.findings.empty() || bug.findings == "wrong") {
      EXPECT_TRUE(reports.empty()) << "seed " << seed;
      EXPECT_EQ(right, bug.findings.empty()) << "seed " << seed;
      continue;
    }
    ASSERT_FALSE(reports.empty()) << "seed " << seed;
    const std::vector<std::string> findings = absl::StrSplit(bug.findings, '|');
    EXPECT_TRUE(std::find(findings.begin(), findings.end(), std::string(Name(reports[0].finding))) !=
                findings.end())
        << "seed " << seed << ": " << reports[0].text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, SeededBugTest, testing::ValuesIn(AllBugs()),
                         [](const testing::TestParamInfo<SeededBug>& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::cuda_fake
