// Products of small matrices by a warp against host arithmetic.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_format.h"
#include "tests/cuda_fake/tests/ptx_testing.h"

namespace sluice::cuda_fake {
namespace {

// Words of a lane: its registers of A, B, C, and of the result.
constexpr int kLaneWords = 14;
constexpr int kRight = 4;
constexpr int kSums = 6;
constexpr int kResults = 10;

struct MmaCase {
  bool large;
  bool left_signed;
};

std::string BodyOf(const MmaCase& test, const char* before) {
  const char* const type = test.left_signed ? "s8" : "u8";
  std::string body = absl::StrFormat(
      "ld.param.u64 %%x1, [data];\nmov.u32 %%r0, %%tid.x;\nmad.wide.u32 %%x0, %%r0, %d, %%x1;\n",
      4 * kLaneWords);
  for (int i = 0; i < kResults; ++i) {
    absl::StrAppendFormat(&body, "ld.global.u32 %%r1%d, [%%x0+%d];\n", i, 4 * i);
  }
  body += before;
  if (test.large) {
    absl::StrAppendFormat(&body,
                          "mma.sync.aligned.m16n8k32.row.col.s32.%s.s8.s32 {%%r20, %%r21, %%r22, %%r23}, "
                          "{%%r10, %%r11, %%r12, %%r13}, {%%r14, %%r15}, {%%r16, %%r17, %%r18, %%r19};\n",
                          type);
  } else {
    absl::StrAppendFormat(&body,
                          "mma.sync.aligned.m8n8k16.row.col.s32.%s.s8.s32 {%%r20, %%r21}, {%%r10}, {%%r14}, "
                          "{%%r16, %%r17};\n",
                          type);
  }
  for (int i = 0; i < (test.large ? 4 : 2); ++i) {
    absl::StrAppendFormat(&body, "st.global.u32 [%%x0+%d], %%r2%d;\n", 4 * (kResults + i), i);
  }
  return body;
}

std::vector<uint32_t> SomeWords(uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::vector<uint32_t> words(32 * kLaneWords);
  for (uint32_t& word : words) {
    word = random();
  }
  return words;
}

int Byte(uint32_t word, int i, bool is_signed) {
  const auto byte = static_cast<uint8_t>(word >> (8 * i));
  return is_signed ? static_cast<int8_t>(byte) : byte;
}

// Element (row, k) of A and (k, column) of B, as the manual's tables place them.
int Left(const std::vector<uint32_t>& words, int row, int k, bool is_signed) {
  const int lane = row % 8 * 4 + k % 16 / 4;
  return Byte(words[lane * kLaneWords + row / 8 + k / 16 * 2], k % 4, is_signed);
}
int Right(const std::vector<uint32_t>& words, int k, int column) {
  const int lane = column * 4 + k % 16 / 4;
  return Byte(words[lane * kLaneWords + kRight + k / 16], k % 4, true);
}

TEST(MatrixTest, MmaOfBytesIsTheHostsProduct) {
  for (const MmaCase& test : {MmaCase{true, false}, {true, true}, {false, false}, {false, true}}) {
    const std::vector<uint32_t> before = SomeWords(test.large ? 1 : 2);
    std::vector<uint32_t> after = before;
    const PtxRun run = RunPtx(BodyOf(test, ""), {}, &after);
    ASSERT_EQ(run.error, "");
    EXPECT_TRUE(run.reports.empty());
    const int depth = test.large ? 32 : 16;
    for (int row = 0; row < (test.large ? 16 : 8); ++row) {
      for (int column = 0; column < 8; ++column) {
        const int at = (row % 8 * 4 + column / 2) * kLaneWords + row / 8 * 2 + column % 2;
        uint32_t sum = before[at + kSums];
        for (int k = 0; k < depth; ++k) {
          sum += static_cast<uint32_t>(Left(before, row, k, test.left_signed) * Right(before, k, column));
        }
        EXPECT_EQ(after[at + kResults], sum) << "row " << row << ", column " << column << ", depth " << depth;
      }
    }
  }
}

TEST(MatrixTest, MmaWithoutAllLanesIsReported) {
  std::vector<uint32_t> words = SomeWords(3);
  const PtxRun run = RunPtx(BodyOf({true, false}, "setp.gt.u32 %p0, %r0, 20;\n@%p0 ret;\n"), {}, &words);
  ASSERT_EQ(run.error, "");
  ASSERT_FALSE(run.reports.empty());
  EXPECT_EQ(run.reports[0].finding, Finding::kMask);
}

}  // namespace
}  // namespace sluice::cuda_fake
