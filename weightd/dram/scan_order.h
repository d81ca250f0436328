// Which extent a scan gives up. A step over a long prompt uses nearly every expert of every layer once, layer
// after layer, and the next step begins again at the first: what it used last it needs last. Least recently
// used is just what it needs soonest, so under LRU a scan over more than the memory finds nothing again;
// giving up what was passed last it finds all that the memory holds (Belady's choice for a loop).
//
// A scan gives up only what scans have filled, so that what others use stays; extents are numbered in the
// order in which layers use them, which is all that is known of layers here. An extent that somebody uses
// otherwise leaves the order.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "weightd/dram/eviction.h"

namespace sluice {

// Where a scan stands when it wants room: it computes a layer whose extents begin at `behind`, and fills for
// that layer or the one after it, whose extents end before `ahead`.
struct ScanPlace {
  uint64_t step = 0;      // the session's engine step
  uint32_t behind = 0;    // first extent of the layer that is being computed
  uint32_t ahead = 0;     // first extent after the layer that is filled
  bool optional = false;  // a prefetch: nothing that this step still needs goes for it

  // Whether the extent belongs to a layer that is being computed or filled.
  bool IsNear(uint32_t extent) const { return behind <= extent && extent < ahead; }
};

class ScanOrder {
 public:
  // Extents looked at in one decision at most.
  static constexpr int kMaxLooks = 256;

  // Filled for a scan; `uses` is what its count of uses (of others) is then.
  void Add(uint32_t extent, uint64_t uses) { members_[extent] = Member{uses, 0}; }
  void Remove(uint32_t extent) { members_.erase(extent); }
  // A scan has used it in `step` without a lease.
  void Spend(uint32_t extent, uint64_t step);

  // The extent that the scan needs again last: one of the layers at hand that it has used in this step, else
  // the nearest behind them, else the furthest ahead. None: nothing else may be given up, or too many were
  // looked at.
  std::optional<EvictionCandidate> Furthest(const ScanPlace& place, EvictionPolicy::Look look);
  size_t size() const { return members_.size(); }

  // Whether a client's last use of the extent was in `step`.
  static bool UsedIn(uint64_t step, const ExtentUse& use);

 private:
  struct Member {
    uint64_t uses = 0;
    uint64_t spent = 0;  // the last step that was told; 0: none
  };
  using Members = std::map<uint32_t, Member>;

  Members members_;
};

}  // namespace sluice
