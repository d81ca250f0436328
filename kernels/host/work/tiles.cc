#include "kernels/host/work/tiles.h"

namespace sluice::cpu {

void Tiles::Run(uint32_t tiles, uint64_t work, ThreadPool::TileFunction function,
                ThreadPool::FinishFunction finish) {
  if (work >= kParallelWork) {
    pool_.Run(tiles, function, finish);
    return;
  }
  serial_ops_.store(serial_ops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  pool_.RunAlone(tiles, function, finish);
}

void Tiles::AddTo(BackendCounters* counters) const {
  const ThreadPool::Counters pool = pool_.counters();
  counters->fork_joins += pool.fork_joins;
  counters->region_seconds += pool.region_seconds;
  counters->join_wait_seconds += pool.join_wait_seconds;
  counters->serial_ops += serial_ops_.load(std::memory_order_relaxed);
}

}  // namespace sluice::cpu
