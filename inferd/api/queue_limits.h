// How much may wait for its turn in the engine.
//
// Thread safety: plain data.
#ifndef SLUICE_INFERD_QUEUE_LIMITS_H_
#define SLUICE_INFERD_QUEUE_LIMITS_H_

#include <cstdint>

namespace sluice {

// What may wait at once. A request that waits alone is always taken, whatever its size.
struct QueueLimits {
  uint32_t count = 256;
  uint64_t tokens = 1ull << 20;
  uint64_t bytes = 64ull << 20;  // memory of the waiting requests
};

}  // namespace sluice

#endif  // SLUICE_INFERD_QUEUE_LIMITS_H_
