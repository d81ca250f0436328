// The core of weightd: packs, DRAM tier, fetcher, transfers and sessions, driven by rounds of Pump().
//
// It makes the parts, hands each what it may know of the others, and says in which order a round goes and a
// session ends; what a part does stands in its own header. It does no waiting and owns no thread: WeightStore
// gives it a thread that sleeps on the poller, tests call Pump() themselves.
//
// Thread safety: thread-compatible; WeightStore's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/link/link_model.h"
#include "common/ring/unique_fd.h"
#include "common/transfer/transfer_engine.h"
#include "weightd/core/budget_shares.h"
#include "weightd/core/pack_table.h"
#include "weightd/core/request_router.h"
#include "weightd/core/session_door.h"
#include "weightd/core/stopped_sessions.h"
#include "weightd/core/store_stats.h"
#include "weightd/dram/dram_tier.h"
#include "weightd/dram/store_metrics.h"
#include "weightd/fetch/extent_source.h"
#include "weightd/fetch/fetcher.h"
#include "weightd/fetch/scrubber.h"
#include "weightd/io/block_reader.h"
#include "weightd/session/poller.h"
#include "weightd/session/segment_notices.h"
#include "weightd/session/session_params.h"
#include "weightd/session/session_table.h"
#include "weightd/session/side_sockets.h"
#include "weightd/session/store_log.h"
#include "weightd/transfer/slab_registry.h"
#include "weightd/transfer/transfer_requests.h"

namespace sluice {

// Of the options, what can change while the store runs.
struct StoreTuning {
  uint64_t scrub_rate = 0;
  int read_deadline_ms = 1000;
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
    // A session that has not unmapped a retired segment after this long is slow: fills take other room if
    // there is any. After the fetcher's retire_wait_nanos none counts on it.
    int64_t slow_unmap_nanos = 250'000'000;
    uint64_t scrub_rate = 0;     // bytes of resident weights verified a second; 0: none
    uint64_t session_quota = 0;  // bytes that a session may fill at most; 0: no bound
    // A session that gave no sign for so long, and holds more than its fair share while another finds no room
    // for as long, has stopped and is ended.
    int64_t stopped_nanos = 3'000'000'000;
  };
  struct Environment {
    BlockReader* reader = nullptr;
    const Clock* clock = nullptr;
    Poller* poller = nullptr;
    TransferEngine* transfers = nullptr;  // null: no slabs
    // What is counted on the hot path. May be null.
    StoreMetrics* metrics = nullptr;
    // A segment that should get its pages now. May be empty.
    std::function<void(std::shared_ptr<const SharedMemory>)> prefault;
  };

  StoreCore(const Options& options, const Environment& environment);

  // Packs. See PackTable::Add; `files` are the reader's numbers of the source's files.
  absl::StatusOr<uint32_t> AddPack(std::unique_ptr<ExtentSource> source, std::vector<int> files) {
    return packs_.Add(std::move(source), std::move(files));
  }
  // The number of the pack with this model_id, -1 if there is none.
  int FindPack(const std::string& model_id) const { return packs_.Find(model_id); }
  // Null when there is no such pack, or it is no folder. Lives as long as the core, as the next three.
  const Pack* pack(uint32_t number) const;
  const ExtentSource* source(uint32_t pack) const { return packs_.source(pack); }
  // The pack's residency table by extent, for a glance (IsResident of common/ring/lease.h) from any thread.
  // REQUIRES: pack < pack_count().
  const ResidencyEntry* residency(uint32_t pack) const { return packs_.residency(pack); }
  uint32_t pack_count() const { return static_cast<uint32_t>(packs_.size()); }

  // Sessions. See SessionDoor::Open.
  absl::StatusOr<SessionHandle> OpenSession(const SessionParams& params);
  // Joins the side socket (connected, its HELLO already read and its nonce checked) to the session, sends
  // WELCOME and the segments. From here on the socket's end loses the session, and the peer process's exit
  // (SO_PEERPIDFD or pidfd_open of SO_PEERCRED's pid) ends it. NOT_FOUND, FAILED_PRECONDITION (already
  // joined).
  absl::Status AttachSideSocket(uint64_t session, UniqueFd socket);
  // The client has done its last read: pins are ignored from now on. NOT_FOUND.
  absl::Status CloseSession(uint64_t session);
  // Lends the session's slab `number`; for clients without a side socket, the others send SLAB_OFFERED. See
  // SlabRegistry::Add.
  absl::Status AddSlab(uint64_t session, uint32_t number, std::shared_ptr<Slab> slab, const LinkRate& rate) {
    return slabs_.Add(session, number, std::move(slab), rate);
  }
  // What the side socket's end and the pidfd report; for clients without a side socket (tests, in-process).
  void OnConnectionLost(uint64_t session);
  void OnProcessExit(uint64_t session) { End(session); }
  // For clients in this process. NOT_FOUND.
  absl::StatusOr<LocalSession> Local(uint64_t session) const;
  // The start of a segment, null if there is none. Stays mapped while an extent in it is leased.
  const std::byte* SegmentData(uint32_t segment) const;
  // No new sessions; running ones go on.
  void Drain() { door_.Close(); }
  bool draining() const { return door_.closed(); }
  void Tune(const StoreTuning& tuning);
  // Another DRAM budget for everything from now on. A smaller one is reached round by round, as clients let
  // go what they hold and unmap what was retired. FAILED_PRECONDITION with the numbers if it cannot hold what
  // is promised to the sessions that are open.
  absl::Status SetBudget(uint64_t budget);

  // Rounds.
  void HandleEvent(PollEvent event);
  // One bounded round over all sessions, with what the reader has reported since the last; true if another
  // round may find work at once.
  bool Pump(const std::vector<ReadResult>& reads);
  // Announces sleep to every client; false: there is work, pump instead.
  bool BeginSleep();
  void EndSleep();
  // When to pump though nothing happened, in the clock's nanoseconds; 0: never.
  int64_t NextDeadline() const;

  // A chunk to verify without the lock, and what came of it; see scrubber.h.
  std::optional<Scrubber::Chunk> TakeScrub() { return scrubber_.Take(environment_.clock->NowNanos()); }
  // True: the extent went bad and is read again.
  bool FinishScrub(const Scrubber::Chunk& chunk, const absl::Status& verdict);
  int64_t NextScrub() const { return scrubber_.next_due(); }

  // What it tells of itself.
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

  // Puts all uses so far before whatever is decided next.
  void BeginDecision();
  void TakeTransferEvents();
  void OnSideReadable(Session* session);
  // The connection is gone, the process perhaps not.
  void Lose(Session* session);
  void End(uint64_t session);
  void EndDoomed();
  // Completes nothing of the session any more and lets go what it held.
  void StopServing(Session* session);
  SessionStats StatsOf(const Session& session) const;

  const Options options_;
  const Environment environment_;
  StoreLog log_;
  bool placement_told_ = false;
  SessionTable sessions_{&log_};
  DramTier tier_;
  Fetcher fetcher_;
  PackTable packs_;
  BudgetShares shares_;
  SessionDoor door_;
  SideSockets side_;
  SegmentNotices notices_;
  SlabRegistry slabs_;
  StoppedSessions stopped_;
  TransferRequests transfers_;
  RequestRouter router_;
  Scrubber scrubber_;
  // Bytes are still to be given back; when to look again, 0: nothing is.
  int64_t shrink_at_ = 0;
  uint64_t scrub_refills_ = 0;
  uint64_t sessions_lost_ = 0;
};

}  // namespace sluice
