// Memory that the kernel has for this process: the machine's, and the rest within its control groups.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

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

}  // namespace sluice
