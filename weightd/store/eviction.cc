#include "weightd/store/eviction.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "common/protocol/session_abi.h"

namespace sluice::weightd {

const char* NameOf(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::kLfru:
      return "lfru";
    case EvictionKind::kScore:
      return "score";
    default:
      return "lru";
  }
}

std::optional<EvictionKind> ParseEviction(const std::string& name) {
  for (EvictionKind kind : {EvictionKind::kLru, EvictionKind::kLfru, EvictionKind::kScore}) {
    if (name == NameOf(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

std::unique_ptr<EvictionPolicy> NewEvictionPolicy(EvictionKind kind) {
  switch (kind) {
    case EvictionKind::kLfru:
      return std::make_unique<LfruPolicy>();
    case EvictionKind::kScore:
      return std::make_unique<ScorePolicy>();
    default:
      return std::make_unique<LruPolicy>();
  }
}

void LruPolicy::Add(uint32_t extent, const ExtentUse& filled) {
  known_[extent] = filled.last;
  order_.emplace(filled.last, extent);
}

void LruPolicy::Remove(uint32_t extent, double) {
  auto found = known_.find(extent);
  if (found != known_.end()) {
    order_.erase({found->second, extent});
    known_.erase(found);
  }
}

void LruPolicy::Touch(uint32_t extent, UseKey key) {
  auto found = known_.find(extent);
  if (found == known_.end() || key <= found->second) {
    return;
  }
  order_.erase({found->second, extent});
  found->second = key;
  order_.emplace(key, extent);
}

std::optional<EvictionCandidate> LruPolicy::Coldest(double, Look look) {
  std::optional<EvictionCandidate> best;
  // Without a candidate the walk goes on over all extents: "everything is held" must be true when reported.
  const size_t all = known_.size();
  for (size_t looks = 0; looks < all && (looks < kMaxLooks || !best.has_value()); ++looks) {
    const auto [known, extent] = *order_.begin();
    const ExtentUse use = look(extent);
    if (use.evictable && use.last <= known) {
      if (!best.has_value() || known < best->last) {
        best = EvictionCandidate{extent, known};
      }
      return best;
    }
    if (use.evictable && (!best.has_value() || use.last < best->last)) {
      best = EvictionCandidate{extent, use.last};
    }
    if (use.last <= known) {
      // The extent is held, though its last use is as old as known: it is looked at again only after all
      // others.
      const UseKey newest = order_.rbegin()->first;
      Touch(extent, UseKey{newest.clock + 1, 0});
    } else {
      Touch(extent, use.last);
    }
  }
  return best;
}

void LfruPolicy::Add(uint32_t extent, const ExtentUse& filled) {
  Known known;
  known.weight = filled.at;  // the fill counts as a use
  known.last = filled.last;
  known.uses = filled.uses;
  known_[extent] = known;
  order_.insert(PlaceOf(extent, known));
}

void LfruPolicy::Remove(uint32_t extent, double) {
  auto found = known_.find(extent);
  if (found != known_.end()) {
    order_.erase(PlaceOf(extent, found->second));
    known_.erase(found);
  }
}

void LfruPolicy::Touch(uint32_t extent, UseKey key) {
  auto found = known_.find(extent);
  if (found == known_.end() || key <= found->second.last) {
    return;
  }
  order_.erase(PlaceOf(extent, found->second));
  found->second.last = key;
  order_.insert(PlaceOf(extent, found->second));
}

bool LfruPolicy::Learn(const ExtentUse& use, Known* known) {
  const bool counted = use.uses > known->uses;
  if (counted) {
    const auto uses = static_cast<double>(std::min(use.uses - known->uses, kMaxNewUses));
    // log2(2^weight + uses * 2^at), from the larger of the two.
    const double added = use.at + std::log2(uses);
    const double high = std::max(known->weight, added);
    known->weight = high + std::log2(1 + std::exp2(std::min(known->weight, added) - high));
  }
  known->uses = use.uses;
  const bool later = use.last > known->last;
  known->last = std::max(known->last, use.last);
  return counted || later;
}

std::optional<EvictionCandidate> LfruPolicy::Coldest(double, Look look) {
  std::optional<Place> best;
  int looks = 0;
  // Without a candidate the walk goes on over all extents: "everything is held" must be true when reported.
  for (auto at = order_.begin(); at != order_.end() && (looks < kMaxLooks || !best.has_value()); ++looks) {
    const uint32_t extent = at->second;
    const ExtentUse use = look(extent);
    if (!use.evictable) {
      ++at;
      continue;
    }
    Known known = known_.at(extent);
    if (!Learn(use, &known)) {
      best = best.has_value() ? std::min(*best, *at) : *at;
      break;  // all others are known to be warmer
    }
    const auto next = std::next(at);
    order_.erase(at);
    const auto inserted = order_.insert(PlaceOf(extent, known)).first;
    known_[extent] = known;
    best = best.has_value() ? std::min(*best, *inserted) : *inserted;
    at = next == order_.end() || *inserted < *next ? inserted : next;
  }
  if (!best.has_value()) {
    return std::nullopt;
  }
  return EvictionCandidate{best->second, best->first.second};
}

void ScorePolicy::Add(uint32_t extent, const ExtentUse& filled) {
  History& history = history_[extent];
  Learn(filled, &history);
  history.uses = filled.uses;
  if (history.place == kNowhere) {
    history.place = members_.size();
    members_.push_back(extent);
  }
}

void ScorePolicy::Remove(uint32_t extent, double) {
  auto found = history_.find(extent);
  if (found == history_.end() || found->second.place == kNowhere) {
    return;
  }
  const uint32_t last = members_.back();
  members_[found->second.place] = last;
  history_.at(last).place = found->second.place;
  members_.pop_back();
  found->second.place = kNowhere;
}

void ScorePolicy::Learn(const ExtentUse& use, History* history) const {
  history->last = std::max(history->last, use.at);
  if (use.uses > history->uses) {
    history->count = history->count * std::exp2((history->at - history->last) / kHalfLife) +
                     static_cast<double>(std::min(use.uses - history->uses, kMaxNewUses));
    history->at = history->last;
  }
  history->uses = use.uses;
}

double ScorePolicy::Score(uint32_t extent, double now) const {
  const History& history = history_.at(extent);
  // One more than the count: an extent that was filled and not used yet is not worthless.
  const double count = 1 + history.count * std::exp2(std::min(0.0, history.at - now) / kHalfLife);
  return count / (1 + std::max(0.0, now - history.last));
}

std::optional<EvictionCandidate> ScorePolicy::Coldest(double now, Look look) {
  std::optional<EvictionCandidate> best;
  double lowest = 0;
  const auto consider = [&](uint32_t extent) {
    const ExtentUse use = look(extent);
    if (!use.evictable) {
      return;
    }
    Learn(use, &history_.at(extent));
    const double score = Score(extent, now);
    if (!best.has_value() || score < lowest || (score == lowest && use.last < best->last)) {
      best = EvictionCandidate{extent, use.last};
      lowest = score;
    }
  };
  if (members_.size() <= kSamples) {
    std::for_each(members_.begin(), members_.end(), consider);
    return best;
  }
  for (size_t i = 0; i < kSamples; ++i) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    consider(members_[random_ % members_.size()]);
  }
  for (size_t i = 0; i < members_.size() && !best.has_value(); ++i) {
    consider(members_[i]);  // "everything is held" must be true when reported
  }
  return best;
}

bool ScanOrder::UsedIn(uint64_t step, const ExtentUse& use) {
  return use.last.stamp >> kStampOrderBits == step;
}

void ScanOrder::NoteScanUse(uint32_t extent, uint64_t step) {
  const auto found = members_.find(extent);
  if (found != members_.end()) {
    found->second.spent = step;
  }
}

std::optional<EvictionCandidate> ScanOrder::NextVictim(const ScanPlace& place, EvictionPolicy::Look look) {
  int looks = 0;
  std::optional<EvictionCandidate> found;
  // Looks at a member; true if it leaves the order because somebody else uses it.
  const auto leaves = [&](const Members::value_type& member, bool spent_only) {
    const ExtentUse use = look(member.first);
    ++looks;
    if (!use.evictable || use.uses != member.second.uses) {
      return use.evictable;
    }
    const bool spent = member.second.spent == place.step || UsedIn(place.step, use);
    if (spent || !spent_only) {
      found = EvictionCandidate{member.first, use.last};
    }
    return false;
  };
  const auto over = [&] { return found.has_value() || looks == kMaxLooks; };
  auto at = members_.lower_bound(place.behind);
  while (at != members_.end() && at->first < place.ahead && !over()) {
    at = leaves(*at, /*spent_only=*/true) ? members_.erase(at) : std::next(at);
  }
  at = members_.lower_bound(place.behind);
  while (at != members_.begin() && !over()) {
    --at;
    at = leaves(*at, /*spent_only=*/false) ? members_.erase(at) : at;
  }
  at = members_.end();
  while (at != members_.begin() && std::prev(at)->first >= place.ahead && !over()) {
    --at;
    at = leaves(*at, /*spent_only=*/false) ? members_.erase(at) : at;
  }
  return found;
}

}  // namespace sluice::weightd
