// Sessions that have stopped: alive by every mark that the kernel gives, and holding what others need.
//
// Leases cost no message, so what a session holds is looked at only when another finds no room. It is ended
// as one that misbehaves: its pins are ignored from then on. It learns of it by its side socket, which closes
// before anything that it held is written to, and an inferd looks at that before it believes what it computed
// in a step.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>

#include "weightd/core/budget_shares.h"
#include "weightd/session/session_table.h"

namespace sluice {

class StoppedSessions {
 public:
  // A session that gave no sign for `stopped_nanos`, and holds more than its fair share while another finds
  // no room for as long, has stopped. The rest is borrowed.
  StoppedSessions(int64_t stopped_nanos, const BudgetShares* shares, SessionTable* sessions)
      : stopped_nanos_(stopped_nanos), shares_(shares), sessions_(sessions) {}

  // At `now` a demand of the session, accepted at `since`, found no room.
  void OnNoRoom(uint64_t session, int64_t since, int64_t now) {
    starving_.try_emplace(session, Starving{since, 0}).first->second.last = now;
  }
  // A fill of the session succeeded, or it has ended.
  void OnRoom(uint64_t session) { starving_.erase(session); }
  // Dooms those that have stopped.
  void EndStopped(int64_t now);
  // How many have been.
  uint64_t ended() const { return ended_; }

 private:
  struct Starving {
    int64_t since = 0;  // when the first of its demands was accepted that found no room
    int64_t last = 0;   // when the last did
  };
  // Whether a session has found no room for long and still asks.
  bool Starves(int64_t now) const;

  const int64_t stopped_nanos_;
  const BudgetShares* const shares_;
  SessionTable* const sessions_;
  std::map<uint64_t, Starving> starving_;  // by session, until a fill succeeds
  uint64_t ended_ = 0;
};

}  // namespace sluice
