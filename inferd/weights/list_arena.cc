#include "inferd/weights/list_arena.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::inferd {

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
