// What memory the kernel has for this process: the machine's, and what its control groups leave of it.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

inline constexpr uint64_t kNoMemoryLimit = std::numeric_limits<uint64_t>::max();

// In bytes.
struct MemoryFacts {
  uint64_t available = 0;                  // MemAvailable
  uint64_t cgroup_limit = kNoMemoryLimit;  // of the group from this process's up that leaves least
  uint64_t cgroup_used = 0;                // memory.current minus reclaimable file pages, of that group
  uint64_t total = 0;                      // MemTotal
};

// Reads /proc and the cgroup tree (v2, else v1's memory controller) below `root` ("" for the real ones).
// INTERNAL without MemAvailable.
absl::StatusOr<MemoryFacts> ReadMemoryFacts(const std::string& root = "");

// What may still be taken: the smaller of MemAvailable and what the cgroup leaves.
uint64_t UsableMemory(const MemoryFacts& facts);

}  // namespace sluice
