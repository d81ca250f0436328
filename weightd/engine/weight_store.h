// weightd without its control plane: the core behind a lock, with the threads that drive it. The pump serves
// the sessions' rings and side sockets, the reader's threads read, a scrub thread verifies.
//
// The store's functions are those of StoreCore (store_core.h): Look() and Control() call it under the lock.
// The gRPC service (weightd/daemon/weights_service.h) and the side socket's listener are such callers;
// everything after the HELLO on the side socket happens in the core.
//
// Thread safety: thread-safe; every method may be called from any thread, and none but AddPack() and
// AddSource() blocks on I/O. None blocks on a client.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/protocol/copier.h"
#include "common/protocol/transfer_engine.h"
#include "weightd/engine/session.h"
#include "weightd/engine/side_sockets.h"
#include "weightd/engine/store_core.h"
#include "weightd/engine/watchdog.h"
#include "weightd/store/arena.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/eviction.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/prefaulter.h"
#include "weightd/store/store_metrics.h"

namespace sluice::weightd {

struct WeightStoreOptions {
  // Maximum bytes of expert and dense extents in memory. Exact: segments never exceed it. REQUIRED.
  uint64_t dram_budget = 0;
  // Reads past the page cache. If false, or where the file system refuses O_DIRECT (logged): through it.
  bool direct = true;
  // Reads by io_uring. If false, or where the kernel refuses it (logged): by threads.
  bool uring = true;
  // Threads of the pread engine; they sleep without work. Reads of 64 KiB need 64 threads to reach 90 % of
  // the disk's rate while chunks are checked (reader_bench); larger ones are bounded by the bytes in flight.
  int reader_threads = 64;
  // Timeout of a read before it is hedged by a second one; requests for it end after four times as long.
  int read_timeout_ms = 1000;
  // Maximum wait for memory to become available before refusing to start: a predecessor may still be mapped.
  int budget_wait_ms = 10'000;
  // Sessions that are not attached to their side socket after this long are dropped.
  int attach_timeout_ms = 10'000;
  // Placement of segments on memory nodes, and the nodes with memory (arena.h).
  NodePlacement placement = NodePlacement::kInterleave;
  std::vector<uint32_t> nodes;
  // Eviction policy, and whether extents used once are evicted before those used again (eviction.h,
  // admission.h).
  EvictionKind eviction = EvictionKind::kLru;
  bool admission = true;
  // Maximum bytes that a session may fill; 0: no bound.
  uint64_t session_quota = 0;
  // Bytes per second of resident weights that are verified again in the background; 0: none.
  uint64_t scrub_rate = 0;
  // Threads that copy into slabs. 0: one for every four CPUs, at most four.
  int copy_threads = 0;
  // Number of listed neurons per copied chunk.
  uint32_t gather_neurons = 50;
  // Copiers into memory of devices; the host's copier is always there.
  std::vector<std::shared_ptr<Copier>> copiers;
  // Called from any thread, never while holding a lock that a method of this class acquires. May be empty.
  LogFn log;
};

class WeightStore {
 public:
  // Checks the budget against MemAvailable and the cgroup's limit, RESOURCE_EXHAUSTED with the four numbers,
  // and starts the pump and the readers. `reader` null: one according to the options.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Create(WeightStoreOptions options,
                                                             std::unique_ptr<BlockReader> reader = nullptr);
  ~WeightStore();

  // Opens the pack in `dir` and makes its residency table; if it is already there (by model_id), returns its
  // number. Errors of Pack::Open and PackTable::Add.
  absl::StatusOr<uint32_t> AddPack(const std::string& dir);
  // The same for a source that is not a folder.
  absl::StatusOr<uint32_t> AddSource(std::unique_ptr<ExtentSource> source);

  // Calls a const method of the core: Look(&StoreCore::Stats).
  template <typename Method, typename... Args>
  auto Look(Method method, Args&&... args) const {
    const MutexLock lock(&mutex_);
    return std::invoke(method, core_, std::forward<Args>(args)...);
  }
  // Calls any method of the core and wakes the pump for the change: Control(&StoreCore::CloseSession,
  // session).
  template <typename Method, typename... Args>
  auto Control(Method method, Args&&... args) {
    const NudgeAtEnd nudge(this);
    const MutexLock lock(&mutex_);
    return std::invoke(method, core_, std::forward<Args>(args)...);
  }
  // StoreCore::Tune, effective at once also for a sleeping scrub.
  void Tune(const StoreTuning& tuning);

  // StoreCore::SetBudget, if the machine has the memory: RESOURCE_EXHAUSTED with the numbers otherwise.
  absl::Status SetBudget(uint64_t budget);

  // Needs no lock, so it answers even if the pump is stuck.
  StoreProgress Progress() const { return {rounds_.load(), reads_reported_.load(), in_flight_bytes_.load()}; }
  // Hot-path counters; read without any lock. Lives as long as the store.
  const StoreMetrics& metrics() const { return metrics_; }
  // Makes the pump run a round without an event.
  void Nudge();

  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

 private:
  // Nudges once the lock that was acquired after it is released.
  class NudgeAtEnd {
   public:
    explicit NudgeAtEnd(WeightStore* store) : store_(store) {}
    ~NudgeAtEnd() { store_->Nudge(); }

   private:
    WeightStore* const store_;
  };

  WeightStore(WeightStoreOptions options, uint64_t epoch, Poller poller, UniqueFd bell,
              std::unique_ptr<BlockReader> reader);
  absl::Status Start();
  StoreCore::Environment CoreEnvironment();
  void RunPump();
  // Verifies one chunk after the other, each without the core's lock, until the end.
  void RunScrub();
  // Verifies one chunk if one is due; returns when the next is, 0: none before the rate changes.
  int64_t ScrubOne();
  // Sleeps until `due`, a change of the rate or the end. True at the end.
  bool AwaitScrub(int64_t due);

  const WeightStoreOptions options_;
  const MonotonicClock clock_;
  Poller poller_;
  const UniqueFd bell_;
  std::atomic<bool> stop_{false};
  StoreMetrics metrics_;  // self-synchronised, as the next three
  ReadInbox inbox_;
  Prefaulter prefaulter_;
  std::atomic<uint64_t> rounds_{0};
  std::atomic<uint64_t> reads_reported_{0};
  std::atomic<uint64_t> in_flight_bytes_{0};
  // Const until the destructor, which ends their threads before the core goes.
  std::unique_ptr<TransferEngine> transfers_;
  std::unique_ptr<BlockReader> reader_;

  Mutex add_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // one pack is added at a time
  mutable Mutex mutex_;
  StoreCore core_ ABSL_GUARDED_BY(mutex_);
  Mutex scrub_mutex_;
  CondVar scrub_wake_;
  bool scrub_stop_ ABSL_GUARDED_BY(scrub_mutex_) = false;
  bool scrub_tuned_ ABSL_GUARDED_BY(scrub_mutex_) = false;
  std::thread pump_;  // const until the destructor, as the next
  std::thread scrub_;
};

}  // namespace sluice::weightd
