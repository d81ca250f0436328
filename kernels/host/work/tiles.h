// Runs the tiles of an operation: on all workers where the work is worth waking them, else on the calling
// thread.
//
// Thread safety: as ThreadPool; AddTo() may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/host/work/thread_pool.h"

namespace sluice::cpu {

class Tiles {
 public:
  // Minimum work (multiply-adds and the like; about 10 us on one thread) for which a fork-join pays. Chosen
  // so that the router of a 128-expert model stays on the calling thread for one token.
  static constexpr uint64_t kParallelWork = (uint64_t{1} << 18) + 1;

  // `threads` >= 1 counts the calling thread, which is worker 0. `cpus`: as in ThreadPool.
  explicit Tiles(uint32_t threads, std::vector<uint32_t> cpus = {}) : pool_(threads, std::move(cpus)) {}

  uint32_t threads() const { return pool_.threads(); }
  void BeginStep() { pool_.BeginStep(); }
  void EndStep() { pool_.EndStep(); }

  // Calls function(tile, worker) once for each of `tiles`. `work`: multiply-adds, or values touched times a
  // factor.
  void Run(uint32_t tiles, uint64_t work, ThreadPool::TileFunction function) {
    Run(tiles, work, function, [](uint32_t) {});
  }
  // Same, with the `finish` of ThreadPool::Run().
  void Run(uint32_t tiles, uint64_t work, ThreadPool::TileFunction function,
           ThreadPool::FinishFunction finish);

  // ThreadPool::RunEnd(), for the worker in function(tile, worker).
  uint32_t RunEnd(uint32_t worker) const { return pool_.RunEnd(worker); }

  // Adds the regions' times and counts so far to `counters`.
  void AddTo(BackendCounters* counters) const;

 private:
  ThreadPool pool_;
  std::atomic<uint64_t> serial_ops_{0};  // written by the owner thread alone
};

}  // namespace sluice::cpu
