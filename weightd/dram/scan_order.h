// Eviction order of a scan. A step over a long prompt uses nearly every expert of every layer once, layer
// after layer, and the next step begins again at the first: the extent used last is needed last. The least
// recently used one is needed soonest, so under LRU a scan over more than the memory never hits; evicting the
// layers just passed hits everything that the memory holds (Belady's choice for a loop).
//
// A scan evicts only extents that scans have filled, so other working sets stay; extents are numbered in the
// order in which layers use them, and nothing else is known of layers here. An extent that is used outside a
// scan leaves the order.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "weightd/dram/eviction.h"

namespace sluice::weightd {

// A scan's position when it needs room: it computes a layer whose extents begin at `behind`, and fills for
// that layer or the next one, whose extents end before `ahead`.
struct ScanPlace {
  uint64_t step = 0;      // the session's engine step
  uint32_t behind = 0;    // first extent of the layer that is being computed
  uint32_t ahead = 0;     // first extent after the layer that is filled
  bool optional = false;  // a prefetch: it evicts nothing that this step still needs

  // True if the extent belongs to a layer that is being computed or filled.
  bool IsNear(uint32_t extent) const { return behind <= extent && extent < ahead; }
};

class ScanOrder {
 public:
  // Maximum number of extents looked at per decision.
  static constexpr int kMaxLooks = 256;

  // Adds an extent filled for a scan; `uses` is its count of uses (by others) at that time.
  void Add(uint32_t extent, uint64_t uses) { members_[extent] = Member{uses, 0}; }
  void Remove(uint32_t extent) { members_.erase(extent); }
  // Notes that a scan has used it in `step` without a lease.
  void NoteScanUse(uint32_t extent, uint64_t step);

  // The extent that the scan needs again last: one of the current layers that it has used in this step, else
  // the nearest behind them, else the furthest ahead. None: nothing else may be evicted, or too many were
  // looked at.
  std::optional<EvictionCandidate> NextVictim(const ScanPlace& place, EvictionPolicy::Look look);
  size_t size() const { return members_.size(); }

  // True if a client's last use of the extent was in `step`.
  static bool UsedIn(uint64_t step, const ExtentUse& use);

 private:
  struct Member {
    uint64_t uses = 0;
    uint64_t spent = 0;  // last step that reported a use; 0: none
  };
  using Members = std::map<uint32_t, Member>;

  Members members_;
};

}  // namespace sluice::weightd
