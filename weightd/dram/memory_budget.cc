#include "weightd/dram/memory_budget.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

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

}  // namespace sluice::weightd
