// Eviction of extents: the time line that orders uses of several sessions, the policies, and the order in
// which a scan evicts. Pure bookkeeping over numbers.
//
// Thread safety: thread-compatible; the store's lock guards it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace sluice::weightd {

// Maps the stamps of several sessions to one axis, weightd's own clock of decisions.
//
// Each session stamps uses with its own steps, without a message to weightd. At each decision weightd notes
// every session's latest stamp: a stamp at or below that one was given before the decision, one above it
// after.

// Time of an extent's last use: the number of the decision before which it was, then the session's stamp.
// Ordered; with equal clocks, stamps of different sessions are compared as plain numbers.
struct UseKey {
  uint64_t clock = 0;
  uint64_t stamp = 0;
  auto operator<=>(const UseKey&) const = default;
};

class StepTimeline {
 public:
  // Notes the session's latest stamp `stamp` at decision `clock`; clocks never fall. A stamp that falls (a
  // client's mistake) is ignored.
  void Note(uint64_t stamp, uint64_t clock) {
    if (marks_.empty() ? stamp == 0 : stamp <= marks_.back().stamp) {
      return;
    }
    if (!marks_.empty() && marks_.back().clock == clock) {
      marks_.back().stamp = stamp;
      return;
    }
    if (marks_.size() >= kMaxMarks) {
      Thin();
    }
    marks_.push_back(Mark{stamp, clock});
  }

  // The decision before which `stamp` was given; `now` if it is newer than every noted stamp.
  uint64_t ClockOf(uint64_t stamp, uint64_t now) const {
    auto at = std::lower_bound(marks_.begin(), marks_.end(), stamp,
                               [](const Mark& mark, uint64_t value) { return mark.stamp < value; });
    return at == marks_.end() ? now : at->clock;
  }

 private:
  struct Mark {
    uint64_t stamp;
    uint64_t clock;
  };
  // Enough for the uses between an extent's fill and its eviction to keep their order in any cache of that
  // many extents; 256 KiB per session.
  static constexpr size_t kMaxMarks = 16384;

  // Drops every other mark of the older half: old uses move a little later, their order stays.
  void Thin() {
    const size_t half = marks_.size() / 2;
    size_t to = 0;
    for (size_t from = 1; from < half; from += 2) {
      marks_[to++] = marks_[from];
    }
    marks_.erase(marks_.begin() + static_cast<ptrdiff_t>(to), marks_.begin() + static_cast<ptrdiff_t>(half));
  }

  std::vector<Mark> marks_;  // both ascending
};

// Eviction policies: their interface and three of them, pure bookkeeping over numbers.
//
// Uses happen in the clients without a message, so a policy learns of them only when it looks: its knowledge
// of an extent is a lower bound, and it asks again before it decides. Ages are in turnovers: one turnover is
// the time in which as many bytes were filled as the memory holds, so no policy depends on the speed of the
// machine or on how often weightd wakes.
//
// `lru`: the extent whose last use is longest ago. `lfru`: the one used least often since it was filled,
// where a use counts half as much a turnover later; among equals the least recently used. `score`: the one
// with the lowest use count over 1 + age of its last use, where a use counts half as much four turnovers
// later and the count outlives eviction; the lowest of kSamples drawn extents.
//
// Thread safety: thread-compatible; the store's lock guards it.
enum class EvictionKind : uint8_t { kLru, kLfru, kScore };

// "lru", "lfru", "score".
const char* NameOf(EvictionKind kind);
std::optional<EvictionKind> ParseEviction(const std::string& name);

// The present state of an extent.
struct ExtentUse {
  UseKey last;             // latest of all sessions; that of its fill if none used it
  bool evictable = false;  // true if nothing holds it
  uint64_t uses = 0;       // by all sessions, ended ones too; grows, except for a faulty client
  double at = 0;           // turnovers at the last use
  bool scanned = false;    // filled for a scan: no sign of reuse
};

struct EvictionCandidate {
  uint32_t extent = 0;
  UseKey last;
};

class EvictionPolicy {
 public:
  using Look = absl::FunctionRef<ExtentUse(uint32_t)>;
  virtual ~EvictionPolicy() = default;
  // Adds an extent. Its count of uses begins at `filled.uses`.
  virtual void Add(uint32_t extent, const ExtentUse& filled) = 0;
  virtual void Remove(uint32_t extent, double now) = 0;
  // `extent` was used at `key` (it was about to be evicted and a client took it, or its session ended).
  virtual void Touch(uint32_t extent, UseKey key) = 0;
  // The extent to evict next at `now` turnovers; none if `look` reports every one of them as held.
  virtual std::optional<EvictionCandidate> Coldest(double now, Look look) = 0;
  virtual size_t size() const = 0;
};

std::unique_ptr<EvictionPolicy> NewEvictionPolicy(EvictionKind kind);

// Maximum number of uses counted per look: a client that writes wrong counts gains no more than this.
inline constexpr uint64_t kMaxNewUses = 1 << 16;

// Extents are ordered by their last known use; the first is looked at again, and moves back if it was used
// meanwhile. This is exact LRU as long as a decision needs at most kMaxLooks; with more (many hits since the
// last decision) the coldest of the extents looked at is evicted.
class LruPolicy final : public EvictionPolicy {
 public:
  static constexpr int kMaxLooks = 256;

  void Add(uint32_t extent, const ExtentUse& filled) override;
  void Remove(uint32_t extent, double now) override;
  void Touch(uint32_t extent, UseKey key) override;
  std::optional<EvictionCandidate> Coldest(double now, Look look) override;
  size_t size() const override { return known_.size(); }

 private:
  std::set<std::pair<UseKey, uint32_t>> order_;
  absl::flat_hash_map<uint32_t, UseKey> known_;
};

// Works in the same way, by counts. A use at turnover t adds 2^t to an extent's sum, and the logarithm is
// kept: counts halve each turnover without being touched, and their order changes only by uses.
class LfruPolicy final : public EvictionPolicy {
 public:
  static constexpr int kMaxLooks = 256;

  void Add(uint32_t extent, const ExtentUse& filled) override;
  void Remove(uint32_t extent, double now) override;
  void Touch(uint32_t extent, UseKey key) override;
  std::optional<EvictionCandidate> Coldest(double now, Look look) override;
  size_t size() const override { return known_.size(); }

 private:
  struct Known {
    double weight = 0;  // log2 of the sum over uses
    UseKey last;
    uint64_t uses = 0;
  };
  using Place = std::pair<std::pair<double, UseKey>, uint32_t>;
  static Place PlaceOf(uint32_t extent, const Known& known) { return {{known.weight, known.last}, extent}; }
  // Adds the uses in `use` that are not in `known` yet; false if there are none.
  static bool Learn(const ExtentUse& use, Known* known);

  std::set<Place> order_;
  absl::flat_hash_map<uint32_t, Known> known_;
};

class ScorePolicy final : public EvictionPolicy {
 public:
  static constexpr size_t kSamples = 32;
  static constexpr double kHalfLife = 4;  // turnovers

  void Add(uint32_t extent, const ExtentUse& filled) override;
  void Remove(uint32_t extent, double now) override;
  void Touch(uint32_t, UseKey) override {}  // the next look sees it
  std::optional<EvictionCandidate> Coldest(double now, Look look) override;
  size_t size() const override { return members_.size(); }
  // The value that a decision at `now` compares.
  double Score(uint32_t extent, double now) const;

 private:
  static constexpr size_t kNowhere = SIZE_MAX;
  struct History {
    double count = 0;  // uses, as they counted at `at`
    double at = 0;
    double last = 0;  // turnovers at the last use
    uint64_t uses = 0;
    size_t place = kNowhere;  // in members_
  };
  void Learn(const ExtentUse& use, History* history) const;

  std::vector<uint32_t> members_;
  absl::flat_hash_map<uint32_t, History> history_;  // of evicted extents too
  uint64_t random_ = 0x9e3779b97f4a7c15ull;         // xorshift64
};

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
