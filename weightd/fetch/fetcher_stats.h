// Counters of a Fetcher.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>

namespace sluice::weightd {

struct FetcherStats {
  uint64_t demand_requests = 0;
  uint64_t prefetch_requests = 0;
  uint64_t resident_requests = 0;  // found every extent in memory
  uint64_t fills = 0;              // extents read and verified
  uint64_t bytes_read = 0;
  uint64_t coalesced = 0;  // extents coalesced with another request's read
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
