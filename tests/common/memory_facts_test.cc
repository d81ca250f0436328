// Reads made-up /proc and cgroup trees.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/machine_facts.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

constexpr uint64_t kGiB = 1ull << 30;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(MemoryFactsTest, ReadsMemAvailableAndTheTightestGroupAboveUs) {
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
  EXPECT_EQ(facts->total, 100u * 1024);
  EXPECT_EQ(facts->available, 8 * kGiB);
  EXPECT_EQ(facts->cgroup_limit, 4 * kGiB);
  EXPECT_EQ(facts->cgroup_used, 2 * kGiB);
  EXPECT_EQ(UsableMemory(*facts), 2 * kGiB);
}

TEST(MemoryFactsTest, ReadsTheOldMemoryController) {
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

TEST(MemoryFactsTest, WithoutACgroupLimitMemAvailableDecides) {
  TempDir root;
  Write(root.File("proc/meminfo"), "MemAvailable: 1048576 kB\n");
  auto facts = ReadMemoryFacts(root.path());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->cgroup_limit, kNoMemoryLimit);
  EXPECT_EQ(UsableMemory(*facts), kGiB);
}

TEST(MemoryFactsTest, AGroupThatUsesMoreThanItsLimitLeavesNothing) {
  EXPECT_EQ(UsableMemory({8 * kGiB, kGiB, 2 * kGiB}), 0u);
}

TEST(MemoryFactsTest, MissingMemAvailableIsAnErrorNamingTheFile) {
  TempDir root;
  const auto facts = ReadMemoryFacts(root.path());
  EXPECT_EQ(facts.status().code(), absl::StatusCode::kInternal);
  EXPECT_NE(facts.status().ToString().find("proc/meminfo"), std::string::npos);
}

}  // namespace
}  // namespace sluice
