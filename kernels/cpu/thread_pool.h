// The workers of the host backend: fork-join over numbered tiles. The calling thread is worker 0; the others
// spin between BeginStep() and EndStep() and sleep outside.
//
// Each worker begins with its own run of neighbouring tiles, so that it reads one long stream (where memory
// is fast, starting a stream for every tile costs a fifth of the bandwidth); a worker that runs out steals
// from the upper half of another's rest. A worker's run is one 64-bit word {next, end} changed by
// compare-and-swap. No thread waits for a worker that has taken no tile, so a worker that the system has not
// scheduled delays nothing: with more threads than CPUs a region is slower, never stuck. Spinning is bounded:
// pauses, then yields, then sleep until the next region wakes the worker. With one thread there are no
// atomics.
//
// Thread safety: BeginStep, EndStep and Run are for one thread (the owner). counters() may be called from any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/backend.h"

namespace sluice {

// First tile of a worker's initial run, which is the end of the previous worker's run.
inline uint32_t FirstTileOf(uint32_t worker, uint32_t threads, uint32_t tiles) {
  return static_cast<uint32_t>(uint64_t{tiles} * worker / threads);
}

class ThreadPool {
 public:
  using TileFunction = absl::FunctionRef<void(uint32_t tile, uint32_t worker)>;
  using FinishFunction = absl::FunctionRef<void(uint32_t worker)>;

  struct Counters {
    uint64_t fork_joins = 0;
    double region_seconds = 0;     // from fork to join
    double join_wait_seconds = 0;  // part of region_seconds in which worker 0 had no tile left and waited
  };

  // `threads` >= 1 counts the owner. `cpus`, unless it is empty: worker i runs on cpus[i] alone, the owner
  // from its first BeginStep() on. REQUIRES: as many CPUs as threads, usable by the process.
  explicit ThreadPool(uint32_t threads, std::vector<uint32_t> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t threads() const { return threads_; }

  void BeginStep();
  void EndStep();

  // Calls function(tile, worker) once for each tile in [0, tiles), worker < threads(), and returns when all
  // have returned. REQUIRES tiles < 2^32. Not reentrant.
  void Run(uint32_t tiles, TileFunction function) {
    Run(tiles, function, [](uint32_t) {});
  }
  // Also calls finish(worker) whenever a worker that computed tiles finds no more, so that postponed work is
  // computed before Run() returns.
  void Run(uint32_t tiles, TileFunction function, FinishFunction finish);
  // Runs the tiles on the owner alone.
  void RunAlone(uint32_t tiles, TileFunction function, FinishFunction finish);

  // End of the run that contains the worker's current tile; others may still steal from it. Called by the
  // worker, in function(tile, worker).
  uint32_t RunEnd(uint32_t worker) const { return shares_[worker].run_end; }

  Counters counters() const;

 private:
  // Tiles [next, end) that a worker still has: end in the upper half. Has its own cache line.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
    uint32_t run_end = 0;  // written by the worker only
  };

  void Pin(uint32_t worker) const;
  void Worker(uint32_t worker);
  // Computes tiles until none is left to take. True if it computed any.
  bool TakeTiles(uint32_t worker);
  // Takes tiles [*first, *end) for `worker`: one of its own share, or a few from the end of another's.
  bool TakeOwn(uint32_t worker, uint32_t* first, uint32_t* end);
  bool Steal(uint32_t worker, uint32_t* first, uint32_t* end);
  bool HasTile() const;
  void Sleep();
  void WakeSleepers();

  const uint32_t threads_;
  const std::vector<uint32_t> cpus_;  // by worker, or empty
  bool owner_pinned_ = false;
  std::vector<Share> shares_;  // [threads]
  alignas(64) std::atomic<const TileFunction*> function_{nullptr};
  std::atomic<const FinishFunction*> finish_{nullptr};
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> wake_epoch_{0};  // futex
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stepping_{false};
  std::atomic<bool> shutdown_{false};
  alignas(64) std::atomic<uint64_t> fork_joins_{0};
  std::atomic<uint64_t> region_ns_{0};
  std::atomic<uint64_t> join_wait_ns_{0};
  std::vector<std::thread> workers_;  // used by the owner
};

}  // namespace sluice

// Runs the tiles of an operation: on all workers where the work is worth waking them, else on the calling
// thread.
//
// Thread safety: as ThreadPool; AddTo() may be called from any thread.

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
