// The lease protocol: a client reads an extent in place while weightd may want to evict it, without a
// message.
//
// Lease: seq_cst increment of pins, then seq_cst load of the state; unless it is RESIDENT, the increment is
// undone. Evict: seq_cst store of EVICTING, then seq_cst loads of every session's pins; if one is above zero,
// the mark is removed. In the single order of these four operations either the lease sees EVICTING or the
// eviction sees the pin, so an extent is never overwritten under a lease. The protocol uses operations, not
// fences: TSan does not support fences.
//
// Thread safety: every function is safe from any thread of any process that maps the words; for one (session,
// extent) concurrent releases by several threads may lose a use in the stamps. Functions take the words, not
// mappings, so that tests can run both sides on one mapping, which TSan can follow.
#pragma once

#include "common/protocol/protocol_step.h"
#include "common/protocol/session_abi.h"

namespace sluice {

// Client. Takes a lease. True: the extent stays at `*place` until ReleaseLease; `*generation` is its fill.
// False: not resident, no lease is held.
inline bool TryLease(const ResidencyEntry& entry, PinEntry& pin, uint64_t* place, uint64_t* generation) {
  // Both lines usually miss the cache; fetched together they cost one latency instead of two.
  __builtin_prefetch(&entry, 0);
  ProtocolStep(ProtocolPoint::kLeasePin, &pin);
  pin.pins.fetch_add(1, std::memory_order_seq_cst);
  ProtocolStep(ProtocolPoint::kLeaseCheck, &entry);
  const uint64_t state = entry.state.load(std::memory_order_seq_cst);
  if (StateOf(state) != ExtentState::kResident) [[unlikely]] {
    ProtocolStep(ProtocolPoint::kLeaseUndo, &pin);
    pin.pins.fetch_sub(1, std::memory_order_seq_cst);
    return false;
  }
  *place = entry.place.load(std::memory_order_relaxed);
  *generation = GenerationOf(state);
  return true;
}

// Client. Releases a lease; `stamp` is StepStamp(step, order) of the use, never smaller than the one before,
// and `last_stamp` the session's word in its control region. Both are written before the pin is decremented,
// so weightd never sees an unpinned extent without its last use. `counts`: false for a use in a scan.
inline void ReleaseLease(PinEntry& pin, std::atomic<uint64_t>& last_stamp, uint64_t stamp,
                         bool counts = true) {
  ProtocolStep(ProtocolPoint::kReleaseStamp, &pin);
  pin.uses.store(pin.uses.load(std::memory_order_relaxed) + (counts ? 1 : 0), std::memory_order_relaxed);
  pin.last_step.store(stamp, std::memory_order_relaxed);
  last_stamp.store(stamp, std::memory_order_relaxed);
  ProtocolStep(ProtocolPoint::kReleaseUnpin, &pin);
  pin.pins.fetch_sub(1, std::memory_order_seq_cst);
}

// Client. Undoes a lease without a use: for a place in a segment that this process cannot map.
inline void UndoLease(PinEntry& pin) {
  ProtocolStep(ProtocolPoint::kLeaseUndo, &pin);
  pin.pins.fetch_sub(1, std::memory_order_seq_cst);
}

// Either side. True if a lease would probably succeed now; takes nothing.
inline bool IsResident(const ResidencyEntry& entry) {
  return StateOf(entry.state.load(std::memory_order_relaxed)) == ExtentState::kResident;
}

// weightd. Publishes the extent: its bytes are in place and verified, and it may be leased from here on.
// REQUIRES: not resident.
inline void PublishResident(ResidencyEntry& entry, uint32_t segment, uint64_t offset, uint64_t generation) {
  ProtocolStep(ProtocolPoint::kPublishPlace, &entry);
  entry.place.store(PackPlace(segment, offset), std::memory_order_relaxed);
  ProtocolStep(ProtocolPoint::kPublishState, &entry);
  entry.state.store(PackState(ExtentState::kResident, generation), std::memory_order_seq_cst);
}

// weightd. Sets any state but RESIDENT.
inline void PublishState(ResidencyEntry& entry, ExtentState state, uint64_t generation) {
  ProtocolStep(ProtocolPoint::kPublishState, &entry);
  entry.state.store(PackState(state, generation), std::memory_order_seq_cst);
}

// weightd. Withdraws a resident extent unless a client holds a lease on it. `any_pin()` returns true if any
// session's pins of the extent are above zero, reading each with PinsHeld(). True: the extent is ABSENT and
// its bytes may be overwritten. False: it is RESIDENT again.
template <typename AnyPin>
bool TryEvict(ResidencyEntry& entry, const AnyPin& any_pin) {
  const uint64_t generation = GenerationOf(entry.state.load(std::memory_order_relaxed));
  ProtocolStep(ProtocolPoint::kEvictMark, &entry);
  entry.state.store(PackState(ExtentState::kEvicting, generation), std::memory_order_seq_cst);
  const bool held = any_pin();
  ProtocolStep(ProtocolPoint::kEvictDecide, &entry);
  if (held) {
    entry.state.store(PackState(ExtentState::kResident, generation), std::memory_order_seq_cst);
    return false;
  }
  entry.state.store(PackState(ExtentState::kAbsent, generation), std::memory_order_seq_cst);
  return true;
}

// weightd, within TryEvict.
inline bool PinsHeld(const PinEntry& pin) {
  ProtocolStep(ProtocolPoint::kEvictCheck, &pin);
  return pin.pins.load(std::memory_order_seq_cst) != 0;
}

}  // namespace sluice
