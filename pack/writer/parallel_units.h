// Runs numbered units of work on several threads until all are done or one fails.
//
// Thread safety: free functions; the work function is called from several threads at once, each with its own
// worker number.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace sluice {

// Number of workers for `units` units: `requested`, or the CPUs of the affinity mask if it is 0; at most 8
// (they saturate every disk measured so far, and each holds a part of an expert in memory), at least 1.
uint32_t WorkerCount(uint32_t requested, uint32_t units);

// Calls work(worker, unit) for every unit below `units`, in ascending order per worker. The first error stops
// the rest and is returned.
absl::Status RunUnits(uint32_t workers, uint32_t units,
                      const std::function<absl::Status(uint32_t worker, uint32_t unit)>& work);

}  // namespace sluice
