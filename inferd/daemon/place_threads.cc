#include "inferd/daemon/place_threads.h"

#include <algorithm>

namespace sluice::inferd {

ThreadSplit SplitThreads(DeviceKind device, bool cpu_parallel, uint32_t threads, uint32_t cpu_threads) {
  if (!cpu_parallel) {
    return {threads, 0};
  }
  if (device == DeviceKind::kCuda) {  // the engine's own thread drives the device
    return {1, cpu_threads > 0 ? cpu_threads : std::max(1u, threads - 1)};
  }
  const uint32_t cpu = cpu_threads > 0 ? cpu_threads : std::max(1u, threads / 2);
  return {threads > cpu ? threads - cpu : 1, cpu};
}

}  // namespace sluice::inferd
