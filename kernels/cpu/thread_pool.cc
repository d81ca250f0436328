#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace sluice {
namespace {

// Maximum tiles stolen at a time: enough for a stream of a megabyte, few enough that a thief that loses its
// CPU does not delay others for long.
constexpr uint32_t kMaxStolen = 4;

// Pauses before yielding, about 25 us on current CPUs: longer than the serial parts of a layer, shorter than
// a time slice.
constexpr int kPauses = 2000;
// Yields after the pauses; about 300 us in total, then the worker sleeps.
constexpr int kYields = 500;

uint64_t Now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

// Waits one unit: pauses in early rounds, yields in later ones.
void Relax(int round) {
  if (round < kPauses) {
    _mm_pause();
  } else {
    sched_yield();
  }
}

uint64_t Range(uint32_t next, uint32_t end) { return uint64_t{end} << 32 | next; }
uint32_t NextOf(uint64_t range) { return static_cast<uint32_t>(range); }
uint32_t EndOf(uint64_t range) { return static_cast<uint32_t>(range >> 32); }

void Add(std::atomic<uint64_t>& counter, uint64_t value) {
  counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

}  // namespace

ThreadPool::ThreadPool(uint32_t threads, std::vector<uint32_t> cpus)
    : threads_(threads), cpus_(std::move(cpus)), shares_(threads) {
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

// The creator has checked that the CPU may be used. If it is taken away later, the thread stays where the
// kernel puts it.
void ThreadPool::Pin(uint32_t worker) const {
  if (cpus_.empty()) {
    return;
  }
  const size_t most = cpus_[worker] + 1;
  cpu_set_t* const set = CPU_ALLOC(most);
  CPU_ZERO_S(CPU_ALLOC_SIZE(most), set);
  CPU_SET_S(cpus_[worker], CPU_ALLOC_SIZE(most), set);
  sched_setaffinity(0, CPU_ALLOC_SIZE(most), set);
  CPU_FREE(set);
}

void ThreadPool::BeginStep() {
  if (!owner_pinned_) {
    owner_pinned_ = true;
    Pin(0);
  }
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
  // Announced first, then checked again: a thread that makes work after the check sees the sleeper, and the
  // epoch that was read before the check has then advanced.
  sleepers_.fetch_add(1);
  const uint32_t epoch = wake_epoch_.load();
  if (!HasTile() && !shutdown_.load()) {
    syscall(SYS_futex, &wake_epoch_, FUTEX_WAIT_PRIVATE, epoch, nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1);
}

void ThreadPool::Worker(uint32_t worker) {
  Pin(worker);
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

bool ThreadPool::HasTile() const {
  for (const Share& share : shares_) {
    const uint64_t range = share.range.load();
    if (NextOf(range) < EndOf(range)) {
      return true;
    }
  }
  return false;
}

bool ThreadPool::TakeOwn(uint32_t worker, uint32_t* first, uint32_t* end) {
  std::atomic<uint64_t>& own = shares_[worker].range;
  uint64_t range = own.load();
  while (NextOf(range) < EndOf(range)) {
    if (own.compare_exchange_weak(range, Range(NextOf(range) + 1, EndOf(range)))) {
      *first = NextOf(range);
      *end = *first + 1;
      shares_[worker].run_end = EndOf(range);
      return true;
    }
  }
  return false;
}

bool ThreadPool::Steal(uint32_t worker, uint32_t* first, uint32_t* end) {
  for (uint32_t i = 1; i < threads_; ++i) {
    std::atomic<uint64_t>& victim = shares_[(worker + i) % threads_].range;
    uint64_t range = victim.load();
    while (NextOf(range) < EndOf(range)) {
      const uint32_t count = std::min((EndOf(range) - NextOf(range) + 1) / 2, kMaxStolen);
      if (victim.compare_exchange_weak(range, Range(NextOf(range), EndOf(range) - count))) {
        *first = EndOf(range) - count;
        *end = EndOf(range);
        shares_[worker].run_end = *end;
        return true;
      }
    }
  }
  return false;
}

bool ThreadPool::TakeTiles(uint32_t worker) {
  uint32_t taken = 0;
  uint32_t tile = 0;
  uint32_t end = 0;
  while (TakeOwn(worker, &tile, &end) || Steal(worker, &tile, &end)) {
    // Read after the tiles were taken: the region cannot end before they are finished, so this is its
    // function even if the worker read the share long ago.
    const TileFunction* function = function_.load();
    taken += end - tile;
    for (; tile < end; ++tile) {
      (*function)(tile, worker);
    }
  }
  if (taken > 0) {
    (*finish_.load())(worker);
    finished_.fetch_add(taken);
  }
  return taken > 0;
}

void ThreadPool::RunAlone(uint32_t tiles, TileFunction function, FinishFunction finish) {
  shares_[0].run_end = tiles;
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    function(tile, 0);
  }
  finish(0);
}

void ThreadPool::Run(uint32_t tiles, TileFunction function, FinishFunction finish) {
  if (threads_ == 1 || tiles <= 1) {
    return RunAlone(tiles, function, finish);
  }
  const uint64_t start = Now();
  // All shares are empty here, so no worker reads these until the shares are filled.
  function_.store(&function);
  finish_.store(&finish);
  finished_.store(0);
  for (uint32_t worker = 0; worker < threads_; ++worker) {
    shares_[worker].range.store(
        Range(FirstTileOf(worker, threads_, tiles), FirstTileOf(worker + 1, threads_, tiles)));
  }
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
