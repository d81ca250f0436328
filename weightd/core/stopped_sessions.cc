#include "weightd/core/stopped_sessions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sluice::weightd {
namespace {

// A session that was refused and has not retried for this long no longer wants the room.
constexpr int64_t kStillAsking = 1'000'000'000;

}  // namespace

bool StalledSessions::Starves(int64_t now) const {
  return std::any_of(starving_.begin(), starving_.end(), [&](const auto& entry) {
    return now - entry.second.since >= stall_nanos_ && now - entry.second.last < kStillAsking;
  });
}

void StalledSessions::EndStalled(int64_t now) {
  const bool starves = Starves(now);
  for (const auto& [id, session] : sessions_->all()) {
    // Signs of life are noted in every round, also while nobody starves.
    const int64_t silent = now - session->LastSign(now);
    // A session that waits for weightd is not stalled.
    if (!starves || silent < stall_nanos_ || session->state == SessionState::kLost ||
        session->outstanding() > 0) {
      continue;
    }
    const uint64_t held = shares_->HeldBy(*session);
    const uint64_t share = shares_->FairShare();
    if (held > share) {
      ++ended_;
      sessions_->MarkForClose(
          id, /*misbehaved=*/true,
          absl::StrCat("no sign of it for ", silent / 1'000'000, " ms while others found no room; it holds ",
                       held, " bytes, its fair share is ", share));
    }
  }
}

}  // namespace sluice::weightd
