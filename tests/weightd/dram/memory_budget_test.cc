#include "weightd/dram/memory_budget.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(MemoryBudgetTest, ReadsMemAvailableAndTheTightestGroupAboveUs) {
  TempDir root;
  Write(root.File("proc/meminfo"), "MemTotal: 100 kB\nMemAvailable: 8388608 kB\nSwapFree: 0 kB\n");
  Write(root.File("proc/self/cgroup"), "0::/a/b\n");
  Write(root.File("sys/fs/cgroup/a/b/memory.max"), "max\n");
  Write(root.File("sys/fs/cgroup/a/b/memory.current"), "1000\n");
  Write(root.File("sys/fs/cgroup/a/memory.max"), "4294967296\n");
  Write(root.File("sys/fs/cgroup/a/memory.current"), "3221225472\n");
  Write(root.File("sys/fs/cgroup/a/memory.stat"), "anon 5\ninactive_file 1073741824\nactive_file 7\n");
  auto facts = ReadMemoryFacts(root.path());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->available, 8 * kGiB);
  EXPECT_EQ(facts->cgroup_limit, 4 * kGiB);
  EXPECT_EQ(facts->cgroup_used, 2 * kGiB);
  EXPECT_EQ(UsableMemory(*facts), 2 * kGiB);
}

TEST(MemoryBudgetTest, ReadsTheOldMemoryController) {
  TempDir root;
  Write(root.File("proc/meminfo"), "MemAvailable: 8388608 kB\n");
  Write(root.File("proc/self/cgroup"), "5:cpu,cpuacct:/x\n4:memory:/m\n0::/\n");
  Write(root.File("sys/fs/cgroup/memory/m/memory.limit_in_bytes"), "1073741824\n");
  Write(root.File("sys/fs/cgroup/memory/m/memory.usage_in_bytes"), "1024\n");
  Write(root.File("sys/fs/cgroup/memory/memory.limit_in_bytes"), "9223372036854771712\n");
  Write(root.File("sys/fs/cgroup/memory/memory.usage_in_bytes"), "1024\n");
  auto facts = ReadMemoryFacts(root.path());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->cgroup_limit, kGiB);
  EXPECT_EQ(facts->cgroup_used, 1024u);
}

TEST(MemoryBudgetTest, WithoutACgroupLimitMemAvailableDecides) {
  TempDir root;
  Write(root.File("proc/meminfo"), "MemAvailable: 1048576 kB\n");
  auto facts = ReadMemoryFacts(root.path());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->cgroup_limit, kNoMemoryLimit);
  EXPECT_EQ(UsableMemory(*facts), kGiB);
  EXPECT_TRUE(CheckBudget(kGiB / 2, *facts).ok());
}

TEST(MemoryBudgetTest, RefusalShowsTheFourNumbers) {
  const MemoryFacts facts{10 * kGiB, 5 * kGiB, kGiB};
  const absl::Status status = CheckBudget(6 * kGiB, facts);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t number : {6 * kGiB, 10 * kGiB, 5 * kGiB, kGiB}) {
    EXPECT_NE(status.ToString().find(std::to_string(number)), std::string::npos) << status;
  }
}

TEST(MemoryBudgetTest, WaitsForADyingPredecessorAndGivesUpInTime) {
  int reads = 0;
  int waited = 0;
  const auto pause = [&waited](int ms) { waited += ms; };
  const auto frees_later = [&reads]() -> absl::StatusOr<MemoryFacts> {
    return MemoryFacts{++reads < 4 ? kGiB : 8 * kGiB};
  };
  EXPECT_TRUE(WaitForBudget(4 * kGiB, 10'000, frees_later, pause).ok());
  EXPECT_EQ(reads, 4);
  EXPECT_LT(waited, 1000);
  waited = 0;
  const auto never = []() -> absl::StatusOr<MemoryFacts> { return MemoryFacts{kGiB}; };
  EXPECT_EQ(WaitForBudget(4 * kGiB, 10'000, never, pause).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(waited, 10'000);
}

}  // namespace
}  // namespace sluice
