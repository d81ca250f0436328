#include "weightd/store/memory_budget.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "pack/pack.h"

namespace sluice::weightd {
namespace {

// Pause between two checks of memory that is about to be freed.
constexpr int kPauseMs = 100;

std::string LimitText(uint64_t limit) {
  return limit == kNoMemoryLimit ? std::string("none") : absl::StrCat(limit);
}

}  // namespace

absl::Status CheckBudget(uint64_t budget, const MemoryFacts& facts) {
  const uint64_t usable = UsableMemory(facts);
  if (budget <= usable && usable - budget >= kProcessReserve) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("--dram-budget of ", budget, " bytes does not fit: MemAvailable ", facts.available,
                   ", cgroup limit ", LimitText(facts.cgroup_limit), ", cgroup use ", facts.cgroup_used,
                   " (and ", kProcessReserve, " bytes are kept for the process)"));
}

absl::Status WaitForBudget(uint64_t budget, int wait_ms,
                           const std::function<absl::StatusOr<MemoryFacts>()>& read,
                           const std::function<void(int ms)>& pause) {
  for (int waited = 0;; waited += kPauseMs) {
    ASSIGN_OR_RETURN(const MemoryFacts facts, read());
    const absl::Status fits = CheckBudget(budget, facts);
    if (fits.ok() || waited >= wait_ms) {
      return fits;
    }
    pause(kPauseMs);
  }
}

uint64_t MinDramBudget(const WeightSizes& sizes, uint32_t threads) {
  return sizes.dense + 2 * sizes.largest_expert * threads;
}

uint64_t DefaultDramBudget(const WeightSizes& sizes, uint32_t threads, uint64_t usable) {
  return std::min(std::max(sizes.all, MinDramBudget(sizes, threads)), usable / 10 * 7);
}

uint64_t DefaultDramBudget(const std::vector<const Pack*>& packs, uint32_t threads, uint64_t usable) {
  WeightSizes sizes;
  std::set<std::string> counted;
  for (const Pack* pack : packs) {
    if (!counted.insert(pack->model_id()).second) continue;  // the store also holds it only once
    sizes.all += pack->dense_bytes() + pack->total_expert_bytes() + pack->row_bytes();
    sizes.dense += pack->dense_bytes();
    sizes.largest_expert = std::max(sizes.largest_expert, pack->largest_demand_bytes());
  }
  return DefaultDramBudget(sizes, threads, usable);
}

}  // namespace sluice::weightd
