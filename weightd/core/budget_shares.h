// Shares of the DRAM budget: a new session's reserve, its quota, the room of prefetches, and each session's
// fair share.
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

namespace sluice::weightd {

class BudgetShares {
 public:
  // All borrowed; all numbers are bytes. `session_quota`: maximum bytes that a session may fill; 0: no bound.
  BudgetShares(uint64_t budget, uint64_t session_quota, const PackTable* packs, const SessionTable* sessions,
               const ExtentStore* store)
      : budget_(budget), session_quota_(session_quota), packs_(packs), sessions_(sessions), store_(store) {}

  // Sets the quota of sessions that open from now on.
  void SetSessionQuota(uint64_t quota) { session_quota_ = quota; }

  // Changes the budget. FAILED_PRECONDITION with the numbers if it cannot hold the dense weights and minima
  // of the open sessions.
  absl::Status SetBudget(uint64_t budget);

  // RESOURCE_EXHAUSTED with the numbers: dense weights and minima of all sessions and of a new one, which
  // needs `minimum`, exceed the budget.
  absl::Status CheckReserve(const SessionParams& params, uint64_t minimum) const;
  // Maximum bytes that a new session may fill; 0: no bound. INVALID_ARGUMENT or RESOURCE_EXHAUSTED, depending
  // on whose bound it is: it is below the session's dense weights and `reserved`.
  absl::StatusOr<uint64_t> QuotaOf(const SessionParams& params, uint64_t reserved) const;
  // Bytes that prefetches may still use, when prefetches and transfers hold `taken`: nothing of the dense
  // weights' room or of any session's reserved minimum, since a demand relies on that room.
  uint64_t PrefetchHeadroom(uint64_t taken) const;
  // Bytes that each session may hold while others find no room: an equal part of the budget without dense
  // weights.
  uint64_t FairShare() const;
  // Bytes that a session holds, without its dense weights, which it may hold for its life.
  uint64_t HeldBy(const Session& session) const;

 private:
  uint64_t budget_;
  uint64_t session_quota_;
  const PackTable* const packs_;
  const SessionTable* const sessions_;
  const ExtentStore* const store_;
};

}  // namespace sluice::weightd
