// Opens sessions: validates a client's parameters, reserves its part of the budget, and registers the session
// with every part that serves it.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "weightd/core/budget_shares.h"
#include "weightd/core/pack_table.h"
#include "weightd/dram/dram_tier.h"
#include "weightd/session/poller.h"
#include "weightd/session/session_params.h"
#include "weightd/session/session_table.h"

namespace sluice::weightd {

class SessionManager {
 public:
  // All borrowed.
  struct Parts {
    const PackTable* packs = nullptr;
    const BudgetShares* shares = nullptr;
    SessionTable* sessions = nullptr;
    DramTier* tier = nullptr;
    Poller* poller = nullptr;
    const Clock* clock = nullptr;
  };
  // Sessions without a side socket after `attach_timeout_nanos` are ended; 0: never.
  SessionManager(uint64_t boot_epoch, int64_t attach_timeout_nanos, const Parts& parts)
      : boot_epoch_(boot_epoch), attach_timeout_nanos_(attach_timeout_nanos), parts_(parts) {}

  // FAILED_PRECONDITION: another ABI (names the field); INVALID_ARGUMENT: layout or pack; RESOURCE_EXHAUSTED:
  // minima and dense extents of all sessions exceed the budget (with the numbers); UNAVAILABLE: closed.
  absl::StatusOr<SessionHandle> Open(const SessionParams& params);
  // Refuses new sessions from now on.
  void Close() { closed_ = true; }
  bool closed() const { return closed_; }

  // Marks sessions whose side socket never came for their end.
  void EndUnattached(int64_t now);
  // Time at which the next of them is due; 0: none.
  int64_t next_deadline() const;

 private:
  absl::Status CheckParams(const SessionParams& params) const;

  const uint64_t boot_epoch_;
  const int64_t attach_timeout_nanos_;
  const Parts parts_;
  bool closed_ = false;
};

}  // namespace sluice::weightd
