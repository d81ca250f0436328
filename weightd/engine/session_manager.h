// Sessions and the DRAM budget: the budget's shares, the opening of sessions, and the end of stalled ones.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "weightd/engine/pack_table.h"
#include "weightd/engine/session.h"
#include "weightd/engine/side_sockets.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_store.h"

namespace sluice::weightd {

// Shares of the DRAM budget: a new session's reserve, its quota, the room of prefetches, and each session's
// fair share.
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

// Opens sessions: validates a client's parameters, reserves its part of the budget, and registers the session
// with every part that serves it.
//
// Thread safety: thread-compatible; the core's lock guards it.
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

// Stalled sessions: alive for the kernel, unresponsive, and holding memory that others need.
//
// Leases cost no message, so a session's holdings are looked at only when another finds no room. A stalled
// session is ended like one that misbehaves: its pins are ignored from then on. It learns of it by its side
// socket, which closes before anything that it held is written to, and an inferd checks that before it trusts
// the results of a step.
//
// Thread safety: thread-compatible; the core's lock guards it.
class StalledSessions {
 public:
  // A session is stalled if it gave no sign for `stall_nanos` and holds more than its fair share while
  // another finds no room for as long. The rest is borrowed.
  StalledSessions(int64_t stall_nanos, const BudgetShares* shares, SessionTable* sessions)
      : stall_nanos_(stall_nanos), shares_(shares), sessions_(sessions) {}

  // Notes that at `now` a demand of the session, accepted at `since`, found no room.
  void OnStarved(uint64_t session, int64_t since, int64_t now) {
    starving_.try_emplace(session, Starving{since, 0}).first->second.last = now;
  }
  // Notes that a fill of the session succeeded, or that it has ended.
  void OnServed(uint64_t session) { starving_.erase(session); }
  // Marks stalled sessions for their end.
  void EndStalled(int64_t now);
  // Number of stalled sessions ended so far.
  uint64_t ended() const { return ended_; }

 private:
  struct Starving {
    int64_t since = 0;  // acceptance of the first demand that found no room
    int64_t last = 0;   // time of the last such demand
  };
  // True if a session has found no room for long and still asks.
  bool Starves(int64_t now) const;

  const int64_t stall_nanos_;
  const BudgetShares* const shares_;
  SessionTable* const sessions_;
  std::map<uint64_t, Starving> starving_;  // by session, until a fill succeeds
  uint64_t ended_ = 0;
};

}  // namespace sluice::weightd
