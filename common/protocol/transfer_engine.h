// The engine that copies from memory into slabs, and its counters.
//
// Thread safety: TransferEngine is thread-safe, its counters are a plain value.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/protocol/copier.h"
#include "common/protocol/link_model.h"
#include "common/protocol/transfer_plan.h"

namespace sluice {

// Counters of a TransferEngine.
//
// Thread safety: a plain value.
struct TransferStats {
  uint64_t transfers = 0;            // ended
  uint64_t transfers_cancelled = 0;  // of these, cancelled
  uint64_t transfers_waiting = 0;    // gauge: not ended
  uint64_t link_bytes = 0;           // copied into slabs
  uint64_t link_demand_bytes = 0;    // of these, for demands
};

// TransferEngine: copies from the arena into slabs. Its schedule (common/protocol/link_model.h) picks the
// next chunk, copy threads pass it to the slab's copier (copier.h), and on a throttled slab the modelled link
// (common/protocol/link_model.h) computes its arrival. Arrivals are published: tile by tile in the request's
// progress word, and by an event when the transfer has ended.
//
// No thread spins: copy threads sleep until there is a chunk, one more thread until the next arrival. A
// thread that overslept has its chunks counted from when it should have woken.
//
// Thread safety: thread-safe. Without threads (Options::threads 0) work is done only in Step(), on the
// caller's clock: for tests and simulations.

// One transfer whose sources are in memory and stay there until its event.
struct TransferJob {
  uint64_t number = 0;   // the caller's, used once
  uint64_t session = 0;  // session to which it is charged
  uint32_t link = 0;     // returned by AddLink()
  RequestClass request_class = RequestClass::kDemand;
  TransferPlan plan;           // at least one chunk
  std::shared_ptr<Slab> slab;  // kept until the last byte is written
  // Set to PackProgress(request, tiles landed); may be null.
  std::shared_ptr<std::atomic<uint64_t>> progress;
  uint64_t request = 0;
};

// Exactly one per job. Nothing is written into the slab or the progress word afterwards.
struct TransferEnd {
  uint64_t number = 0;
  bool cancelled = false;  // false: every byte has arrived
  absl::Status error;      // the copier's error; `cancelled` is then set too
  uint64_t link_bytes = 0;
  int64_t copy_nanos = 0;  // from the first chunk's submission to the last one's arrival
};

// Result of MapSlab().
struct SlabMapped {
  uint64_t session = 0;
  uint32_t slab = 0;
  LinkRate rate;
  absl::StatusOr<std::shared_ptr<Slab>> mapped;
};

using TransferEvent = std::variant<TransferEnd, SlabMapped>;

class TransferEngine {
 public:
  struct Options {
    int threads = 1;
    TransferSchedule::Options schedule;
  };

  // `wake` is called, on any thread and without a lock of the engine's, when TakeEvents() has a new event.
  // `devices` copy into memory of their kinds; the host's copier is always present.
  TransferEngine(const Options& options, const Clock* clock, std::function<void()> wake,
                 std::vector<std::shared_ptr<Copier>> devices = {});
  // Waits for the copies that were begun.
  ~TransferEngine();

  // Creates a slab's link; returns its number.
  uint32_t AddLink(const LinkRate& rate);
  // REQUIRES: no more jobs on it are submitted; the existing ones end as usual.
  void RemoveLink(uint32_t link);

  void Submit(TransferJob job);
  // Makes the job end soon, cancelled or not. Unknown numbers are ignored.
  void Cancel(uint64_t number);
  // Cancels only a job of which no chunk was submitted. False: one was (the job continues), or it is unknown.
  bool CancelIfNotStarted(uint64_t number);
  void Promote(uint64_t number);
  // Forgets the session. REQUIRES: all its jobs have ended.
  void DropSession(uint64_t session);

  // Opens a client's memory on an engine's thread, because it takes long. UNIMPLEMENTED: there is no copier
  // for memory of this kind. `until_unmapped` is released when no mapping of the memory is left here: the
  // slab is destroyed, after the last copy into it, or could not be opened.
  void MapSlab(uint64_t session, uint32_t slab, UniqueFd fd, const SlabHandle& handle, const LinkRate& rate,
               std::shared_ptr<const void> until_unmapped);

  // Calls Copier::AddSource() and RemoveSource() of all copiers.
  void AddSource(absl::Span<const std::byte> memory, const std::shared_ptr<const void>& owner);
  void RemoveSource(const std::byte* base);

  std::vector<TransferEvent> TakeEvents();
  bool HasEvents() const;
  TransferStats stats() const;

  // Without threads: does one thing that can be done now; false if there is none.
  bool Step();
  // Arrival time of the next chunk; 0: none is in flight.
  int64_t NextArrival() const;

  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

 private:
  struct Running {
    TransferJob job;
    std::vector<uint32_t> left;  // chunks that have not arrived, by tile
    uint32_t landed = 0;         // leading tiles
    uint64_t link_bytes = 0;
    int64_t added_nanos = 0;
    int64_t first_nanos = 0;
    int64_t last_nanos = 0;
    absl::Status error;  // first error of a chunk's copy
  };
  struct Link {
    LinkModel model;
    int64_t free_nanos = 0;  // time at which the last arrival made room
    uint32_t jobs = 0;
    bool removed = false;
  };
  struct MapJob {
    uint64_t session = 0;
    uint32_t slab = 0;
    UniqueFd fd;
    SlabHandle handle;
    LinkRate rate;
    std::shared_ptr<const void> until_unmapped;
  };

  // Work of a thread without the lock: open a slab, or copy a chunk of `plan`.
  struct Task {
    std::optional<MapJob> map;
    LinkChunk chunk;
    const TransferPlan* plan = nullptr;  // valid until its last chunk has arrived, as are the next two
    Slab* slab = nullptr;
    Copier* copier = nullptr;
    uint64_t tag = 0;  // 0: the copy ends at the call
  };

  void CopyLoop();
  void ArrivalLoop();
  // False: there is no work.
  bool Take(Task* task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Null: no copier handles memory of this kind.
  Copier* CopierOf(HandleKind kind) const;
  // Collects completed copies, waiting for them up to `max_wait_nanos`; false: there were none.
  bool TakeCompleted(int64_t max_wait_nanos) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCopied(const LinkChunk& chunk, absl::Status copied) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Arrive(const LinkChunk& chunk, int64_t nanos) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ArriveDue(int64_t now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishTiles(Running* running, uint32_t tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock* const clock_;
  const std::function<void()> wake_;
  const std::vector<std::shared_ptr<Copier>> copiers_;
  std::vector<Copier*> async_copiers_;  // the asynchronous ones; const once constructed

  mutable Mutex mutex_;
  CondVar work_;      // for copy threads
  CondVar arrivals_;  // for the thread of arrivals
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  TransferSchedule schedule_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Link> links_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_link_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Running>> running_ ABSL_GUARDED_BY(mutex_);
  std::multimap<int64_t, LinkChunk> in_flight_ ABSL_GUARDED_BY(mutex_);    // by arrival
  std::unordered_map<uint64_t, LinkChunk> begun_ ABSL_GUARDED_BY(mutex_);  // by tag
  uint64_t next_tag_ ABSL_GUARDED_BY(mutex_) = 1;
  bool collecting_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in TakeCompleted()
  std::deque<MapJob> map_jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<TransferEvent> events_ ABSL_GUARDED_BY(mutex_);
  bool announced_ ABSL_GUARDED_BY(mutex_) = true;  // true if `wake` was called for every event
  TransferStats stats_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // const once constructed
};

}  // namespace sluice
