// ThreadSplit: split of the compute threads between a device and the CPU beside it.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <cstdint>

#include "inferd/policy/preset/policy_kinds.h"

namespace sluice::inferd {

// Threads by device. Where the device computes with the CPU itself (`sim`), the CPU beside it gets a part of
// the device's threads, half of them unless specified, as long as each has one.
struct ThreadSplit {
  uint32_t device = 1;
  uint32_t cpu = 0;  // 0: the CPU does not compute beside the device
};
// `threads`: of both together, at least 1. `cpu_threads` 0: not specified.
ThreadSplit SplitThreads(DeviceKind device, bool cpu_parallel, uint32_t threads, uint32_t cpu_threads);

}  // namespace sluice::inferd
