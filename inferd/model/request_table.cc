#include "inferd/model/request_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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
  cancels_ += request.cancel ? 1 : 0;
  prefetches_ += request.request_class == RequestClass::kPrefetch ? 1 : 0;
  return slots_[index].ring_id;
}

size_t RequestTable::SlotOf(uint64_t ring_id) { return ring_id & ((uint64_t{1} << kSlotBits) - 1); }

size_t RequestTable::BucketOf(uint64_t caller_id) const {
  return (caller_id * 0x9e3779b97f4a7c15ull >> 32) % buckets_.size();
}

uint64_t RequestTable::RingId(uint64_t caller_id) const {
  for (uint32_t at = buckets_[BucketOf(caller_id)]; at != kNone; at = slots_[at].next) {
    if (slots_[at].request.caller_id == caller_id && !slots_[at].request.cancel) {
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
  cancels_ -= request.cancel ? 1 : 0;
  prefetches_ -= request.request_class == RequestClass::kPrefetch ? 1 : 0;
  return request;
}

absl::StatusOr<uint32_t> ListArena::Lend(absl::Span<const uint32_t> neurons, uint64_t sequence,
                                         uint64_t consumed) {
  const uint32_t capacity = control_.layout.list_entries;
  const auto length = static_cast<uint32_t>(neurons.size());
  if (neurons.size() >= capacity) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of ", neurons.size(), " neurons, the arena has room for ", capacity - 1));
  }
  while (count_ != 0 && Oldest().sequence < consumed) {
    ++first_;
    --count_;
  }
  if (count_ == 0) {
    end_ = 0;
  } else if (count_ == lent_.size()) {
    return absl::ResourceExhaustedError("submission ring is full");
  }
  const uint32_t begin = count_ == 0 ? 0 : Oldest().offset;  // first lent offset
  bool ahead = count_ == 0 || end_ > begin;                  // else it has wrapped around
  if (ahead && begin > 0 && capacity - end_ <= length) {
    end_ = 0;
    ahead = false;
  }
  if ((ahead ? capacity : begin) - end_ <= length) {
    return absl::ResourceExhaustedError(absl::StrCat("the arena has no room for ", length, " neurons"));
  }
  const uint32_t offset = end_;
  for (uint32_t i = 0; i < length; ++i) {
    control_.list[offset + i].store(neurons[i], std::memory_order_relaxed);
  }
  lent_[(first_ + count_++) % lent_.size()] = {sequence, offset};
  end_ += length;
  return offset;
}

}  // namespace sluice::inferd
