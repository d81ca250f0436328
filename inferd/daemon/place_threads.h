// How compute threads are shared out where the CPU computes beside a device.
//
// Thread safety: a free function, safe to call from any thread.
#pragma once

#include <cstdint>

#include "inferd/policy/preset/policy_kinds.h"

namespace sluice {

// Threads by place. Where the device computes with the CPU itself (`sim`), the CPU beside it takes its
// threads from the device's, half of them unless they are said, as long as each has one.
struct PlaceThreads {
  uint32_t device = 1;
  uint32_t cpu = 0;  // 0: none is beside it
};
// `threads`: of both, at least 1. `cpu_threads` 0: not said.
PlaceThreads ShareThreads(DeviceKind device, bool cpu_beside, uint32_t threads, uint32_t cpu_threads);

}  // namespace sluice
