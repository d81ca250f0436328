#include "inferd/weights/request_table.h"

namespace sluice::inferd {
namespace {

// A ring id: the serial number in the upper bits, the slot in the lower ones.
constexpr int kSlotBits = 14;
static_assert(kMaxRingEntries == 1u << kSlotBits);

}  // namespace

RequestTable::RequestTable(size_t capacity) : slots_(capacity), buckets_(2 * capacity, kNone) {
  free_.reserve(capacity);
  for (size_t i = capacity; i > 0; --i) {
    free_.push_back(static_cast<uint32_t>(i - 1));
  }
}

uint64_t RequestTable::Add(const PendingRequest& request) {
  const uint32_t index = free_.back();
  free_.pop_back();
  uint32_t& bucket = buckets_[BucketOf(request.caller_id)];
  slots_[index] = {++serial_ << kSlotBits | index, request, bucket};
  bucket = index;
  ++counts_[static_cast<size_t>(request.kind)];
  return slots_[index].ring_id;
}

size_t RequestTable::SlotOf(uint64_t ring_id) { return ring_id & ((uint64_t{1} << kSlotBits) - 1); }

size_t RequestTable::BucketOf(uint64_t caller_id) const {
  return (caller_id * 0x9e3779b97f4a7c15ull >> 32) % buckets_.size();
}

uint64_t RequestTable::RingId(uint64_t caller_id) const {
  for (uint32_t at = buckets_[BucketOf(caller_id)]; at != kNone; at = slots_[at].next) {
    if (slots_[at].request.caller_id == caller_id && slots_[at].request.kind != RequestKind::kCancel) {
      return slots_[at].ring_id;
    }
  }
  return 0;
}

std::optional<PendingRequest> RequestTable::Take(uint64_t ring_id) {
  const size_t index = SlotOf(ring_id);
  if (ring_id == 0 || index >= slots_.size() || slots_[index].ring_id != ring_id) {
    return std::nullopt;
  }
  const PendingRequest request = slots_[index].request;
  uint32_t* link = &buckets_[BucketOf(request.caller_id)];
  while (*link != index) {
    link = &slots_[*link].next;
  }
  *link = slots_[index].next;
  slots_[index].ring_id = 0;
  free_.push_back(static_cast<uint32_t>(index));
  --counts_[static_cast<size_t>(request.kind)];
  return request;
}

}  // namespace sluice::inferd
