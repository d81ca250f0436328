#include "cli/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiB = 1ull << 30;

// Every fault has a verdict and says what helps.
void ExpectVerdict(const Finding& finding, Verdict verdict, const char* word) {
  EXPECT_EQ(finding.verdict, verdict) << finding.message;
  EXPECT_THAT(finding.message, HasSubstr(word));
  EXPECT_EQ(finding.fix.empty(), verdict == Verdict::kPass);
}

CpuFacts GoodCpu() {
  CpuFacts cpu;
  cpu.avx2 = cpu.fma = true;
  cpu.cpus = 2;
  return cpu;
}

TEST(DoctorTest, CpuWithoutAvx2Fails) {
  ExpectVerdict(CheckCpu(GoodCpu()), Verdict::kPass, "2 CPUs with AVX2");
  CpuFacts cpu = GoodCpu();
  cpu.avx2 = false;
  ExpectVerdict(CheckCpu(cpu), Verdict::kFail, "AVX2");
}

TEST(DoctorTest, BudgetAboveFreeMemoryFailsAndLargePackWarns) {
  MemoryFacts memory;
  memory.total = 64 * kGiB;
  memory.available = 32 * kGiB;
  ExpectVerdict(CheckMemory(memory, 16 * kGiB, 16 * kGiB), Verdict::kPass, "32.0 GiB of 64.0 GiB");
  ExpectVerdict(CheckMemory(memory, 33 * kGiB, 0), Verdict::kFail, "33.0 GiB");
  ExpectVerdict(CheckMemory(memory, std::nullopt, 30 * kGiB), Verdict::kWarn, "do not fit");
}

TEST(DoctorTest, CgroupLimitCountsBesideFreeMemory) {
  MemoryFacts memory;
  memory.total = 64 * kGiB;
  memory.available = 32 * kGiB;
  memory.cgroup_limit = 8 * kGiB;
  memory.cgroup_used = 6 * kGiB;
  ExpectVerdict(CheckMemory(memory, 3 * kGiB, 0), Verdict::kFail, "2.0 GiB left of the cgroup's 8.0 GiB");
  memory.cgroup_used = 9 * kGiB;
  ExpectVerdict(CheckMemory(memory, 1, 0), Verdict::kFail, "0 B left");
}

TEST(DoctorTest, GpusThatCannotBeUsedWarnAndNoGpuIsFine) {
  GpuFacts gpus;
  ExpectVerdict(CheckGpu(gpus), Verdict::kPass, "no NVIDIA GPU");
  gpus.on_the_bus = 2;
  gpus.driver_error = "libcuda.so.1: cannot open";
  ExpectVerdict(CheckGpu(gpus), Verdict::kWarn, "2 NVIDIA GPUs on the bus, and no driver");
  gpus.driver = true;
  ExpectVerdict(CheckGpu(gpus), Verdict::kWarn, "lists no GPU, the bus 2");
  gpus.init_error = 803;
  ExpectVerdict(CheckGpu(gpus), Verdict::kWarn, "CUDA error 803");
  gpus.init_error = 0;
  gpus.cuda_version = 12040;
  gpus.found = {{"Tesla P100", 6, 0, 16 * kGiB}};
  ExpectVerdict(CheckGpu(gpus), Verdict::kWarn, "Tesla P100, compute capability 6.0, 16.0 GiB: compute");
  gpus.found.push_back({"Tesla T4", 7, 5, 15 * kGiB});
  ExpectVerdict(CheckGpu(gpus), Verdict::kWarn, "serves CUDA 12.4, kernels want 13.0");
  gpus.cuda_version = 13000;
  ExpectVerdict(CheckGpu(gpus), Verdict::kPass, "Tesla T4, compute capability 7.5, 15.0 GiB; the driver");
}

TEST(DoctorTest, GpusAreCountedOnTheBusWhereThereIsNoDriver) {
  const std::filesystem::path bus = std::filesystem::path(testing::TempDir()) / "doctor_bus";
  const auto device = [&](const char* name, const char* vendor, const char* kind) {
    std::filesystem::create_directories(bus / name);
    std::ofstream(bus / name / "vendor") << vendor << "\n";
    std::ofstream(bus / name / "class") << kind << "\n";
  };
  device("0000:01:00.0", "0x10de", "0x030000");
  device("0000:01:00.1", "0x10de", "0x040300");  // its sound
  device("0000:02:00.0", "0x10de", "0x030200");
  device("0000:03:00.0", "0x8086", "0x030000");
  const GpuFacts facts = ReadGpuFacts("libno-such-driver.so.1", bus.string());
  EXPECT_EQ(facts.on_the_bus, 2);
  EXPECT_FALSE(facts.driver);
  EXPECT_THAT(facts.driver_error, HasSubstr("libno-such-driver.so.1"));
  EXPECT_TRUE(facts.found.empty());
  EXPECT_EQ(ReadGpuFacts("libno-such-driver.so.1", (bus / "none").string()).on_the_bus, 0);
  // A library that is another one's.
  EXPECT_FALSE(ReadGpuFacts("libc.so.6", bus.string()).driver);
  std::filesystem::remove_all(bus);
}

TEST(DoctorTest, LowLimitsWarn) {
  KernelFacts kernel;
  kernel.memlock_bytes = 8ull << 20;
  ExpectVerdict(CheckMemlock(kernel), Verdict::kWarn, "8.0 MiB");
  kernel.memlock_bytes = UINT64_MAX;
  ExpectVerdict(CheckMemlock(kernel), Verdict::kPass, "unlimited");
  kernel.open_files = 256;
  ExpectVerdict(CheckOpenFiles(kernel), Verdict::kWarn, "256");
  kernel.open_files = 1024;
  ExpectVerdict(CheckOpenFiles(kernel), Verdict::kPass, "1024");
}

TEST(DoctorTest, EachWayIoUringIsRefusedNamesItsFix) {
  KernelFacts kernel;
  ExpectVerdict(CheckIoUring(kernel), Verdict::kPass, "rings");
  kernel.io_uring_errno = EPERM;
  EXPECT_THAT(CheckIoUring(kernel).fix, HasSubstr("seccomp"));
  kernel.io_uring_errno = ENOSYS;
  EXPECT_THAT(CheckIoUring(kernel).fix, HasSubstr("5.6"));
  kernel.io_uring_errno = ENOMEM;
  EXPECT_THAT(CheckIoUring(kernel).fix, HasSubstr("memlock"));
  ExpectVerdict(CheckIoUring(kernel), Verdict::kWarn, "errno 12");
}

TEST(DoctorTest, KernelWithoutWhatTheDaemonsNeedFails) {
  KernelFacts kernel;
  kernel.pidfd_errno = ENOSYS;
  kernel.seal_errno = EINVAL;
  kernel.collapse_errno = EINVAL;
  ExpectVerdict(CheckPidfd(kernel), Verdict::kFail, "watched");
  ExpectVerdict(CheckSeals(kernel), Verdict::kFail, "sealed");
  ExpectVerdict(CheckHugePages(kernel), Verdict::kWarn, "MADV_COLLAPSE");
}

TEST(DoctorTest, ReportsMemoryNodesAndTheirProblems) {
  CpuTopology topology;
  topology.nodes = {{0, {{0, 0}, {1, 1}}, 8ull << 30}};
  ExpectVerdict(CheckNodes(topology), Verdict::kPass, "1 node: 0 with 2 CPUs of 2 cores and 8.0 GiB");
  topology.nodes.push_back({1, {{2, 2}, {3, 2}}, 8ull << 30});
  ExpectVerdict(CheckNodes(topology), Verdict::kPass, "interleaved");
  topology.nodes[1].memory_bytes = 0;
  ExpectVerdict(CheckNodes(topology), Verdict::kWarn, "1 of them have no memory");
  topology.nodes[1] = {1, {}, 8ull << 30};
  EXPECT_THAT(CheckNodes(topology).fix, HasSubstr("cpuset"));
  ExpectVerdict(CheckNodes(topology), Verdict::kWarn, "no CPU may be used");
  ExpectVerdict(CheckNodes(absl::InvalidArgumentError("cpulist: nonsense")), Verdict::kWarn, "nonsense");
}

TEST(DoctorTest, DiskWithoutDirectReadsOrWithLargeBlocksWarns) {
  DiskFacts disk;
  disk.path = "/d";
  disk.memory_align = disk.offset_align = 512;
  ExpectVerdict(CheckDirectReads(disk), Verdict::kPass, "512");
  disk.offset_align = 65536;
  ExpectVerdict(CheckDirectReads(disk), Verdict::kWarn, "65536");
  disk.direct_errno = EINVAL;
  ExpectVerdict(CheckDirectReads(disk), Verdict::kWarn, "O_DIRECT fails");
}

TEST(DoctorTest, DamagedPackMissingProgramAndOpenDirectoryFail) {
  ExpectVerdict(CheckPackSample("p", absl::DataLossError("extent 3"), 0, 0), Verdict::kFail, "extent 3");
  ExpectVerdict(CheckProgram("/b/weightd", false), Verdict::kFail, "/b/weightd");
  ExpectVerdict(CheckRuntimeDir(absl::PermissionDeniedError("others"), ""), Verdict::kFail, "others");
}

TEST(DoctorTest, SilentServerWarnsAndNoServerIsFine) {
  ExpectVerdict(CheckServer("s", absl::NotFoundError("")), Verdict::kPass, "nothing runs");
  ExpectVerdict(CheckServer("s", absl::UnavailableError("does not answer")), Verdict::kWarn,
                "does not answer");
  ExpectVerdict(CheckServer("s", absl::OkStatus()), Verdict::kPass, "serves");
}

TEST(DoctorTest, OneFailureMakesTheWholeFail) {
  std::vector<Finding> findings = {{"a", Verdict::kPass, "fine", ""},
                                   {"b", Verdict::kWarn, "so so", "do this"}};
  EXPECT_FALSE(AnyFailure(findings));
  findings.push_back({"c", Verdict::kFail, "bad", "do that"});
  EXPECT_TRUE(AnyFailure(findings));
  EXPECT_EQ(FindingsJson(findings).Dump(),
            R"({"ok":false,"checks":[{"check":"a","verdict":"PASS","message":"fine","fix":""},)"
            R"({"check":"b","verdict":"WARN","message":"so so","fix":"do this"},)"
            R"({"check":"c","verdict":"FAIL","message":"bad","fix":"do that"}]})");
  EXPECT_EQ(FindingsText(findings, false),
            "PASS  a             fine\nWARN  b             so so\n      fix: do this\n"
            "FAIL  c             bad\n      fix: do that\n");
}

TEST(DoctorTest, ThisHostsFactsAreRead) {
  EXPECT_GT(ReadCpuFacts().cpus, 0);
  EXPECT_GT(ReadMemoryFacts()->total, 0u);
  EXPECT_GT(ReadKernelFacts().open_files, 0u);
}

}  // namespace
}  // namespace sluice::cli
