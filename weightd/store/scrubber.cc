#include "weightd/store/scrubber.h"

#include <algorithm>

#include "common/base/checksum.h"

namespace sluice::weightd {

std::optional<Scrubber::Chunk> Scrubber::Take(int64_t now) {
  if (rate_ == 0 || now < next_due_) {
    return std::nullopt;
  }
  ExtentStore& store = tier_->store();
  const auto extents = static_cast<ExtentId>(store.extent_count());
  for (uint32_t looks = 0; looks < std::min<uint64_t>(kMaxLooks, extents); ++looks) {
    if (next_extent_id_ >= extents) {
      next_extent_id_ = 0;
      ++stats_.scrub_passes;
    }
    const ExtentId extent_id = next_extent_id_;
    const bool resident = store.state(extent_id) == ExtentState::kResident;
    if (store.generation(extent_id) != generation_) {
      next_offset_ = 0;
      generation_ = store.generation(extent_id);
    }
    if (!resident || next_offset_ >= store.length(extent_id)) {
      ++next_extent_id_;
      generation_ = 0;
      continue;
    }
    Chunk chunk;
    const ExtentRef ref = store.RefOf(extent_id);
    chunk.extent_id = extent_id;
    chunk.extent = ref.extent;
    chunk.source = source_(ref.pack);
    chunk.offset = next_offset_;
    const uint64_t length = std::min(kChecksumChunkBytes, store.length(extent_id) - next_offset_);
    const std::byte* segment = tier_->arena().memory(store.segment(extent_id))->map.data();
    chunk.bytes = {segment + store.offset(extent_id) + next_offset_, length};
    next_offset_ += length;
    store.Pin(extent_id);
    // No catching up after a pause: that would be a burst.
    next_due_ = std::max(now, next_due_ + static_cast<int64_t>(length * 1e9 / static_cast<double>(rate_)));
    return chunk;
  }
  next_due_ = now + kIdleNanos;
  return std::nullopt;
}

bool Scrubber::Done(const Chunk& chunk, const absl::Status& verdict) {
  tier_->store().Unpin(chunk.extent_id);
  stats_.scrub_bytes += chunk.bytes.size();
  if (verdict.ok()) {
    return false;
  }
  ++stats_.scrub_failures;
  tier_->DiscardCorrupt(chunk.extent_id);
  return true;
}

}  // namespace sluice::weightd
