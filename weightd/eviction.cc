#include "weightd/eviction.h"

#include <cstddef>

namespace sluice {

void LruPolicy::Add(uint32_t extent, UseKey filled) {
  known_[extent] = filled;
  order_.emplace(filled, extent);
}

void LruPolicy::Remove(uint32_t extent) {
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

std::optional<EvictionCandidate> LruPolicy::Coldest(absl::FunctionRef<ExtentUse(uint32_t)> look) {
  std::optional<EvictionCandidate> best;
  // Without a candidate the walk goes on over all of them: "everything is held" must be true when it is said.
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
      // Held, though its last use is as old as known: looked at again only after all others.
      const UseKey newest = order_.rbegin()->first;
      Touch(extent, UseKey{newest.clock + 1, 0});
    } else {
      Touch(extent, use.last);
    }
  }
  return best;
}

}  // namespace sluice
