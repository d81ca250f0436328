#include "kernels/host/thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace sluice {
namespace {

// Tile numbers at and above this mean that the region is being set up; no region has so many tiles.
constexpr uint32_t kClosed = 0xffffffffu;

// About 25 us of pauses on current CPUs: longer than the serial parts of a layer, shorter than a time slice.
constexpr int kPauses = 2000;
// After that the CPU is offered to others between pauses; about 300 us in all, then the worker sleeps.
constexpr int kYields = 500;

uint64_t Now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// One unit of waiting that gets politer with `round`.
void Relax(int round) {
  if (round < kPauses) {
    _mm_pause();
  } else {
    sched_yield();
  }
}

void Add(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

ThreadPool::ThreadPool(uint32_t threads) : threads_(threads), ticket_(kClosed) {
  workers_.reserve(threads - 1);
  for (uint32_t worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { Worker(worker); });
  }
}

ThreadPool::~ThreadPool() {
  shutdown_.store(true);
  WakeSleepers();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::BeginStep() {
  stepping_.store(true);
  if (sleepers_.load() > 0) {
    WakeSleepers();
  }
}

void ThreadPool::EndStep() { stepping_.store(false); }

void ThreadPool::WakeSleepers() {
  wake_epoch_.fetch_add(1);
  syscall(SYS_futex, &wake_epoch_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void ThreadPool::Sleep() {
  // Announced first, then checked again: whoever makes work after the check sees the sleeper, and the epoch
  // that was read before the check has then moved on.
  sleepers_.fetch_add(1);
  const uint32_t epoch = wake_epoch_.load();
  if (!HasTile() && !shutdown_.load()) {
    syscall(SYS_futex, &wake_epoch_, FUTEX_WAIT_PRIVATE, epoch, nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1);
}

void ThreadPool::Worker(uint32_t worker) {
  int round = 0;
  while (!shutdown_.load(std::memory_order_relaxed)) {
    if (TakeTiles(worker)) {
      round = 0;
    } else if (stepping_.load(std::memory_order_relaxed) && round < kPauses + kYields) {
      Relax(round++);
    } else {
      Sleep();
      round = 0;
    }
  }
}

bool ThreadPool::HasTile() const { return static_cast<uint32_t>(ticket_.load()) < tiles_.load(); }

bool ThreadPool::TakeTiles(uint32_t worker) {
  uint32_t taken = 0;
  for (;;) {
    // The region's fields are read between the load and the exchange of the ticket: the exchange fails if
    // they belong to another region, because Run() closes the ticket before it changes them.
    uint64_t ticket = ticket_.load();
    const uint32_t tiles = tiles_.load();
    const TileFunction* function = function_.load();
    const uint32_t tile = static_cast<uint32_t>(ticket);
    if (tile >= tiles) {
      break;
    }
    if (ticket_.compare_exchange_weak(ticket, ticket + 1)) {
      (*function)(tile, worker);
      ++taken;
    }
  }
  if (taken > 0) {
    finished_.fetch_add(taken);
  }
  return taken > 0;
}

void ThreadPool::Run(uint32_t tiles, TileFunction function) {
  if (threads_ == 1 || tiles <= 1) {
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      function(tile, 0);
    }
    return;
  }
  const uint64_t start = Now();
  const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(generation << 32 | kClosed);
  tiles_.store(tiles);
  function_.store(&function);
  finished_.store(0);
  ticket_.store((generation + 1) << 32);
  if (sleepers_.load() > 0) {
    WakeSleepers();
  }
  TakeTiles(0);
  const uint64_t out_of_tiles = Now();
  for (int round = 0; finished_.load() != tiles; ++round) {
    Relax(round < kPauses ? round : kPauses);
  }
  const uint64_t end = Now();
  Add(fork_joins_, 1);
  Add(region_ns_, end - start);
  Add(join_wait_ns_, end - out_of_tiles);
}

ThreadPool::Counters ThreadPool::counters() const {
  Counters counters;
  counters.fork_joins = fork_joins_.load(std::memory_order_relaxed);
  counters.region_seconds = static_cast<double>(region_ns_.load(std::memory_order_relaxed)) * 1e-9;
  counters.join_wait_seconds = static_cast<double>(join_wait_ns_.load(std::memory_order_relaxed)) * 1e-9;
  return counters;
}

}  // namespace sluice
