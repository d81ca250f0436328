// All sessions by number, and those that end after this round.
//
// A fault of a session may be found in the middle of its work, so the session is only doomed here; the core
// ends it when the round is over.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weightd/session/session.h"
#include "weightd/session/store_log.h"

namespace sluice::weightd {

class SessionTable {
 public:
  struct MarkedSession {
    uint64_t session = 0;
    bool misbehaved = false;  // false: its connection has gone, the process perhaps not
  };

  explicit SessionTable(StoreLog* log) : log_(log) {}

  // A number that no session has had, from 1 on.
  uint64_t NewId() { return next_id_++; }
  // Adds the session under its id() and owns it.
  Session* Add(std::unique_ptr<Session> session);
  void Erase(uint64_t session) { sessions_.erase(session); }
  // Null if there is none.
  Session* Find(uint64_t session) const;

  const std::map<uint64_t, std::unique_ptr<Session>>& all() const { return sessions_; }
  size_t size() const { return sessions_.size(); }
  // The packs that any session uses.
  std::set<uint32_t> Packs() const;

  // Marks the session to end after this round; the first reason is logged, later ones are not.
  void MarkForClose(uint64_t session, bool misbehaved, const std::string& why);
  // Sessions doomed since the last call.
  std::vector<MarkedSession> TakeMarked() { return std::exchange(marked_, {}); }

 private:
  StoreLog* const log_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  std::vector<MarkedSession> marked_;
  uint64_t next_id_ = 1;
};

}  // namespace sluice::weightd
