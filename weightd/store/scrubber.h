// Background scrub: selects resident bytes to verify against their checksums, at a settable rate.
//
// Memory rots too, and bytes that stay resident for weeks are never read again. Every chunk of every resident
// extent gets its turn; the caller verifies it (without any lock) and reports the verdict.
//
// Thread safety: thread-compatible; the core's lock guards it, except for Chunk, which may be verified
// anywhere between Take() and Done().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_source.h"

namespace sluice::weightd {

// Counters of the scrub.
struct ScrubStats {
  uint64_t scrub_bytes = 0;     // verified again in memory
  uint64_t scrub_passes = 0;    // over everything that was resident
  uint64_t scrub_failures = 0;  // extents whose bytes had gone bad
};

class Scrubber {
 public:
  // A checksum chunk of a resident extent, which is pinned until Done().
  struct Chunk {
    ExtentId extent_id = 0;
    uint32_t extent = 0;  // in its pack
    const ExtentSource* source = nullptr;
    uint64_t offset = 0;  // in the extent
    std::span<const std::byte> bytes;

    absl::Status Verify() const { return source->Verify(extent, offset, bytes); }
  };

  // `bytes_per_second` 0: never. `source` returns a pack's source by the tier's number.
  Scrubber(uint64_t bytes_per_second, DramTier* tier,
           std::function<const ExtentSource*(uint32_t pack)> source)
      : rate_(bytes_per_second), tier_(tier), source_(std::move(source)) {}

  void SetRate(uint64_t bytes_per_second) { rate_ = bytes_per_second; }

  // The next chunk if one is due at `now`; it must be passed to Done(). At most one is out at a time.
  std::optional<Chunk> Take(int64_t now);
  // True: the bytes are wrong, and the extent was taken out of service; it should be read again.
  bool Done(const Chunk& chunk, const absl::Status& verdict);
  // Earliest time at which Take() may return a chunk; 0: never.
  int64_t next_due() const { return rate_ == 0 ? 0 : next_due_ + 1; }
  const ScrubStats& stats() const { return stats_; }

 private:
  // Maximum number of extents searched for a resident one per call: a pass over a large pack needs several.
  static constexpr uint32_t kMaxLooks = 4096;
  static constexpr int64_t kIdleNanos = 10'000'000;  // retry delay after no resident extent was found

  uint64_t rate_;
  DramTier* const tier_;
  const std::function<const ExtentSource*(uint32_t)> source_;
  ExtentId next_extent_id_ = 0;
  uint64_t next_offset_ = 0;
  uint64_t generation_ = 0;  // generation of the fill that next_offset_ belongs to
  int64_t next_due_ = 0;
  ScrubStats stats_;
};

}  // namespace sluice::weightd
