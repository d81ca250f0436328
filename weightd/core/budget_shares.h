// How the DRAM budget is shared out: what a new session is promised, what it may fill, what prefetches may
// take, and what is a session's fair part.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weightd/core/pack_table.h"
#include "weightd/dram/store.h"
#include "weightd/session/session_params.h"
#include "weightd/session/session_table.h"

namespace sluice {

class BudgetShares {
 public:
  // All borrowed; all numbers are bytes. `session_quota`: what a session may fill at most; 0: no bound.
  BudgetShares(uint64_t budget, uint64_t session_quota, const PackTable* packs, const SessionTable* sessions,
               const Store* store)
      : budget_(budget), session_quota_(session_quota), packs_(packs), sessions_(sessions), store_(store) {}

  // For sessions that open from now on.
  void SetSessionQuota(uint64_t quota) { session_quota_ = quota; }

  // Another budget. FAILED_PRECONDITION with the numbers if it cannot hold the dense weights and minima of
  // the sessions that are open.
  absl::Status SetBudget(uint64_t budget);

  // RESOURCE_EXHAUSTED with the numbers: dense weights and minima of all sessions and of a new one, which
  // needs `minimum`, exceed the budget.
  absl::Status CheckReserve(const SessionParams& params, uint64_t minimum) const;
  // What a new session may fill; 0: no bound. INVALID_ARGUMENT or RESOURCE_EXHAUSTED, by whose bound it is:
  // that is below its dense weights and `reserved`.
  absl::StatusOr<uint64_t> QuotaOf(const SessionParams& params, uint64_t reserved) const;
  // What prefetches may still take, `taken` being in their and the transfers' hands: nothing of the dense
  // weights' room or of any session's reserved minimum, or a demand that was promised room would find none.
  uint64_t PrefetchRoom(uint64_t taken) const;
  // What each session may hold while others find no room: an equal part of what is no dense weights'.
  uint64_t FairShare() const;
  // What a session holds without its dense weights, which it may hold for its life.
  uint64_t HeldBy(const Session& session) const;

 private:
  uint64_t budget_;
  uint64_t session_quota_;
  const PackTable* const packs_;
  const SessionTable* const sessions_;
  const Store* const store_;
};

}  // namespace sluice
