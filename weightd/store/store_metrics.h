// StoreMetrics: counters and times of weightd's hot path, by request class and by the tier that a request's
// bytes came from. Writing is a few relaxed atomic operations.
//
// Thread safety: thread-safe; the pump writes, anybody reads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/metrics.h"
#include "common/protocol/session_abi.h"

namespace sluice::weightd {

// The slowest tier that a request needed for its bytes.
enum class FetchTier : uint8_t {
  kResident = 0,   // all were in memory
  kCoalesced = 1,  // coalesced with another request's read
  kSsd = 2
};

inline constexpr size_t kRequestClasses = 2;
inline constexpr size_t kFetchTiers = 3;
inline constexpr std::array<const char*, kRequestClasses> kRequestClassNames = {"demand", "prefetch"};
inline constexpr std::array<const char*, kFetchTiers> kFetchTierNames = {"resident", "coalesced", "ssd"};

struct StoreMetrics {
  struct Class {
    std::array<Counter, kFetchTiers> requests;  // requests that ended OK
    std::array<Counter, kFetchTiers> bytes;     // bytes of extents found, coalesced, read
    Histogram queue_seconds{kLatencyBounds};    // requests that ended OK and needed a read
    Histogram io_seconds{kLatencyBounds};       // from the first read's start to the last byte verified
  };
  std::array<Class, kRequestClasses> classes;
  Counter prefetch_late;                   // demands coalesced with a prefetch's read
  Histogram copy_seconds{kLatencyBounds};  // transfers into slabs that ended OK

  Class& of(RequestClass request_class) { return classes[static_cast<size_t>(request_class)]; }

  void Count(RequestClass request_class, FetchTier tier, uint64_t bytes) {
    of(request_class).bytes[static_cast<size_t>(tier)].Add(bytes);
  }
  void Ended(RequestClass request_class, FetchTier tier, uint32_t queue_us, uint32_t io_us) {
    Class& of_class = of(request_class);
    of_class.requests[static_cast<size_t>(tier)].Add();
    if (tier != FetchTier::kResident) {
      of_class.queue_seconds.Observe(queue_us * 1e-6);
      of_class.io_seconds.Observe(io_us * 1e-6);
    }
  }
};

// Counters of a Fetcher.
//
// Thread safety: a plain value.

struct FetcherStats {
  uint64_t demand_requests = 0;
  uint64_t prefetch_requests = 0;
  uint64_t resident_requests = 0;  // found every extent in memory
  uint64_t fills = 0;              // extents read and verified
  uint64_t bytes_read = 0;
  uint64_t cached_bytes = 0;  // those of bytes_read that came from the page cache
  uint64_t coalesced = 0;     // extents coalesced with another request's read
  uint64_t cancelled = 0;
  uint64_t no_room = 0;
  uint64_t checksum_failures = 0;
  uint64_t io_errors = 0;
  uint64_t rereads = 0;
  uint64_t slow_reads = 0;        // reads that had not ended by their timeout
  uint64_t hedged_reads = 0;      // hedged reads started for slow ones
  uint64_t hedged_reads_won = 0;  // hedged reads that ended first, with good bytes
  uint64_t timed_out = 0;         // requests that ended because a read did not
};

}  // namespace sluice::weightd
