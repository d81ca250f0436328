// Leases of several extents together, as an expert's: all of them or none.
//
// Thread safety: free functions; belong to the client's thread.
#pragma once

#include <cstdint>

#include "inferd/weights/weight_client.h"
#include "pack/pack.h"

namespace sluice::inferd {

inline void ReleaseExtents(ExtentRange range, uint64_t step, WeightClient* client) {
  for (uint32_t i = 0; i < range.count; ++i) {
    client->Release(range.first + i, step);
  }
}

// Leases into `leases` [range.count]; false: weightd does not have all of them in DRAM, and none is leased.
inline bool LeaseExtents(ExtentRange range, uint64_t step, WeightClient* client, ExtentLease* leases) {
  for (uint32_t i = 0; i < range.count; ++i) {
    if (!client->TryLease(range.first + i, &leases[i])) {
      ReleaseExtents({range.first, i}, step, client);
      return false;
    }
  }
  return true;
}

}  // namespace sluice::inferd
