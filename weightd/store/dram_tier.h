// The DRAM tier: store, arena and eviction together. Allocates slots for extents, publishes and evicts them.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "weightd/store/admission.h"
#include "weightd/store/arena.h"
#include "weightd/store/eviction.h"
#include "weightd/store/extent_store.h"

namespace sluice::weightd {

// Policies that choose the extents to evict.
struct TierPolicy {
  EvictionKind eviction = EvictionKind::kLru;
  // Extents that were used once are evicted before those used again (admission.h).
  bool admission = true;
};

class DramTier {
 public:
  // Outcome of a request for a slot.
  enum class AllocResult {
    kAllocated,
    kRetiring,  // sessions must first unmap retired segments; retry when one was dropped
    kNone       // every extent that could be evicted is held
  };

  DramTier(const Arena::Options& options, Arena::Listener listener, const TierPolicy& policy = {});

  // `lengths` are stored lengths, multiples of 4096.
  uint32_t AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table);
  void AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline);
  // REQUIRES: a fresh decision (Tick); otherwise its last uses look as old as the last fill.
  void RemovePins(uint32_t pack, uint64_t session);

  // Starts a decision: advances the clock. The caller notes every session's latest stamp at clock() right
  // after.
  void Tick() {
    ++clock_;
    fill_bytes_.Note(clock_, filled_bytes_);
  }
  uint64_t clock() const { return clock_; }

  // Allocates a slot for an ABSENT extent, evicting as needed, and makes the extent FILLING there. The bytes
  // are charged to `session` (0: nobody); a session with a quota evicts its own coldest extents before it
  // exceeds the quota. `step`: the engine step that the extent is filled for. `scan`: the position of a step
  // that scans, which evicts as ScanOrder says; null: no scan.
  AllocResult BeginFill(ExtentId extent_id, std::byte** dest, uint64_t session = 0, uint64_t step = 0,
                        const ScanPlace* scan = nullptr);
  // Makes the extent RESIDENT. REQUIRES: the bytes are in place and verified.
  void Publish(ExtentId extent_id);
  // Ends a failed fill: the slot is free again; `bad` marks the extent for good.
  void AbandonFill(ExtentId extent_id, bool bad);

  // Limits the session to `quota` filled bytes.
  void SetQuota(uint64_t session, uint64_t quota);
  // Ends a session: its filled bytes are charged to nobody from then on.
  void RemoveSession(uint64_t session);
  // Filled bytes charged to the session's quota; 0 without one.
  uint64_t charged_bytes(uint64_t session) const;

  // Bytes of retired segments that a session is slow to unmap: fills wait for `slow` bytes only if there is
  // no other room, and never for `lost` of them.
  void SetSlow(uint64_t slow, uint64_t lost) {
    slow_bytes_ = slow;
    lost_bytes_ = lost;
  }

  // Allocates a second slot for an extent that is FILLING, for a hedged read of it. The slot belongs to that
  // read: no extent lies there until MoveFill(), and FreeSlot() frees it when the read has ended.
  AllocResult AllocateHedgeSlot(ExtentId extent_id, Slot* slot);
  // Moves the fill to `second`. Returns its former slot, which belongs to the first read.
  Slot MoveFill(ExtentId extent_id, const Slot& second);
  void FreeSlot(const Slot& slot) { arena_.Free(slot.segment, slot.offset); }

  // Counts a read of an unleased extent by weightd for a client (a copy from it) like a client's use.
  void NoteUse(ExtentId extent_id);
  // The same in a step that scans, whose uses do not count for eviction.
  void NoteScanned(ExtentId extent_id, uint64_t step);

  // Handles a resident extent whose bytes have gone bad in memory: it is ABSENT at once and may be filled
  // anew in another slot. Its slot is free when nobody holds the extent any more (ReclaimBadSlots).
  void DiscardCorrupt(ExtentId extent_id);
  void ReclaimBadSlots();
  size_t bad_slots() const { return bad_slots_.size(); }

  void DropSegment(uint32_t segment) { arena_.Drop(segment); }

  // Sets the arena's budget. If it is smaller than the bytes held, Shrink() frees the rest.
  void SetBudget(uint64_t budget) { arena_.SetBudget(budget); }
  // Empties at most `segments` of the coldest segments and retires empty ones, until all bytes except those
  // being retired are within the budget. True if they are. REQUIRES: a fresh decision (Tick).
  bool Shrink(int segments);

  ExtentStore& store() { return store_; }
  const ExtentStore& store() const { return store_; }
  const Arena& arena() const { return arena_; }
  uint64_t evictions() const { return evictions_; }
  const TierPolicy& policy_kind() const { return policy_; }
  // Number of extents that the admission trusts now, and number of promotions so far.
  uint64_t trusted_extents() const;
  uint64_t promotions() const;
  // Bytes filled so far divided by the budget: the policies' time.
  double turnovers() const;

 private:
  struct ColdSegment {
    size_t index = 0;
    UseKey median;
  };
  struct SizeClass {
    std::unique_ptr<EvictionPolicy> policy;
    ProbationPolicy* probation = nullptr;  // `policy`, if admission is on
    ScanOrder scan;
    uint64_t resident_bytes = 0;
    // Bytes filled; those of one turnover ago count half.
    double recent_bytes = 0;
    double recent_at = 0;
  };

  struct SessionQuota {
    uint64_t quota = 0;
    uint64_t charged = 0;
    std::unique_ptr<EvictionPolicy> policy;  // over the resident extents that this session filled
  };

  // Evicts the session's own extents until `bytes` more are within its quota.
  bool MakeQuota(uint64_t session, uint64_t bytes, const ScanPlace* scan);
  // The extent that a scan evicts first, among those charged to the session's quota.
  std::optional<EvictionCandidate> ScanVictim(uint64_t session, const ScanPlace& scan);
  // True if the scan is better off with the extent than with its room.
  bool IsWorthKeeping(const ScanPlace& scan, ExtentId extent_id) const;
  void Uncharge(ExtentId extent_id);
  // True if `retired` bytes on their way back would make room.
  bool RetirementSuffices(uint64_t slot_bytes, uint64_t retired) const {
    return retired != 0 && arena_.budget() + retired >= arena_.total_bytes() + slot_bytes;
  }
  AllocResult AllocateSlot(uint64_t slot_bytes, ExtentId extent_id, Slot* slot, const ScanPlace* scan);
  bool EvictOne(ExtentId extent_id);
  // The segment of another class whose typical extent is coldest: among a few samples, or all with
  // `exhaustive`.
  std::optional<ColdSegment> ColdestOfOtherClasses(uint64_t slot_bytes, bool exhaustive,
                                                   uint64_t least_bytes);
  std::optional<UseKey> MedianUse(const Arena::SegmentView& segment) const;
  bool AllEvictable(const Arena::SegmentView& segment) const;
  // Evicts every extent in the segment; false if a client leased one meanwhile.
  bool Empty(const Arena::SegmentView& segment);
  // True if the class's share of reads exceeds its share of the memory so much that it may evict from others.
  bool IsUnderserved(uint64_t slot_bytes);
  SizeClass& size_class(uint64_t slot_bytes);
  EvictionPolicy& policy(uint64_t slot_bytes) { return *size_class(slot_bytes).policy; }
  ExtentUse Look(ExtentId extent_id) const;
  double Recent(const SizeClass& size_class) const;

  const TierPolicy policy_;
  ExtentStore store_;
  Arena arena_;
  std::map<uint64_t, SizeClass> classes_;  // by slot size
  std::vector<UseKey> filled_;             // by extent id: when it was filled, or its last known use
  StepUses step_uses_;
  StepTimeline fill_bytes_;  // maps clock() to filled_bytes_
  struct BadSlot {
    ExtentId extent_id;
    uint32_t segment;
    uint64_t offset;
  };
  std::vector<BadSlot> bad_slots_;
  absl::flat_hash_set<ExtentId> scanning_;           // being filled for a scan
  std::map<uint64_t, SessionQuota> session_quotas_;  // sessions with a quota
  absl::flat_hash_map<ExtentId, uint64_t> charged_to_;
  uint64_t slow_bytes_ = 0;
  uint64_t lost_bytes_ = 0;
  uint64_t filled_bytes_ = 0;
  uint64_t pack_bytes_ = 0;
  uint64_t clock_ = 1;
  uint64_t evictions_ = 0;
  size_t probe_ = 0;  // the next probe of ColdestOfOtherClasses
};

}  // namespace sluice::weightd
