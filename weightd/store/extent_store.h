// All extents, with their state, slot and holders: bookkeeping without I/O or policy.
//
// Extents of all packs share one number space (the extent id): extent e of a pack is FirstExtentId(pack) + e.
// The store is the only writer of the residency tables, and reads the sessions' pins as lease.h prescribes.
//
// Thread safety: thread-compatible, guarded by the core's lock; the tables and pins it points to are shared
// with other threads and processes through atomics.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/protocol/session_abi.h"
#include "weightd/store/eviction.h"

namespace sluice::weightd {

using ExtentId = uint32_t;

// Pack and extent of an extent id.
struct ExtentRef {
  uint32_t pack = 0;
  uint32_t extent = 0;
};

class ExtentStore {
 public:
  // Adds a pack of `lengths.size()` extents whose table is `table` (borrowed, all ABSENT). Returns its
  // number.
  uint32_t AddPack(const std::vector<uint64_t>& lengths, ResidencyEntry* table);

  ExtentId FirstExtentId(uint32_t pack) const { return packs_[pack].first; }
  ExtentRef RefOf(ExtentId extent_id) const;
  uint64_t length(ExtentId extent_id) const { return extents_[extent_id].length; }
  size_t extent_count() const { return extents_.size(); }

  // Adds a session's pins of one pack (borrowed), and the timeline of its stamps.
  void AddPins(uint32_t pack, uint64_t session, const PinEntry* pins, const StepTimeline* timeline);
  // Removes the session's pins: from here on they hold nothing. `seen` is called for each resident extent
  // that the session used or holds, with that use. Its counts of uses are kept.
  void RemovePins(uint32_t pack, uint64_t session, uint64_t now,
                  absl::FunctionRef<void(ExtentId, UseKey)> seen);

  ExtentState state(ExtentId extent_id) const { return extents_[extent_id].state; }
  uint32_t segment(ExtentId extent_id) const { return extents_[extent_id].segment; }
  uint64_t offset(ExtentId extent_id) const { return extents_[extent_id].offset; }
  // Grows with every fill.
  uint64_t generation(ExtentId extent_id) const { return extents_[extent_id].generation; }

  // Transitions: ABSENT -> FILLING at a slot, then RESIDENT, ABSENT or BAD.
  void BeginFill(ExtentId extent_id, uint32_t segment, uint64_t offset);
  void Publish(ExtentId extent_id);
  void AbandonFill(ExtentId extent_id);
  void MarkBad(ExtentId extent_id);

  // Pins of weightd itself: unfinished requests and unreaped completions.
  void Pin(ExtentId extent_id) { ++extents_[extent_id].internal_pins; }
  void Unpin(ExtentId extent_id) { --extents_[extent_id].internal_pins; }

  // True if anything holds the extent now; a client may lease it a moment later.
  bool Held(ExtentId extent_id) const;
  // RESIDENT -> ABSENT unless somebody holds it. After true the slot is free.
  bool Evict(ExtentId extent_id);
  // RESIDENT -> ABSENT though somebody may hold it: no new lease succeeds, but its bytes may still be read
  // until Held() was seen false.
  void Withdraw(ExtentId extent_id);
  // The latest use by any session; a zero key if none ever used it.
  UseKey LastUse(ExtentId extent_id, uint64_t now) const;
  // Number of uses by all sessions, ended ones too.
  uint64_t Uses(ExtentId extent_id) const;
  // Counts a use by weightd itself for a client: a copy from it ended.
  void CountUse(ExtentId extent_id) { ++extents_[extent_id].past_uses; }

  // Bytes of the extents whose last use by the session was in its step `step`, by extent length.
  std::map<uint64_t, uint64_t> BytesUsedIn(uint64_t session, uint64_t step) const;

  // A number that changes when a session uses the extent.
  uint64_t UseVersion(ExtentId extent_id) const;

  uint64_t resident_bytes() const { return resident_bytes_; }
  uint64_t resident_extents() const { return resident_extents_; }
  uint64_t bad_extents() const { return bad_extents_; }
  // Extents of a pack that this session pins at least once.
  struct Holdings {
    uint64_t extents = 0;
    uint64_t bytes = 0;
  };
  Holdings HeldBy(uint32_t pack, uint64_t session) const;

 private:
  struct Extent {
    uint64_t length = 0;
    uint64_t generation = 0;
    uint64_t offset = 0;
    uint64_t past_uses = 0;  // by ended sessions and by weightd itself
    uint32_t segment = 0;
    uint32_t internal_pins = 0;
    uint32_t pack = 0;
    ExtentState state = ExtentState::kAbsent;
  };
  struct PinSource {
    uint64_t session = 0;
    const PinEntry* pins = nullptr;
    const StepTimeline* timeline = nullptr;
  };
  struct PackRecord {
    ExtentId first = 0;
    uint32_t count = 0;
    ResidencyEntry* table = nullptr;
    std::vector<PinSource> sources;
  };

  ResidencyEntry& entry(ExtentId extent_id) {
    const PackRecord& pack = packs_[extents_[extent_id].pack];
    return pack.table[extent_id - pack.first];
  }
  void SetAbsent(ExtentId extent_id);

  std::vector<Extent> extents_;
  std::vector<PackRecord> packs_;
  uint64_t resident_bytes_ = 0;
  uint64_t resident_extents_ = 0;
  uint64_t bad_extents_ = 0;
};

}  // namespace sluice::weightd
