#include "weightd/store/admission.h"

namespace sluice::weightd {
namespace {
// Number of decisions per search for stale extents.
constexpr uint64_t kStaleEvery = 8;
}  // namespace

void ProbationPolicy::Add(uint32_t extent, const ExtentUse& filled) {
  Member member;
  member.filled_uses = filled.uses;
  member.trusted_from = filled.uses + 2;
  const auto gone = gone_.find(extent);
  member.trusted = !plain_ && !filled.scanned && gone != gone_.end() && filled.at - gone->second <= kMemory;
  if (gone != gone_.end()) {
    gone_.erase(gone);
  }
  promotions_ += member.trusted ? 1 : 0;
  (member.trusted ? trusted_ : young_)->Add(extent, filled);
  members_[extent] = member;
}

void ProbationPolicy::Remove(uint32_t extent, double now) {
  const auto found = members_.find(extent);
  if (found == members_.end()) {
    return;
  }
  (found->second.trusted ? trusted_ : young_)->Remove(extent, now);
  members_.erase(found);
  gone_[extent] = now;
}

void ProbationPolicy::Touch(uint32_t extent, UseKey key) {
  const auto found = members_.find(extent);
  if (found != members_.end()) {
    (found->second.trusted ? trusted_ : young_)->Touch(extent, key);
  }
}

bool ProbationPolicy::Full() const {
  const double share = plain_ ? 0 : kTrustedShare;
  return static_cast<double>(trusted_->size()) > share * static_cast<double>(members_.size());
}

void ProbationPolicy::Promote(uint32_t extent, double now, ExtentUse use) {
  Member& member = members_.at(extent);
  young_->Remove(extent, now);
  member.trusted = true;
  use.uses = member.filled_uses;  // the policy counts them when it next looks
  trusted_->Add(extent, use);
  ++promotions_;
}

bool ProbationPolicy::Demote(double now, Look look, bool only_stale) {
  const auto coldest = trusted_->Coldest(now, look);
  if (!coldest.has_value()) {
    return false;
  }
  const ExtentUse use = look(coldest->extent);
  if (only_stale && now - use.at <= trust_turnovers_) {
    return false;
  }
  Member& member = members_.at(coldest->extent);
  trusted_->Remove(coldest->extent, now);
  member.trusted = false;
  member.filled_uses = use.uses;
  member.trusted_from = use.uses + 1;
  young_->Add(coldest->extent, use);
  return true;
}

std::optional<EvictionCandidate> ProbationPolicy::Coldest(double now, Look look) {
  if (++decisions_ % kStaleEvery == 0 && trusted_->size() != 0) {
    Demote(now, look, /*only_stale=*/true);
  }
  for (int promotions = 0;; ++promotions) {
    for (int i = 0; i < 2 && Full() && Demote(now, look, /*only_stale=*/false); ++i) {
    }
    const auto coldest = young_->Coldest(now, look);
    if (!coldest.has_value()) {
      return trusted_->Coldest(now, look);
    }
    const ExtentUse use = look(coldest->extent);
    if (plain_ || !use.evictable || use.uses < members_.at(coldest->extent).trusted_from ||
        promotions == kMaxPromotions) {
      return coldest;
    }
    Promote(coldest->extent, now, use);
  }
}

}  // namespace sluice::weightd
