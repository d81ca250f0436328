// Whether the machine has the memory that a budget promises.
//
// Thread safety: free functions, safe to call from any thread.
#ifndef SLUICE_WEIGHTD_MEMORY_BUDGET_H_
#define SLUICE_WEIGHTD_MEMORY_BUDGET_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

inline constexpr uint64_t kNoMemoryLimit = std::numeric_limits<uint64_t>::max();

// What the kernel says, in bytes.
struct MemoryFacts {
  uint64_t available = 0;                  // MemAvailable
  uint64_t cgroup_limit = kNoMemoryLimit;  // the lowest memory.max from this process's cgroup up
  uint64_t cgroup_used = 0;                // memory.current minus reclaimable file pages, of that cgroup
};

// Reads /proc and the cgroup tree (v2, else v1's memory controller) below `root` ("" for the real ones).
absl::StatusOr<MemoryFacts> ReadMemoryFacts(const std::string& root = "");

// What may still be taken: the smaller of MemAvailable and what the cgroup leaves.
uint64_t UsableMemory(const MemoryFacts& facts);

// RESOURCE_EXHAUSTED with the four numbers (budget, MemAvailable, cgroup limit, cgroup use) unless `budget`
// and a reserve for the process itself fit.
absl::Status CheckBudget(uint64_t budget, const MemoryFacts& facts);

// CheckBudget, repeated until it passes or `wait_ms` are over: a predecessor that was just killed may still
// be mapped. `read` and `pause` are replaced in tests.
absl::Status WaitForBudget(uint64_t budget, int wait_ms,
                           const std::function<absl::StatusOr<MemoryFacts>()>& read,
                           const std::function<void(int ms)>& pause);

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_MEMORY_BUDGET_H_
