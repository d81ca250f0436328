#include "weightd/fetch/scrubber.h"

#include <algorithm>

#include "common/checksum.h"

namespace sluice {

std::optional<Scrubber::Chunk> Scrubber::Take(int64_t now) {
  if (rate_ == 0 || now < next_due_) {
    return std::nullopt;
  }
  Store& store = tier_->store();
  const auto extents = static_cast<Gid>(store.extent_count());
  for (uint32_t looks = 0; looks < std::min<uint64_t>(kMaxLooks, extents); ++looks) {
    if (next_gid_ >= extents) {
      next_gid_ = 0;
      ++stats_.scrub_passes;
    }
    const Gid gid = next_gid_;
    const bool resident = store.state(gid) == ExtentState::kResident;
    if (store.generation(gid) != generation_) {
      next_offset_ = 0;
      generation_ = store.generation(gid);
    }
    if (!resident || next_offset_ >= store.length(gid)) {
      ++next_gid_;
      generation_ = 0;
      continue;
    }
    Chunk chunk;
    const ExtentRef ref = store.RefOf(gid);
    chunk.gid = gid;
    chunk.extent = ref.extent;
    chunk.source = source_(ref.pack);
    chunk.offset = next_offset_;
    const uint64_t length = std::min(kChecksumChunkBytes, store.length(gid) - next_offset_);
    const std::byte* segment = tier_->arena().memory(store.segment(gid))->map.data();
    chunk.bytes = {segment + store.offset(gid) + next_offset_, length};
    next_offset_ += length;
    store.Pin(gid);
    // No catching up after a pause: that would be a burst.
    next_due_ = std::max(now, next_due_ + static_cast<int64_t>(length * 1e9 / static_cast<double>(rate_)));
    return chunk;
  }
  next_due_ = now + kIdleNanos;
  return std::nullopt;
}

bool Scrubber::Done(const Chunk& chunk, const absl::Status& verdict) {
  tier_->store().Unpin(chunk.gid);
  stats_.scrub_bytes += chunk.bytes.size();
  if (verdict.ok()) {
    return false;
  }
  ++stats_.scrub_failures;
  tier_->Condemn(chunk.gid);
  return true;
}

}  // namespace sluice
