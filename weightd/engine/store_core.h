// The core of weightd: packs, DRAM tier, fetcher, transfers and sessions, driven by rounds of Pump().
//
// It makes the parts, connects each to the others it needs, and fixes the order of a round and of a session's
// end; each part's contract is in its own header. It never waits and owns no thread: WeightStore runs it
// on a thread that sleeps on the poller, tests call Pump() themselves.
//
// Thread safety: thread-compatible; WeightStore's lock guards it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/protocol/link_model.h"
#include "common/protocol/protocol_step.h"
#include "common/protocol/transfer_engine.h"
#include "weightd/engine/pack_table.h"
#include "weightd/engine/request_router.h"
#include "weightd/engine/segment_notices.h"
#include "weightd/engine/session.h"
#include "weightd/engine/session_manager.h"
#include "weightd/engine/side_sockets.h"
#include "weightd/engine/slab_registry.h"
#include "weightd/engine/store_stats.h"
#include "weightd/engine/transfer_requests.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/fetcher.h"
#include "weightd/store/scrubber.h"
#include "weightd/store/store_metrics.h"

namespace sluice::weightd {

// Options that can be changed at runtime.
struct StoreTuning {
  uint64_t scrub_rate = 0;
  int read_timeout_ms = 1000;
  uint64_t session_quota = 0;  // for sessions that open from then on
};

class StoreCore {
 public:
  struct Options {
    uint64_t boot_epoch = 0;
    Arena::Options arena;
    TierPolicy policy;
    Fetcher::Options fetcher;
    PlanOptions transfers;
    int64_t attach_timeout_nanos = 0;  // 0: never
    // A session that has not unmapped a retired segment after this long is slow: fills use other room if
    // there is any. After the fetcher's retire_timeout_nanos no fill waits for it.
    int64_t slow_unmap_nanos = 250'000'000;
    uint64_t scrub_rate = 0;     // bytes of resident weights verified per second; 0: none
    uint64_t session_quota = 0;  // maximum bytes that a session may fill; 0: no bound
    // A session that gave no sign for this long, and holds more than its fair share while another finds no
    // room for as long, is stalled and is ended.
    int64_t stall_nanos = 3'000'000'000;
  };
  struct Environment {
    BlockReader* reader = nullptr;
    const Clock* clock = nullptr;
    Poller* poller = nullptr;
    TransferEngine* transfers = nullptr;  // null: no slabs
    // Hot-path counters. May be null.
    StoreMetrics* metrics = nullptr;
    // Populates the pages of a new segment. May be empty.
    std::function<void(std::shared_ptr<const SharedMemory>)> prefault;
    // Populates memory of a segment now, on the thread that is about to write to it. May be empty.
    PrepareMemory prepare;
  };

  StoreCore(const Options& options, const Environment& environment);

  // Packs. See PackTable::Add; `files` are the reader's numbers of the source's files.
  absl::StatusOr<uint32_t> AddPack(std::unique_ptr<ExtentSource> source, std::vector<int> files) {
    return packs_.Add(std::move(source), std::move(files));
  }
  // The number of the pack with this model_id, -1 if there is none.
  int FindPack(const std::string& model_id) const { return packs_.Find(model_id); }
  // Null when there is no such pack, or it is not a folder. Lives as long as the core, as the next three.
  const Pack* pack(uint32_t number) const;
  const ExtentSource* source(uint32_t pack) const { return packs_.source(pack); }
  // The pack's residency table by extent; any thread may read it (IsResident of common/protocol/lease.h).
  // REQUIRES: pack < pack_count().
  const ResidencyEntry* residency(uint32_t pack) const { return packs_.residency(pack); }
  uint32_t pack_count() const { return static_cast<uint32_t>(packs_.size()); }

  // Sessions. See SessionManager::Open.
  absl::StatusOr<SessionHandle> OpenSession(const SessionParams& params);
  // Attaches the side socket (connected, its HELLO already read and its nonce checked) to the session, sends
  // WELCOME and the segments. From here on the socket's end loses the session, and the peer process's exit
  // (SO_PEERPIDFD or pidfd_open of SO_PEERCRED's pid) ends it. NOT_FOUND, FAILED_PRECONDITION (already
  // attached).
  absl::Status AttachSideSocket(uint64_t session, UniqueFd socket);
  // Ends a session whose client has done its last read: pins are ignored from now on. NOT_FOUND.
  absl::Status CloseSession(uint64_t session);
  // Registers the session's slab `number`; for clients without a side socket, the others send SLAB_OFFERED.
  // See SlabRegistry::Add.
  absl::Status AddSlab(uint64_t session, uint32_t number, std::shared_ptr<Slab> slab, const LinkRate& rate) {
    return slabs_.Add(session, number, std::move(slab), rate);
  }
  // Events of the side socket's end and the pidfd; for clients without a side socket (tests, in-process).
  void OnConnectionLost(uint64_t session);
  void OnProcessExit(uint64_t session) { End(session); }
  // For clients in this process. NOT_FOUND.
  absl::StatusOr<LocalSession> Local(uint64_t session) const;
  // The start of a segment, null if there is none. It stays mapped while an extent in it is leased.
  const std::byte* SegmentData(uint32_t segment) const;
  // Refuses new sessions; running ones go on.
  void Drain() { session_manager_.Close(); }
  bool draining() const { return session_manager_.closed(); }
  void Tune(const StoreTuning& tuning);
  // Sets the DRAM budget. A smaller one is reached round by round, as clients release extents and unmap
  // retired segments. FAILED_PRECONDITION with the numbers if it cannot hold the reserves of the open
  // sessions.
  absl::Status SetBudget(uint64_t budget);

  // Rounds.
  void HandleEvent(PollEvent event);
  // Runs one bounded round over all sessions, with the reader's reports since the last; true if another round
  // may find work at once.
  bool Pump(const std::vector<ReadResult>& reads);
  // Announces sleep to every client; false: there is work, pump instead.
  bool BeginSleep();
  void EndSleep();
  // Time of the next Pump() that is needed without an event, in the clock's nanoseconds; 0: never.
  int64_t NextDeadline() const;

  // A chunk to verify without the lock, and its verdict; see scrubber.h.
  std::optional<Scrubber::Chunk> TakeScrub() { return scrubber_.Take(environment_.clock->NowNanos()); }
  // True: the extent went bad and is read again.
  bool FinishScrub(const Scrubber::Chunk& chunk, const absl::Status& verdict);
  int64_t NextScrub() const { return scrubber_.next_due(); }

  // Statistics and log.
  uint64_t boot_epoch() const { return options_.boot_epoch; }
  StoreStats Stats() const;
  uint64_t in_flight_bytes() const { return fetcher_.started_bytes(); }
  const DramTier& tier() const { return tier_; }
  // Messages since the last call.
  StoreLog::Messages TakeLog() { return log_.Take(); }

 private:
  // The parts, wired to each other.
  Arena::Listener Segments();
  Fetcher::Hooks FetcherHooks();

  // Orders all uses so far before the next decision.
  void BeginDecision();
  void TakeTransferEvents();
  void OnSideReadable(Session* session);
  // The connection is gone, the process perhaps not.
  void Lose(Session* session);
  void End(uint64_t session);
  void CloseMarked();
  // Completes nothing of the session any more and releases its pins.
  void StopServing(Session* session);
  SessionStats StatsOf(const Session& session) const;

  const Options options_;
  const Environment environment_;
  StoreLog log_;
  bool placement_logged_ = false;
  SessionTable sessions_{&log_};
  DramTier tier_;
  Fetcher fetcher_;
  PackTable packs_;
  BudgetShares shares_;
  SessionManager session_manager_;
  SideSockets side_;
  SegmentNotices notices_;
  SlabRegistry slabs_;
  StalledSessions stalled_;
  TransferRequests transfers_;
  RequestRouter router_;
  Scrubber scrubber_;
  // Time of the next shrinking round; 0: no bytes are to be freed.
  int64_t shrink_at_ = 0;
  uint64_t scrub_refills_ = 0;
  uint64_t sessions_lost_ = 0;
};

// One turn of weightd's pump: the waiting reports, a round of the core, and the decision to sleep after it.
// WeightStore runs turns on a thread of its own; the simulation (tests/simulation) runs the same ones.
//
// Thread safety: ReadInbox is thread-safe, but Take(), BeginSleep() and EndSleep() belong to the pump's
// thread. PumpTurn() needs the core's lock.

// Reports on their way from the readers' threads to the pump.
class ReadInbox {
 public:
  // True: the pump sleeps, or is about to, and the caller must wake it. At most one caller per sleep gets
  // true.
  bool Add(ReadResult result) {
    {
      MutexLock lock(&mutex_);
      reads_.push_back(std::move(result));
    }
    ProtocolStep(ProtocolPoint::kSleepReset, &asleep_);
    return asleep_.exchange(false);
  }

  // The same for any other event that the pump's next round finds by itself.
  bool Notify() { return asleep_.exchange(false); }

  std::vector<ReadResult> Take() {
    std::vector<ReadResult> reads;
    MutexLock lock(&mutex_);
    reads.swap(reads_);
    return reads;
  }

  // Announces sleep. False: there are reports; do not sleep.
  bool BeginSleep() {
    ProtocolStep(ProtocolPoint::kSleepAnnounce, &asleep_);
    asleep_.store(true);
    ProtocolStep(ProtocolPoint::kSleepCheck, &asleep_);
    MutexLock lock(&mutex_);
    return reads_.empty();
  }
  void EndSleep() { asleep_.store(false); }

 private:
  std::atomic<bool> asleep_{false};
  Mutex mutex_;
  std::vector<ReadResult> reads_ ABSL_GUARDED_BY(mutex_);
};

// Runs a turn. Returns how many milliseconds the pump may sleep afterwards: 0 not at all, -1 until it is
// woken. After the sleep the caller calls inbox->EndSleep() and core->EndSleep() and passes on the poller's
// events.
int PumpTurn(StoreCore* core, ReadInbox* inbox, const Clock& clock);

}  // namespace sluice::weightd
