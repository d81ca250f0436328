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
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "weightd/dram/step_timeline.h"

namespace sluice::weightd {

enum class EvictionKind : uint8_t { kLru, kLfru, kScore };

// "lru", "lfru", "score".
const char* NameOf(EvictionKind kind);
std::optional<EvictionKind> ParseEviction(const std::string& name);

// The present state of an extent.
struct ExtentUse {
  UseKey last;             // latest of all sessions; that of its fill if none used it
  bool evictable = false;  // true if nothing holds it
  uint64_t uses = 0;       // by all sessions, ended ones too; grows, except for a client that lies
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

// Maximum number of uses counted per look: a client that writes nonsense beside its leases gains no more.
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

}  // namespace sluice::weightd
