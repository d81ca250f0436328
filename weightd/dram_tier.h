// The DRAM tier: store, arena and eviction together. Finds room for an extent, publishes it, and takes it
// back.
//
// Thread safety: thread-compatible; the core's lock guards it.
#ifndef SLUICE_WEIGHTD_DRAM_TIER_H_
#define SLUICE_WEIGHTD_DRAM_TIER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "weightd/admission.h"
#include "weightd/arena.h"
#include "weightd/eviction.h"
#include "weightd/store.h"

namespace sluice {

// How the tier chooses what goes.
struct TierPolicy {
  EvictionKind eviction = EvictionKind::kLru;
  // Extents that were used once go before those used again (admission.h).
  bool admission = true;
};

class DramTier {
 public:
  // What became of a wish for room.
  enum class Room {
    kPlaced,
    kRetiring,  // sessions must first unmap retired segments; ask again when one was dropped
    kNone       // everything that could go is held
  };

  DramTier(const Arena::Options& options, Arena::Listener listener, const TierPolicy& policy = {});

  // `lengths` are stored lengths, multiples of 4096.
  uint32_t AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table);
  void AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline);
  // Call it in a fresh decision (Tick), or its last uses look as old as the last fill.
  void RemovePins(uint32_t pack, uint64_t session);

  // Starts a decision: the clock goes on. The caller notes every session's latest stamp at clock() right
  // after.
  void Tick() {
    ++clock_;
    fill_bytes_.Note(clock_, filled_bytes_);
  }
  uint64_t clock() const { return clock_; }

  // Finds a place for an ABSENT extent, evicting as needed, and makes it FILLING there.
  Room BeginFill(Gid gid, std::byte** dest);
  // The bytes are in place and verified.
  void Publish(Gid gid);
  // They are not: the place is free again; `bad` marks the extent for good.
  void AbandonFill(Gid gid, bool bad);

  // weightd has read an unleased extent for a client (copied from it): as good as a client's use.
  void NoteUse(Gid gid);

  void DropSegment(uint32_t segment) { arena_.Drop(segment); }

  Store& store() { return store_; }
  const Store& store() const { return store_; }
  const Arena& arena() const { return arena_; }
  uint64_t evictions() const { return evictions_; }
  const TierPolicy& policy_kind() const { return policy_; }
  // Of the admission: extents that it trusts now, and how many it came to trust so far.
  uint64_t trusted_extents() const;
  uint64_t promotions() const;
  // Bytes filled so far by the budget: the time in which policies reckon.
  double turnovers() const;

 private:
  struct ColdSegment {
    size_t index = 0;
    UseKey median;
  };
  struct SizeClass {
    std::unique_ptr<EvictionPolicy> policy;
    ProbationPolicy* probation = nullptr;  // `policy`, if there is admission
    uint64_t resident_bytes = 0;
    // Bytes filled, those of one turnover ago counted half.
    double recent_bytes = 0;
    double recent_at = 0;
  };

  Room MakeRoom(uint64_t slot_bytes, Gid gid, Slot* slot);
  bool EvictOne(Gid gid);
  // The segment of another class whose typical extent is coldest: of a few, or of all with `exhaustive`.
  std::optional<ColdSegment> ColdestForeign(uint64_t slot_bytes, bool exhaustive);
  std::optional<UseKey> MedianUse(const Arena::SegmentView& segment) const;
  bool AllEvictable(const Arena::SegmentView& segment) const;
  // Evicts everything in it; false if a client was faster.
  bool Empty(const Arena::SegmentView& segment);
  // Whether the class reads so much more than its share of the memory that it may take of others'.
  bool Hungry(uint64_t slot_bytes);
  SizeClass& size_class(uint64_t slot_bytes);
  EvictionPolicy& policy(uint64_t slot_bytes) { return *size_class(slot_bytes).policy; }
  ExtentUse Look(Gid gid) const;
  double Recent(const SizeClass& size_class) const;

  const TierPolicy policy_;
  Store store_;
  Arena arena_;
  std::map<uint64_t, SizeClass> classes_;  // by slot size
  std::vector<UseKey> filled_;             // by gid: when it was filled, or last known
  StepTimeline fill_bytes_;                // maps clock() to filled_bytes_
  uint64_t filled_bytes_ = 0;
  uint64_t pack_bytes_ = 0;
  uint64_t clock_ = 1;
  uint64_t evictions_ = 0;
  size_t probe_ = 0;  // where ColdestForeign looks next
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_DRAM_TIER_H_
