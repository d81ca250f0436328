#include "inferd/request_table.h"

namespace sluice {
namespace {

// A ring id: a serial number above, the slot's number below.
constexpr int kSlotBits = 14;
static_assert(kMaxRingEntries == 1u << kSlotBits);

}  // namespace

RequestTable::RequestTable(size_t capacity) : slots_(capacity) {
  free_.reserve(capacity);
  for (size_t i = capacity; i > 0; --i) {
    free_.push_back(static_cast<uint32_t>(i - 1));
  }
}

uint64_t RequestTable::Add(const PendingRequest& request) {
  const uint32_t index = free_.back();
  free_.pop_back();
  slots_[index] = {++serial_ << kSlotBits | index, request};
  ++counts_[static_cast<size_t>(request.kind)];
  return slots_[index].ring_id;
}

std::optional<PendingRequest> RequestTable::Take(uint64_t ring_id) {
  const size_t index = ring_id & ((uint64_t{1} << kSlotBits) - 1);
  if (ring_id == 0 || index >= slots_.size() || slots_[index].ring_id != ring_id) {
    return std::nullopt;
  }
  const PendingRequest request = slots_[index].request;
  slots_[index].ring_id = 0;
  free_.push_back(static_cast<uint32_t>(index));
  --counts_[static_cast<size_t>(request.kind)];
  return request;
}

}  // namespace sluice
