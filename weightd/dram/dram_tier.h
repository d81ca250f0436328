// The DRAM tier: store, arena and eviction together. Finds room for an extent, publishes it, and takes it
// back.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "weightd/dram/admission.h"
#include "weightd/dram/arena.h"
#include "weightd/dram/eviction.h"
#include "weightd/dram/scan_order.h"
#include "weightd/dram/step_uses.h"
#include "weightd/dram/store.h"

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

  // Finds a place for an ABSENT extent, evicting as needed, and makes it FILLING there. What it takes is
  // charged to `session` (0: nobody): one with a quota evicts of its own, the coldest first, before it
  // exceeds it. `step`: the engine's, for which it is filled.
  // `scan`: the step is a scan, which stands there, and takes room as ScanOrder says; null: it is none.
  Room BeginFill(Gid gid, std::byte** dest, uint64_t session = 0, uint64_t step = 0,
                 const ScanPlace* scan = nullptr);
  // The bytes are in place and verified.
  void Publish(Gid gid);
  // They are not: the place is free again; `bad` marks the extent for good.
  void AbandonFill(Gid gid, bool bad);

  // A session that may fill at most `quota` bytes.
  void SetQuota(uint64_t session, uint64_t quota);
  // It has ended: what it filled belongs to nobody then.
  void RemoveSession(uint64_t session);
  // Bytes that the session's fills take of its quota; 0 without one.
  uint64_t charged_bytes(uint64_t session) const;

  // Of the retired segments' bytes, those that a session is slow to unmap: no fill waits for them if it can
  // have other room, and none waits at all for `lost` of them.
  void SetSlow(uint64_t slow, uint64_t lost) {
    slow_bytes_ = slow;
    lost_bytes_ = lost;
  }

  // A second place for an extent that is FILLING, for another read of it. It belongs to that read: no extent
  // lies there until MoveFill(), and FreePlace() gives it back when the read has ended.
  Room SecondPlace(Gid gid, Slot* place);
  // The extent is filled at `second` from now on. Returns its former place, which belongs to the first read.
  Slot MoveFill(Gid gid, const Slot& second);
  void FreePlace(const Slot& place) { arena_.Free(place.segment, place.offset); }

  // weightd has read an unleased extent for a client (copied from it): as good as a client's use.
  void NoteUse(Gid gid);
  // The same in a step that scans, whose uses count for nothing.
  void NoteScanned(Gid gid, uint64_t step);

  // A resident extent's bytes have gone bad in memory: it is ABSENT at once and may be filled anew elsewhere.
  // Its place is free when nobody holds the extent any more (SweepCondemned).
  void Condemn(Gid gid);
  void SweepCondemned();
  size_t condemned() const { return condemned_.size(); }

  void DropSegment(uint32_t segment) { arena_.Drop(segment); }

  // The arena's budget from now on. Where it is smaller than what is held, Shrink() gives the rest back.
  void SetBudget(uint64_t budget) { arena_.SetBudget(budget); }
  // Empties at most `segments` of the coldest and retires what is empty, until all that is not on its way
  // back is within the budget. True: it is. Call it in a fresh decision (Tick).
  bool Shrink(int segments);

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
    ScanOrder scan;
    uint64_t resident_bytes = 0;
    // Bytes filled, those of one turnover ago counted half.
    double recent_bytes = 0;
    double recent_at = 0;
  };

  struct Tenant {
    uint64_t quota = 0;
    uint64_t charged = 0;
    std::unique_ptr<EvictionPolicy> policy;  // over the resident extents that it filled
  };

  // Evicts the session's own until `bytes` more are within its quota.
  bool MakeQuota(uint64_t session, uint64_t bytes, const ScanPlace* scan);
  // Of all that the session's quota pays for, what a scan of its gives up first.
  std::optional<EvictionCandidate> ScannedOf(uint64_t session, const ScanPlace& scan);
  // Whether the scan would be better off without the room than without the extent.
  bool StillNeeds(const ScanPlace& scan, Gid gid) const;
  void Uncharge(Gid gid);
  // Whether `retired` bytes on their way back would make room.
  bool RoomComes(uint64_t slot_bytes, uint64_t retired) const {
    return retired != 0 && arena_.budget() + retired >= arena_.total_bytes() + slot_bytes;
  }
  Room MakeRoom(uint64_t slot_bytes, Gid gid, Slot* slot, const ScanPlace* scan);
  bool EvictOne(Gid gid);
  // The segment of another class whose typical extent is coldest: of a few, or of all with `exhaustive`.
  std::optional<ColdSegment> ColdestForeign(uint64_t slot_bytes, bool exhaustive, uint64_t least_bytes);
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
  StepUses step_uses_;
  StepTimeline fill_bytes_;  // maps clock() to filled_bytes_
  struct Condemned {
    Gid gid;
    uint32_t segment;
    uint64_t offset;
  };
  std::vector<Condemned> condemned_;
  absl::flat_hash_set<Gid> scanning_;   // being filled for a scan
  std::map<uint64_t, Tenant> tenants_;  // sessions with a quota
  absl::flat_hash_map<Gid, uint64_t> charged_to_;
  uint64_t slow_bytes_ = 0;
  uint64_t lost_bytes_ = 0;
  uint64_t filled_bytes_ = 0;
  uint64_t pack_bytes_ = 0;
  uint64_t clock_ = 1;
  uint64_t evictions_ = 0;
  size_t probe_ = 0;  // where ColdestForeign looks next
};

}  // namespace sluice
