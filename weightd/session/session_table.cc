#include "weightd/session/session_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::weightd {

Session* SessionTable::Add(std::unique_ptr<Session> session) {
  std::unique_ptr<Session>& place = sessions_[session->id()];
  place = std::move(session);
  return place.get();
}

Session* SessionTable::Find(uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::set<uint32_t> SessionTable::Packs() const {
  std::set<uint32_t> packs;
  for (const auto& [id, session] : sessions_) {
    for (const SessionPackPlan& plan : session->options().packs) {
      packs.insert(plan.pack);
    }
  }
  return packs;
}

void SessionTable::MarkForClose(uint64_t session, bool misbehaved, const std::string& why) {
  if (std::any_of(marked_.begin(), marked_.end(),
                  [session](const MarkedSession& marked) { return marked.session == session; })) {
    return;
  }
  marked_.push_back(MarkedSession{session, misbehaved});
  log_->Say(misbehaved ? LogSeverity::kWarning : LogSeverity::kInfo,
            absl::StrCat("session ", session, misbehaved ? " misbehaved and is ended: " : ": ", why));
}

}  // namespace sluice::weightd
