// Protection of working sets: probation around any eviction policy, and the bytes that one step uses, which
// decides where probation applies.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "weightd/store/eviction.h"

namespace sluice::weightd {

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

// Bytes of each size class that one engine step uses: the minimum and maximum of each session's latest looks,
// summed over sessions.
//
// Thread safety: thread-compatible; the store's lock guards it.
class StepUses {
 public:
  using Bytes = std::map<uint64_t, uint64_t>;  // by the extents' length

  // Notes a request of the session in `step`. When a step has ended by this, and the session is due for a
  // look, `measure` is called for the bytes that the step used.
  void Note(uint64_t session, uint64_t step, absl::FunctionRef<Bytes(uint64_t ended)> measure) {
    Record& record = records_[session];
    const uint64_t ended = std::exchange(record.step, step);
    if (ended != step && ended != 0 && record.ended++ % kStepsBetweenLooks == 0) {
      record.looks[record.count++ % record.looks.size()] = measure(ended);
    }
  }
  void Remove(uint64_t session) { records_.erase(session); }

  struct Range {
    uint64_t least = 0;
    uint64_t most = 0;
  };
  // Bytes in extents of this length that one step of every session uses; zero until there are enough looks.
  Range OfLength(uint64_t length) const {
    Range sum;
    for (const auto& [session, record] : records_) {
      if (record.count < record.looks.size()) {
        continue;
      }
      Range range{UINT64_MAX, 0};
      for (const Bytes& look : record.looks) {
        const auto found = look.find(length);
        const uint64_t bytes = found == look.end() ? 0 : found->second;
        range = {std::min(range.least, bytes), std::max(range.most, bytes)};
      }
      sum = {sum.least + range.least, sum.most + range.most};
    }
    return sum;
  }

 private:
  static constexpr uint64_t kStepsBetweenLooks = 4;  // a look reads one word per extent
  struct Record {
    uint64_t step = 0;
    uint64_t ended = 0;  // steps
    uint64_t count = 0;  // looks
    std::array<Bytes, 4> looks;
  };
  absl::flat_hash_map<uint64_t, Record> records_;
};

}  // namespace sluice::weightd
