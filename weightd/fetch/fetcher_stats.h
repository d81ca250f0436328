// What a Fetcher counts.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>

namespace sluice {

struct FetcherStats {
  uint64_t demand_requests = 0;
  uint64_t prefetch_requests = 0;
  uint64_t resident_requests = 0;  // that found everything there
  uint64_t fills = 0;              // extents read and verified
  uint64_t bytes_read = 0;
  uint64_t joined = 0;  // extents wanted by a request while another was reading them
  uint64_t cancelled = 0;
  uint64_t no_room = 0;
  uint64_t checksum_failures = 0;
  uint64_t io_errors = 0;
  uint64_t rereads = 0;
  uint64_t slow_reads = 0;        // that had not ended by their deadline
  uint64_t second_reads = 0;      // started beside slow ones
  uint64_t second_reads_won = 0;  // that ended first, with good bytes
  uint64_t timed_out = 0;         // requests that ended because a read did not
};

}  // namespace sluice
