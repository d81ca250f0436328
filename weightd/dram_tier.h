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

#include "weightd/arena.h"
#include "weightd/eviction.h"
#include "weightd/store.h"

namespace sluice {

class DramTier {
 public:
  // What became of a wish for room.
  enum class Room {
    kPlaced,
    kRetiring,  // sessions must first unmap retired segments; ask again when one was dropped
    kNone       // everything that could go is held
  };

  DramTier(const Arena::Options& options, Arena::Listener listener);

  // `lengths` are stored lengths, multiples of 4096.
  uint32_t AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table);
  void AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline);
  // Call it in a fresh decision (Tick), or its last uses look as old as the last fill.
  void RemovePins(uint32_t pack, uint64_t session);

  // Starts a decision: the clock goes on. The caller notes every session's latest stamp at clock() right
  // after.
  void Tick() { ++clock_; }
  uint64_t clock() const { return clock_; }

  // Finds a place for an ABSENT extent, evicting as needed, and makes it FILLING there.
  Room BeginFill(Gid gid, std::byte** dest);
  // The bytes are in place and verified.
  void Publish(Gid gid);
  // They are not: the place is free again; `bad` marks the extent for good.
  void AbandonFill(Gid gid, bool bad);

  void DropSegment(uint32_t segment) { arena_.Drop(segment); }

  Store& store() { return store_; }
  const Store& store() const { return store_; }
  const Arena& arena() const { return arena_; }
  uint64_t evictions() const { return evictions_; }

 private:
  struct ColdSegment {
    size_t index = 0;
    UseKey median;
  };

  Room MakeRoom(uint64_t slot_bytes, Gid gid, Slot* slot);
  bool EvictOne(Gid gid);
  // The segment of another class whose typical extent is coldest: of a few, or of all with `exhaustive`.
  std::optional<ColdSegment> ColdestForeign(uint64_t slot_bytes, bool exhaustive);
  std::optional<UseKey> MedianUse(const Arena::SegmentView& segment) const;
  bool AllEvictable(const Arena::SegmentView& segment) const;
  // Evicts everything in it; false if a client was faster.
  bool Empty(const Arena::SegmentView& segment);
  EvictionPolicy& policy(uint64_t slot_bytes);
  ExtentUse Look(Gid gid) const;

  Store store_;
  Arena arena_;
  std::map<uint64_t, std::unique_ptr<EvictionPolicy>> policies_;  // by size class
  std::vector<UseKey> filled_;                                    // by gid: when it was filled, or last known
  uint64_t clock_ = 1;
  uint64_t evictions_ = 0;
  size_t probe_ = 0;  // where ColdestForeign looks next
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_DRAM_TIER_H_
