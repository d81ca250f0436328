// Checks that the machine has the memory that a budget promises.
//
// Thread safety: free functions, safe to call from any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/memory_facts.h"

namespace sluice::weightd {

// Reserve beside the budget for the process's own code, stacks, tables and rings, in bytes.
inline constexpr uint64_t kProcessReserve = 32ull * 1024 * 1024;

// RESOURCE_EXHAUSTED with the four numbers (budget, MemAvailable, cgroup limit, cgroup use) unless `budget`
// and a reserve for the process itself fit.
absl::Status CheckBudget(uint64_t budget, const MemoryFacts& facts);

// Repeats CheckBudget until it passes or `wait_ms` have passed: a predecessor that was just killed may still
// be mapped. `read` and `pause` are replaced in tests.
absl::Status WaitForBudget(uint64_t budget, int wait_ms,
                           const std::function<absl::StatusOr<MemoryFacts>()>& read,
                           const std::function<void(int ms)>& pause);

}  // namespace sluice::weightd
