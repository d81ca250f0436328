// Admission: an extent that was filled and used once must not evict one that is used again and again.
//
// ProbationPolicy wraps any eviction policy in two segments (as 2Q does). A filled extent enters on
// probation, and extents on probation are evicted first. It becomes trusted when it was used twice since its
// fill (the use it was filled for is one), or when it is filled again, not by a scan, within kMemory
// turnovers of its eviction. At most kTrustedShare of the extents are trusted; the coldest of them go back on
// probation, so a scan over everything (one long prefill) runs through a quarter of the memory and leaves the
// rest. A trusted extent that was not used for longer than a scan over everything lasts is evicted first.
// set_plain(true) ends all of this: where one step uses most of the memory but fits into it, probation would
// not keep a step's extents until the next step, and the step's extents are the working set.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "weightd/dram/eviction.h"

namespace sluice::weightd {

class ProbationPolicy final : public EvictionPolicy {
 public:
  static constexpr double kTrustedShare = 0.75;
  // Turnovers. A scan over everything refills an extent only after it has read every extent that is not
  // trusted: more turnovers than this while the memory holds less than 80 % of all packs.
  static constexpr double kMemory = 0.25;
  static constexpr int kMaxPromotions = 64;  // per decision

  explicit ProbationPolicy(EvictionKind kind)
      : young_(NewEvictionPolicy(kind)), trusted_(NewEvictionPolicy(kind)) {}

  // Sets the duration of a scan over everything, in turnovers.
  void set_trust_turnovers(double turnovers) { trust_turnovers_ = turnovers; }
  void set_plain(bool plain) { plain_ = plain; }

  void Add(uint32_t extent, const ExtentUse& filled) override;
  void Remove(uint32_t extent, double now) override;
  void Touch(uint32_t extent, UseKey key) override;
  std::optional<EvictionCandidate> Coldest(double now, Look look) override;
  size_t size() const override { return members_.size(); }
  size_t trusted() const { return trusted_->size(); }
  uint64_t promotions() const { return promotions_; }

 private:
  struct Member {
    bool trusted = false;
    uint64_t filled_uses = 0;
    uint64_t trusted_from = 0;  // uses
  };
  bool Full() const;
  void Promote(uint32_t extent, double now, ExtentUse use);
  // Puts the coldest trusted extent back on probation if `only_stale` is false or the extent is stale.
  bool Demote(double now, Look look, bool only_stale);

  const std::unique_ptr<EvictionPolicy> young_;
  const std::unique_ptr<EvictionPolicy> trusted_;
  absl::flat_hash_map<uint32_t, Member> members_;
  absl::flat_hash_map<uint32_t, double> gone_;  // turnovers at the eviction; one entry an extent at most
  double trust_turnovers_ = 1;
  bool plain_ = false;
  uint64_t decisions_ = 0;
  uint64_t promotions_ = 0;
};

}  // namespace sluice::weightd
