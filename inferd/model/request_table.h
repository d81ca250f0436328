// RequestTable: a session's requests without a completion, and their ids on the ring. Callers choose their
// own ids; ring ids are separate, so that a cancel never collides with them and a completion that matches no
// request is recognised.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/rings.h"
#include "common/protocol/session_abi.h"

namespace sluice::inferd {

struct PendingRequest {
  uint64_t caller_id = 0;
  RequestClass request_class = RequestClass::kDemand;
  bool cancel = false;
};

class RequestTable {
 public:
  // REQUIRES: 0 < capacity <= kMaxRingEntries.
  explicit RequestTable(size_t capacity);

  // The id to put on the ring. REQUIRES: size() < capacity().
  uint64_t Add(const PendingRequest& request);
  // The ring id of an outstanding request that is no cancel, 0 if there is none; the latest of several.
  uint64_t RingId(uint64_t caller_id) const;
  // A number below capacity() that no other outstanding request has.
  static size_t SlotOf(uint64_t ring_id);
  // Removes and returns the request; nullopt if there is none.
  std::optional<PendingRequest> Take(uint64_t ring_id);

  size_t size() const { return slots_.size() - free_.size(); }
  size_t capacity() const { return slots_.size(); }
  size_t cancels() const { return cancels_; }
  size_t prefetches() const { return prefetches_; }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Slot {
    uint64_t ring_id = 0;  // 0: free
    PendingRequest request;
    uint32_t next = kNone;  // in the chain of its bucket
  };
  size_t BucketOf(uint64_t caller_id) const;

  std::vector<Slot> slots_;
  std::vector<uint32_t> buckets_;  // by caller id: first slot of the chain
  std::vector<uint32_t> free_;
  size_t cancels_ = 0;
  size_t prefetches_ = 0;
  uint64_t serial_ = 0;
};

// ListArena: the client's side of a session's index arena, which holds lists of neurons until weightd has
// read them. It is a ring buffer; weightd releases lists in the order of their entries.
//
// Thread safety: thread-compatible; the engine thread's.

class ListArena {
 public:
  // Over the arena of `control`, which outlives this object.
  explicit ListArena(const ControlView& control) : control_(control), lent_(control.layout.ring_entries) {}

  // Copies a list in for submission entry `sequence`; returns its offset. `consumed`: number of entries that
  // weightd has taken, whose lists are free again. RESOURCE_EXHAUSTED: no room; INVALID_ARGUMENT: longer than
  // the arena. REQUIRES: neurons not empty; `sequence` ascends.
  absl::StatusOr<uint32_t> Lend(absl::Span<const uint32_t> neurons, uint64_t sequence, uint64_t consumed);

 private:
  struct LentList {
    uint64_t sequence = 0;
    uint32_t offset = 0;
  };
  const LentList& Oldest() const { return lent_[first_ % lent_.size()]; }

  const ControlView control_;
  std::vector<LentList> lent_;  // [ring_entries], a ring buffer
  size_t first_ = 0;
  size_t count_ = 0;
  uint32_t end_ = 0;  // offset of the next list
};

}  // namespace sluice::inferd
