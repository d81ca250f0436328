// Which extent goes: the policy's interface, pure bookkeeping over numbers.
//
// Uses happen in the clients without a message, so a policy learns of them only when it looks: what it knows
// of an extent is a lower bound, and it asks again before it decides.
//
// Thread safety: thread-compatible; the store's lock guards it.
#ifndef SLUICE_WEIGHTD_EVICTION_H_
#define SLUICE_WEIGHTD_EVICTION_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "weightd/step_timeline.h"

namespace sluice {

// The present truth about an extent.
struct ExtentUse {
  UseKey last;             // of all sessions; that of its fill if none used it
  bool evictable = false;  // nothing holds it
};

struct EvictionCandidate {
  uint32_t extent = 0;
  UseKey last;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void Add(uint32_t extent, UseKey filled) = 0;
  virtual void Remove(uint32_t extent) = 0;
  // `extent` was used at `key` (it was about to be evicted and a client took it, or its session ended).
  virtual void Touch(uint32_t extent, UseKey key) = 0;
  // The extent to go next, none if `look` calls every one of them held.
  virtual std::optional<EvictionCandidate> Coldest(absl::FunctionRef<ExtentUse(uint32_t)> look) = 0;
  virtual size_t size() const = 0;
};

// Least recently used. Extents stand in the order of what is known of them; the first is looked at again, and
// if it was used meanwhile it moves back. That is exact LRU as long as a decision needs no more than
// kMaxLooks; with more (many hits since the last decision) the coldest of those looked at goes.
class LruPolicy final : public EvictionPolicy {
 public:
  static constexpr int kMaxLooks = 256;

  void Add(uint32_t extent, UseKey filled) override;
  void Remove(uint32_t extent) override;
  void Touch(uint32_t extent, UseKey key) override;
  std::optional<EvictionCandidate> Coldest(absl::FunctionRef<ExtentUse(uint32_t)> look) override;
  size_t size() const override { return known_.size(); }

 private:
  std::set<std::pair<UseKey, uint32_t>> order_;
  absl::flat_hash_map<uint32_t, UseKey> known_;
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_EVICTION_H_
