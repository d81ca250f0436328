// Stalled sessions: alive for the kernel, unresponsive, and holding memory that others need.
//
// Leases cost no message, so a session's holdings are looked at only when another finds no room. A stalled
// session is ended like one that misbehaves: its pins are ignored from then on. It learns of it by its side
// socket, which closes before anything that it held is written to, and an inferd checks that before it trusts
// the results of a step.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>

#include "weightd/core/budget_shares.h"
#include "weightd/session/session_table.h"

namespace sluice::weightd {

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
