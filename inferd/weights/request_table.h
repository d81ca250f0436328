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

#include "common/ring/session_abi.h"

namespace sluice::inferd {

enum class RequestKind : uint8_t { kDemand, kPrefetch, kCancel };
inline constexpr size_t kRequestKinds = 3;

struct PendingRequest {
  uint64_t caller_id = 0;
  RequestKind kind = RequestKind::kDemand;
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
  size_t count(RequestKind kind) const { return counts_[static_cast<size_t>(kind)]; }

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
  size_t counts_[kRequestKinds] = {};
  uint64_t serial_ = 0;
};

}  // namespace sluice::inferd
