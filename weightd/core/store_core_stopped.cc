// Sessions that have stopped: alive by every mark that the kernel gives, and holding what others need.
//
// Leases cost no message, so what a session holds is looked at only when another finds no room. It is ended
// as one that misbehaves: its pins are ignored from then on. It learns of it by its side socket, which closes
// before anything that it held is written to, and an inferd looks at that before it believes what it computed
// in a step.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "weightd/core/store_core.h"

namespace sluice {
namespace {

// Who was refused and has not asked again for so long no longer wants it.
constexpr int64_t kStillAsking = 1'000'000'000;

}  // namespace

uint64_t StoreCore::FairShare() const {
  std::set<uint32_t> packs;
  for (const auto& [id, session] : sessions_) {
    for (const SessionPackPlan& plan : session->options().packs) {
      packs.insert(plan.pack);
    }
  }
  const uint64_t dense = std::min(options_.arena.budget, DenseBytes(packs));
  return (options_.arena.budget - dense) / std::max<size_t>(1, sessions_.size());
}

// Without its dense weights, which it may hold for its life.
uint64_t StoreCore::HeldBy(const Session& session) const {
  uint64_t held = session.held_bytes();
  uint64_t dense = 0;
  for (const SessionPackPlan& plan : session.options().packs) {
    held += tier_.store().HeldBy(plan.pack, session.id()).bytes;
    dense += plan.source->dense_bytes();
  }
  return held - std::min(held, dense);
}

void StoreCore::EndStopped(int64_t now) {
  const bool starving = std::any_of(starving_.begin(), starving_.end(), [&](const auto& entry) {
    return now - entry.second.since >= options_.stopped_nanos && now - entry.second.last < kStillAsking;
  });
  for (const auto& [id, session] : sessions_) {
    const int64_t silent = now - session->LastSign(now);
    // Who waits for us has not stopped.
    if (!starving || silent < options_.stopped_nanos || session->state == SessionState::kLost ||
        session->outstanding() > 0) {
      continue;
    }
    const uint64_t held = HeldBy(*session);
    const uint64_t share = FairShare();
    if (held > share) {
      ++sessions_stopped_;
      Doom(id, /*misbehaved=*/true,
           absl::StrCat("no sign of it for ", silent / 1'000'000, " ms while others found no room; it holds ",
                        held, " bytes, its fair share is ", share));
    }
  }
}

}  // namespace sluice
