// Tests what the interpreter's checks find in hand-written PTX, and what they must not find.
#include <gtest/gtest.h>

#include "tests/cuda_fake/tests/ptx_testing.h"

namespace sluice::cuda_fake {
namespace {

// %r10: tid; %x10: data; %x11: data + 4 tid; %r11: buffer + 4 tid.
constexpr char kPlaces[] =
    "ld.param.u64 %x10, [data];\nmov.u32 %r10, %tid.x;\nmad.wide.u32 %x11, %r10, 4, %x10;\n"
    "shl.b32 %r12, %r10, 2;\nmov.u32 %r13, buffer;\nadd.u32 %r11, %r13, %r12;\n";

PtxRun RunPlaced(const std::string& body, const PtxShape& shape = {}) {
  std::vector<uint32_t> data(64);
  return RunPtx(kPlaces + body, shape, &data);
}

// The same finding, alone, in every seed.
void ExpectFinding(const std::string& body, uint32_t threads, Finding finding, Fault fault = Fault::kNone) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const PtxRun run = RunPlaced(body, {.threads = threads, .seed = seed});
    EXPECT_EQ(run.error, "");
    ASSERT_FALSE(run.reports.empty()) << body << "seed " << seed;
    EXPECT_EQ(run.reports[0].finding, finding) << body << run.reports[0].text;
    EXPECT_EQ(run.fault, fault);
  }
}

void ExpectSilence(const std::string& body, uint32_t threads) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const PtxRun run = RunPlaced(body, {.threads = threads, .seed = seed});
    EXPECT_EQ(run.error, "");
    EXPECT_EQ(run.fault, Fault::kNone);
    EXPECT_TRUE(run.reports.empty()) << body << run.reports[0].text;
  }
}

constexpr char kWriteOwn[] = "st.shared.u32 [%r11], %r10;\n";
constexpr char kReadNext[] =
    "xor.b32 %r14, %r12, 128;\nadd.u32 %r14, %r14, %r13;\nld.shared.u32 %r15, [%r14];\n";
constexpr char kReadNeighbour[] =
    "xor.b32 %r14, %r12, 4;\nadd.u32 %r14, %r14, %r13;\nld.shared.u32 %r15, [%r14];\n";

TEST(CheckTest, ReadAfterWriteNeedsABarrier) {
  ExpectSilence(std::string(kWriteOwn) + "bar.sync 0;\n" + kReadNext, 64);
  ExpectFinding("mov.b32 %r15, 0;\n" + std::string(kWriteOwn) + kReadNeighbour, 64, Finding::kRace);
  for (const uint64_t seed : {0, 1, 2, 3}) {
    // Between warps a read may also come first: then it is of bytes that nothing has written.
    const PtxRun run = RunPlaced(std::string(kWriteOwn) + kReadNext, {.threads = 64, .seed = seed});
    EXPECT_FALSE(run.reports.empty());
  }
}

TEST(CheckTest, WriteAfterReadNeedsABarrier) {
  const std::string begin = std::string(kWriteOwn) + "bar.sync 0;\n" + kReadNext;
  ExpectFinding(begin + kWriteOwn, 64, Finding::kRace);
  ExpectSilence(begin + "bar.sync 0;\n" + kWriteOwn, 64);
}

TEST(CheckTest, AWarpIsOrderedBySyncwarpAlone) {
  ExpectFinding(std::string(kWriteOwn) + kReadNeighbour, 32, Finding::kRace);
  ExpectSilence(std::string(kWriteOwn) + "bar.warp.sync -1;\n" + kReadNeighbour, 32);
  ExpectFinding(std::string(kWriteOwn) + "shfl.sync.bfly.b32 %r20, %r10, 1, 31, -1;\n" + kReadNeighbour, 32,
                Finding::kRace);
}

// Bytes of one word are read by some lanes before a __syncwarp, and others of them by all behind it.
TEST(CheckTest, BytesOfAWordAreWatchedOneByOne) {
  const std::string read = "xor.b32 %r17, %r10, 1;\nadd.u32 %r17, %r17, %r13;\nld.shared.u8 %r18, [%r17];\n";
  const std::string write =
      "or.b32 %r19, %r10, 3;\nadd.u32 %r19, %r19, %r13;\nld.shared.u8 %r18, [%r19];\n"
      "and.b32 %r20, %r10, 3;\nsetp.eq.u32 %p0, %r20, 0;\n@%p0 st.shared.u8 [%r16], %r10;\n";
  const std::string begin = "add.u32 %r16, %r13, %r10;\nst.shared.u8 [%r16], %r10;\nbar.warp.sync -1;\n";
  ExpectSilence(begin + read + "bar.warp.sync -1;\n" + write, 32);
  ExpectFinding(begin + read + write, 32, Finding::kRace);
}

TEST(CheckTest, UninitialisedSharedMemoryIsNotRead) {
  ExpectFinding("ld.shared.u32 %r15, [%r11];\n", 32, Finding::kUninitialised);
}

TEST(CheckTest, AccessesStayInBounds) {
  ExpectSilence("ld.global.u32 %r15, [%x11+128];\n", 32);
  ExpectFinding("ld.global.u32 %r15, [%x11+132];\n", 32, Finding::kOutOfBounds, Fault::kIllegalAddress);
  ExpectFinding("st.global.u32 [%x11+-4], %r10;\n", 32, Finding::kOutOfBounds, Fault::kIllegalAddress);
  ExpectFinding("st.shared.u32 [%r11+4], %r10;\n", 64, Finding::kOutOfBounds, Fault::kIllegalAddress);
  ExpectFinding("mov.u32 %r14, 0;\nst.shared.u32 [%r14], %r10;\n", 1, Finding::kOutOfBounds,
                Fault::kIllegalAddress);
}

TEST(CheckTest, AccessesAreAlignedToTheirWholeSize) {
  ExpectSilence("ld.global.v4.u32 {%r14, %r15, %r16, %r17}, [%x10];\n", 1);
  ExpectFinding("ld.global.v4.u32 {%r14, %r15, %r16, %r17}, [%x10+8];\n", 1, Finding::kMisaligned,
                Fault::kMisaligned);
  ExpectFinding("ld.global.u32 %r14, [%x10+2];\n", 1, Finding::kMisaligned, Fault::kMisaligned);
}

TEST(CheckTest, EveryThreadReachesABarrier) {
  ExpectFinding("setp.gt.u32 %p0, %r10, 40;\n@%p0 ret;\nbar.sync 0;\n", 64, Finding::kBarrier);
  ExpectFinding(
      "setp.gt.u32 %p0, %r10, 40;\n@%p0 bra ELSE;\nbar.sync 0;\nbra END;\nELSE:\nbar.sync 0;\nEND:\n", 64,
      Finding::kBarrier, Fault::kLaunchFailure);
  ExpectSilence("setp.gt.u32 %p0, %r10, 40;\n@%p0 bra END;\nadd.u32 %r14, %r10, 1;\nEND:\nbar.sync 0;\n", 64);
}

TEST(CheckTest, WarpInstructionsNeedTheLanesOfTheirMask) {
  const std::string half = "setp.gt.u32 %p0, %r10, 15;\n@%p0 bra END;\n";
  ExpectFinding(half + "shfl.sync.bfly.b32 %r20, %r10, 1, 31, -1;\nEND:\nbar.sync 0;\n", 32, Finding::kMask,
                Fault::kLaunchFailure);
  ExpectSilence(half + "shfl.sync.bfly.b32 %r20, %r10, 1, 31, 0xffff;\nEND:\nbar.sync 0;\n", 32);
  ExpectFinding("shfl.sync.bfly.b32 %r20, %r10, 1, 31, 0xffff;\n", 32, Finding::kMask);
  // Lanes of a mask that have ended are not waited for; to read from them is an error.
  ExpectFinding("setp.gt.u32 %p0, %r10, 15;\n@%p0 ret;\nshfl.sync.bfly.b32 %r20, %r10, 16, 31, -1;\n", 32,
                Finding::kMask);
}

TEST(CheckTest, CopiesLandWhenTheyAreWaitedFor) {
  const std::string copy = "cp.async.ca.shared.global [%r11], [%x11], 4;\ncp.async.commit_group;\n";
  ExpectSilence(copy + "cp.async.wait_group 0;\nld.shared.u32 %r15, [%r11];\n", 32);
  ExpectFinding(copy + "ld.shared.u32 %r15, [%r11];\ncp.async.wait_group 0;\n", 32, Finding::kUninitialised);
  ExpectFinding(copy + "cp.async.wait_group 1;\n", 32, Finding::kCopyInFlight);
  ExpectSilence(copy + "cp.async.wait_all;\nbar.sync 0;\n" + kReadNext, 64);
  ExpectFinding(copy + "cp.async.wait_all;\n" + kReadNeighbour, 32, Finding::kRace);
}

TEST(CheckTest, BlocksOfALaunchShareByAtomicsOnly) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const PtxShape shape{.blocks = 3, .threads = 32, .seed = seed};
    EXPECT_TRUE(RunPlaced("atom.global.add.u32 %r14, [%x10], 1;\nred.global.max.u32 [%x10+4], %r10;\n", shape)
                    .reports.empty());
    const PtxRun run = RunPlaced("st.global.u32 [%x11], %r10;\n", shape);
    ASSERT_FALSE(run.reports.empty());
    EXPECT_EQ(run.reports[0].finding, Finding::kRace);
  }
}

TEST(CheckTest, ABlockThatDoesNotEndIsStopped) {
  const PtxRun run = RunPlaced("AGAIN:\nbra AGAIN;\n");
  ASSERT_EQ(run.reports.size(), 1u);
  EXPECT_EQ(run.reports[0].finding, Finding::kNoEnd);
}

TEST(CheckTest, WarpOperationsComputeWhatTheManualSays) {
  std::vector<uint32_t> data(64);
  const PtxRun run = RunPtx(std::string(kPlaces) +
                                "shfl.sync.down.b32 %r20|%p0, %r10, 4, 31, -1;\n"
                                "selp.b32 %r21, 100, 0, %p0;\nadd.u32 %r20, %r20, %r21;\n"
                                "shfl.sync.up.b32 %r22|%p0, %r10, 1, 0, -1;\n"
                                "shl.b32 %r22, %r22, 8;\nor.b32 %r20, %r20, %r22;\n"
                                "setp.gt.u32 %p1, %r10, 29;\nvote.sync.ballot.b32 %r23, %p1, -1;\n"
                                "shr.u32 %r23, %r23, 30;\nshl.b32 %r23, %r23, 16;\nor.b32 %r20, %r20, %r23;\n"
                                "st.global.u32 [%x11], %r20;\n",
                            {}, &data);
  EXPECT_EQ(run.error, "");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t down = lane + 4 < 32 ? lane + 4 + 100 : lane;
    EXPECT_EQ(data[lane], down | (lane == 0 ? 0 : lane - 1) << 8 | 3 << 16);
  }
}

}  // namespace
}  // namespace sluice::cuda_fake
