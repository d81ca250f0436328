// The checks against bugs that are known to be there: one that stops finding its bug, in any seed, is broken.
#include "tests/cuda_fake/tests/seeded_bugs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_split.h"
#include "kernels/reference/scalar.h"
#include "pack/row_layout.h"
#include "tests/cuda_fake/fake_cuda.h"

namespace sluice::cuda_fake {
namespace {

// Two rows of 257 quads: more than a block's threads. 33 groups, the last one short, and 9 rows for blocks of
// four.
constexpr uint32_t kNormRows = 2;
constexpr uint32_t kNormCols = 1028;
constexpr uint32_t kRows = 9;
constexpr uint32_t kCols = 2100;

std::vector<float> Expected(const SeededBug& bug, const std::vector<float>& x,
                            const std::vector<float>& weight, const std::vector<uint8_t>& rows,
                            uint64_t stride) {
  std::vector<float> y(bug.kernel == "norm" ? x.size() : kRows);
  if (bug.kernel == "norm") {
    CallNorm norm;
    norm.weight = weight.data();
    norm.epsilon = 1e-5f;
    for (uint32_t r = 0; r < kNormRows; ++r) {
      reference::NormRow(norm, &x[r * kNormCols], kNormCols, &y[r * kNormCols]);
    }
  } else {
    for (uint32_t r = 0; r < kRows; ++r) {
      y[r] = reference::Dot(MakeDescriptor(Encoding::kQ4), &rows[r * stride], x.data(), kCols);
    }
  }
  return y;
}

class SeededBugTest : public testing::TestWithParam<SeededBug> {};

TEST_P(SeededBugTest, IsFoundAndNamedInEverySeed) {
  const SeededBug& bug = GetParam();
  const bool is_norm = bug.kernel == "norm";
  const std::vector<float> x = RandomFloats(is_norm ? kNormRows * kNormCols : kCols, 3);
  const std::vector<float> weight = RandomFloats(kNormCols, 4);
  uint64_t stride = 0;
  const std::vector<uint8_t> rows = RandomQ4Rows(kRows, kCols, &stride, 5);
  const std::vector<float> expected = Expected(bug, x, weight, rows, stride);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    ResetFake({.seed = seed});
    const std::vector<float> y = is_norm ? RunRmsNorm(bug.entries, x, weight, kNormRows, 1e-5f)
                                         : RunGemvQ4(bug.entries, x, rows, kRows, stride);
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

INSTANTIATE_TEST_SUITE_P(All, SeededBugTest, testing::ValuesIn(SeededBugs()),
                         [](const testing::TestParamInfo<SeededBug>& info) { return info.param.name; });

}  // namespace
}  // namespace sluice::cuda_fake
