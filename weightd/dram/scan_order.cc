#include "weightd/dram/scan_order.h"

#include <iterator>

#include "common/ring/session_abi.h"

namespace sluice::weightd {

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
