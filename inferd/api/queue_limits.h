// QueueLimits: maximum size of the engine's request queue.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>

namespace sluice::inferd {

// Limits of the queue. A request that waits alone is always accepted, whatever its size.
struct QueueLimits {
  uint32_t count = 256;
  uint64_t tokens = 1ull << 20;
  uint64_t bytes = 64ull << 20;  // memory of the waiting requests
};

}  // namespace sluice::inferd
