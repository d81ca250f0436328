// Reads made-up trees of CPUs and nodes, and assigns threads to such machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/machine_facts.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

// A machine of `nodes` nodes of `cores` cores each. Second threads of cores, if any, are numbered after all
// first threads, as Linux does.
struct Machine {
  uint32_t nodes = 1;
  uint32_t cores = 1;
  uint32_t threads = 1;
  uint32_t cpus() const { return nodes * cores * threads; }

  void WriteTo(const TempDir& root) const {
    for (uint32_t node = 0; node < nodes; ++node) {
      std::string list;
      for (uint32_t thread = 0; thread < threads; ++thread) {
        const uint32_t first = (thread * nodes + node) * cores;
        absl::StrAppend(&list, list.empty() ? "" : ",", first, "-", first + cores - 1);
      }
      const std::string folder = absl::StrCat("sys/devices/system/node/node", node);
      Write(root.File(folder + "/cpulist"), list + "\n");
      Write(root.File(folder + "/meminfo"), absl::StrCat("Node ", node, " MemTotal:       ", 64 * 1024 * 1024,
                                                         " kB\nNode ", node, " MemFree: 5 kB\n"));
    }
    for (uint32_t cpu = 0; cpu < cpus(); ++cpu) {
      std::string siblings;
      for (uint32_t thread = 0; thread < threads; ++thread) {
        absl::StrAppend(&siblings, siblings.empty() ? "" : ",",
                        cpu % (nodes * cores) + thread * nodes * cores);
      }
      Write(root.File(absl::StrCat("sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list")),
            siblings + "\n");
    }
    Write(root.File("sys/devices/system/node/possible"), "0-63\n");
  }
};

std::vector<uint32_t> AllCpus(const Machine& machine) {
  std::vector<uint32_t> cpus(machine.cpus());
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

TEST(CpuTopologyTest, ReadsNodesCoresAndMemory) {
  TempDir root;
  Machine{2, 8, 2}.WriteTo(root);
  const auto topology = ReadCpuTopology(AllCpus({2, 8, 2}), root.path());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->cpus(), 32u);
  EXPECT_EQ(topology->cores(), 16u);
  EXPECT_EQ(topology->MemoryNodes(), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(topology->nodes[1].cpus[8].cpu, 24u);
  EXPECT_EQ(topology->nodes[1].cpus[8].core, 8u);
  EXPECT_EQ(DescribeTopology(*topology),
            "2 nodes: 0 with 16 CPUs of 8 cores and 64.0 GiB, 1 with 16 CPUs of 8 cores and 64.0 GiB");
}

TEST(CpuTopologyTest, OnlyCpusInTheMaskCount) {
  TempDir root;
  Machine{4, 4, 1}.WriteTo(root);
  const auto topology = ReadCpuTopology(std::vector<uint32_t>{5, 6, 15}, root.path());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->cpus(), 3u);
  EXPECT_EQ(topology->nodes.size(), 4u) << "a node without CPUs to use still has memory";
  EXPECT_TRUE(topology->nodes[0].cpus.empty());
  EXPECT_EQ(*AssignCpus(*topology, 3), (std::vector<uint32_t>{5, 6, 15}));
}

TEST(CpuTopologyTest, WithoutATreeAllCpusAreOfOneNode) {
  TempDir root;
  const auto topology = ReadCpuTopology(std::vector<uint32_t>{0, 1, 2}, root.path());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(DescribeTopology(*topology), "1 node: 0 with 3 CPUs of 3 cores");
  EXPECT_TRUE(topology->MemoryNodes().empty());
}

TEST(CpuTopologyTest, ThisMachineIsRead) {
  const std::vector<uint32_t> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  const auto topology = ReadCpuTopology(allowed);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->cpus(), allowed.size());
}

TEST(CpuTopologyTest, NonsenseIsRefusedByName) {
  TempDir root;
  Write(root.File("sys/devices/system/node/node0/cpulist"), "0-\n");
  const auto topology = ReadCpuTopology(std::vector<uint32_t>{0}, root.path());
  ASSERT_FALSE(topology.ok());
  EXPECT_NE(topology.status().message().find("node0/cpulist"), std::string::npos) << topology.status();
  EXPECT_EQ(*ParseCpuList(""), std::vector<uint32_t>{});
  EXPECT_EQ(*ParseCpuList("3,0-1"), (std::vector<uint32_t>{0, 1, 3}));
  for (const char* text : {"a", "1-2-3", "3-1", ",", "1,", "0-99999999", "-1"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
}

// 1 to 64 cores on 1 to 8 nodes, with and without second threads, and every number of threads.
TEST(CpuTopologyTest, ThreadsAreSpreadEvenlyAndNeighboursShareANode) {
  for (const Machine& machine : {Machine{1, 1, 1}, Machine{1, 4, 2}, Machine{2, 8, 2}, Machine{2, 32, 1},
                                 Machine{4, 16, 1}, Machine{8, 4, 2}}) {
    TempDir root;
    machine.WriteTo(root);
    const auto topology = ReadCpuTopology(AllCpus(machine), root.path());
    ASSERT_TRUE(topology.ok()) << topology.status();
    for (uint32_t threads = 1; threads <= machine.cpus(); ++threads) {
      const auto cpus = AssignCpus(*topology, threads);
      ASSERT_TRUE(cpus.ok()) << cpus.status();
      ASSERT_EQ(cpus->size(), threads);
      ASSERT_EQ(std::set<uint32_t>(cpus->begin(), cpus->end()).size(), threads);
      std::map<uint32_t, uint32_t> of_node;
      std::map<uint32_t, uint32_t> of_core;
      uint32_t last_node = 0;
      for (const uint32_t cpu : *cpus) {
        const uint32_t core = cpu % (machine.nodes * machine.cores);
        const uint32_t node = core / machine.cores;
        EXPECT_GE(node, last_node) << "neighbouring threads share a node";
        last_node = node;
        ++of_node[node];
        ++of_core[core];
      }
      for (const auto& [node, count] : of_node) {
        EXPECT_LE(count, threads / machine.nodes + 1);
        const uint32_t most = (count + machine.cores - 1) / machine.cores;
        for (const auto& [core, on_core] : of_core) {
          if (core / machine.cores == node) {
            EXPECT_LE(on_core, most) << "cores before second threads";
          }
        }
      }
    }
    EXPECT_FALSE(AssignCpus(*topology, machine.cpus() + 1).ok());
  }
}

}  // namespace
}  // namespace sluice
