// How much may wait for its turn in the engine.
//
// Thread safety: plain data.
#pragma once

#include <cstdint>

namespace sluice {

// What may wait at once. A request that waits alone is always taken, whatever its size.
struct QueueLimits {
  uint32_t count = 256;
  uint64_t tokens = 1ull << 20;
  uint64_t bytes = 64ull << 20;  // memory of the waiting requests
};

}  // namespace sluice
