// The workers of the host backend: fork-join over numbered tiles. The calling thread is worker 0; the others
// spin between BeginStep() and EndStep() and sleep outside.
//
// Each worker begins with a run of neighbouring tiles of its own, so that what it reads is one long stream
// (where memory is fast, starting a stream for every tile costs a fifth of the bandwidth); one that runs out
// steals the upper half of what another has left. A worker's run is one 64-bit word {next, end} changed by
// compare-and-swap. Nobody waits for a worker that has taken no tile, so a worker that the system has not
// scheduled delays nothing: with more threads than CPUs a region is slower, never stuck. Spinning is bounded:
// pauses, then yields, then sleep until the next region wakes the worker. With one thread there are no
// atomics at all.
//
// Thread safety: BeginStep, EndStep and Run are for one thread (the owner). counters() may be called from
// any.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sluice {

// Where the run of tiles begins with which a worker starts, and that of the one before it ends.
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
    double join_wait_seconds = 0;  // of these: worker 0 had no tile left and waited
  };

  // `threads` >= 1 counts the owner. `cpus`, unless it is empty: worker i runs on cpus[i] alone, the owner
  // from its first BeginStep() on. REQUIRES: as many as threads, which the process may use.
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
  // The same, and finish(worker) whenever a worker that computed tiles finds none to take: what it put off is
  // computed before Run() returns.
  void Run(uint32_t tiles, TileFunction function, FinishFunction finish);
  // The same by the owner alone.
  void RunAlone(uint32_t tiles, TileFunction function, FinishFunction finish);

  // Where the run of tiles ends of which worker `worker` has the one that it computes; of its own share
  // others may still take some. For the worker, in function(tile, worker).
  uint32_t RunEnd(uint32_t worker) const { return shares_[worker].run_end; }

  Counters counters() const;

 private:
  // Tiles [next, end) that a worker still has: end in the upper half. On a cache line of its own.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
    uint32_t run_end = 0;  // the worker's own
  };

  void Pin(uint32_t worker) const;
  void Worker(uint32_t worker);
  // Computes tiles until none is left to take; whether it got any.
  bool TakeTiles(uint32_t worker);
  // Tiles [*first, *end) taken for `worker`: one of its own share, or a few from the end of another's.
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
  std::vector<std::thread> workers_;  // the owner's
};

}  // namespace sluice
