// Background scrub: which resident bytes are due to be checked against their checksums, at a settable rate.
//
// Memory rots too, and what stays resident for weeks is never read again. Every chunk of every resident
// extent is looked at in turn; the caller verifies it (without any lock) and says what came of it.
//
// Thread safety: thread-compatible; the core's lock guards it, but for Chunk, which may be verified anywhere
// between Take() and Done().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "weightd/dram/dram_tier.h"
#include "weightd/fetch/extent_source.h"

namespace sluice {

// What it counts.
struct ScrubStats {
  uint64_t scrub_bytes = 0;     // verified again in memory
  uint64_t scrub_passes = 0;    // over everything that was resident
  uint64_t scrub_failures = 0;  // extents whose bytes had gone bad
};

class Scrubber {
 public:
  // A checksum chunk of a resident extent, which is pinned until Done().
  struct Chunk {
    Gid gid = 0;
    uint32_t extent = 0;  // in its pack
    const ExtentSource* source = nullptr;
    uint64_t offset = 0;  // in the extent
    std::span<const std::byte> bytes;

    absl::Status Verify() const { return source->Verify(extent, offset, bytes); }
  };

  // `bytes_per_second` 0: never. `source` names a pack's source by the tier's number.
  Scrubber(uint64_t bytes_per_second, DramTier* tier,
           std::function<const ExtentSource*(uint32_t pack)> source)
      : rate_(bytes_per_second), tier_(tier), source_(std::move(source)) {}

  void SetRate(uint64_t bytes_per_second) { rate_ = bytes_per_second; }

  // The next chunk if one is due at `now`; it must be given to Done(). At most one is out at a time.
  std::optional<Chunk> Take(int64_t now);
  // True: the bytes are wrong, and the extent was taken out of service; it should be read again.
  bool Done(const Chunk& chunk, const absl::Status& verdict);
  // When Take() may give something; 0: never.
  int64_t next_due() const { return rate_ == 0 ? 0 : next_due_ + 1; }
  const ScrubStats& stats() const { return stats_; }

 private:
  // Extents looked at in search of a resident one, in one call: a pass over a large pack takes several.
  static constexpr uint32_t kMaxLooks = 4096;
  static constexpr int64_t kIdleNanos = 10'000'000;  // nothing resident was found: look on after this

  uint64_t rate_;
  DramTier* const tier_;
  const std::function<const ExtentSource*(uint32_t)> source_;
  Gid next_gid_ = 0;
  uint64_t next_offset_ = 0;
  uint64_t generation_ = 0;  // of the fill that next_offset_ belongs to
  int64_t next_due_ = 0;
  ScrubStats stats_;
};

}  // namespace sluice
