// Facts about the machine: memory that this process may use, its CPUs and their memory nodes.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace sluice {

// Memory that the kernel has for this process: the machine's, and the rest within its control groups.

inline constexpr uint64_t kNoMemoryLimit = std::numeric_limits<uint64_t>::max();

// All values in bytes.
struct MemoryFacts {
  uint64_t available = 0;                  // MemAvailable
  uint64_t cgroup_limit = kNoMemoryLimit;  // of the tightest group among this process's and its ancestors
  uint64_t cgroup_used = 0;                // memory.current minus reclaimable file pages, of that group
  uint64_t total = 0;                      // MemTotal
};

// Reads /proc and the cgroup tree (v2, else v1's memory controller) below `root` ("" for the real ones).
// INTERNAL without MemAvailable.
absl::StatusOr<MemoryFacts> ReadMemoryFacts(const std::string& root = "");

// Bytes that can still be allocated: the smaller of MemAvailable and the rest of the cgroup's limit.
uint64_t UsableMemory(const MemoryFacts& facts);

// The CPUs that this process may use and their memory nodes, read below /sys/devices/system. On a machine
// with several nodes a CPU reads its own node's memory faster than the others', and all nodes together give
// more bandwidth than one.
//
// Thread safety: free functions, safe to call from any thread.

// A CPU that this process may use.
struct LogicalCpu {
  uint32_t cpu = 0;
  uint32_t core = 0;  // the lowest CPU of those that share its core
};

struct CpuNode {
  uint32_t id = 0;
  std::vector<LogicalCpu> cpus;  // ascending; may be empty
  uint64_t memory_bytes = 0;     // MemTotal of the node; 0: unknown, or none
};

struct CpuTopology {
  std::vector<CpuNode> nodes;  // ascending by id; those with neither CPUs to use nor memory are left out

  uint32_t cpus() const;
  uint32_t cores() const;
  // Ids of the nodes that have memory.
  std::vector<uint32_t> MemoryNodes() const;
};

// CPUs of the affinity mask, ascending, for any number of CPUs in the machine.
std::vector<uint32_t> AllowedCpus();

// Reads the node tree below `root` ("" for the real one). Without a tree, as with a kernel without NUMA, all
// CPUs belong to node 0. `allowed`: as AllowedCpus(). INVALID_ARGUMENT naming a malformed file.
absl::StatusOr<CpuTopology> ReadCpuTopology(absl::Span<const uint32_t> allowed, const std::string& root = "");

// Parses "0-3,8,10-11", the kernel's form of CPU and node lists, ascending. INVALID_ARGUMENT for anything
// else.
absl::StatusOr<std::vector<uint32_t>> ParseCpuList(const std::string& text);

// Assigns a CPU to each of `threads` threads: nodes get threads in proportion to their CPUs, neighbouring
// threads share a node, and no core gets a second thread before all cores have one. INVALID_ARGUMENT for more
// threads than CPUs.
absl::StatusOr<std::vector<uint32_t>> AssignCpus(const CpuTopology& topology, uint32_t threads);

// "2 nodes: 0 with 16 CPUs of 8 cores and 64 GiB, ..."
std::string DescribeTopology(const CpuTopology& topology);

}  // namespace sluice
