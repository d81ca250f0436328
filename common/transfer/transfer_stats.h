// Counters of a TransferEngine.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>

namespace sluice {

struct TransferStats {
  uint64_t transfers = 0;            // ended
  uint64_t transfers_cancelled = 0;  // of these, cancelled
  uint64_t transfers_waiting = 0;    // gauge: not ended
  uint64_t link_bytes = 0;           // copied into slabs
  uint64_t link_demand_bytes = 0;    // of these, for demands
};

}  // namespace sluice
