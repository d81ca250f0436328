// The core of weightd: packs, DRAM tier, fetcher and sessions, driven by rounds of Pump().
//
// It does no waiting and owns no thread: WeightStore gives it a thread that sleeps on the poller, tests call
// Pump() themselves.
//
// Thread safety: thread-compatible; WeightStore's lock guards it.
#ifndef SLUICE_WEIGHTD_STORE_CORE_H_
#define SLUICE_WEIGHTD_STORE_CORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "weightd/core/weight_store.h"
#include "weightd/dram/dram_tier.h"
#include "weightd/fetch/extent_source.h"
#include "weightd/fetch/fetcher.h"
#include "weightd/fetch/scrubber.h"
#include "weightd/io/block_reader.h"
#include "weightd/session/entry_check.h"
#include "weightd/session/poller.h"
#include "weightd/session/session.h"
#include "weightd/transfer/transfer_engine.h"
#include "weightd/transfer/transfer_requests.h"

namespace sluice {

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

  // `files` are the reader's numbers of the source's files. RESOURCE_EXHAUSTED: see WeightStore::AddPack.
  absl::StatusOr<uint32_t> AddPack(std::unique_ptr<ExtentSource> source, std::vector<int> files);
  // The number of the pack with this model_id, -1 if there is none.
  int FindPack(const std::string& model_id) const;
  const ExtentSource* source(uint32_t pack) const;
  size_t pack_count() const { return packs_.size(); }

  absl::StatusOr<SessionHandle> OpenSession(const SessionParams& params);
  absl::Status AttachSideSocket(uint64_t session, UniqueFd socket);
  absl::Status CloseSession(uint64_t session);
  // Lets the session's transfers name `slab` as its number `number`. What SLAB_OFFERED does once the file is
  // mapped; for clients without a side socket. ALREADY_EXISTS, RESOURCE_EXHAUSTED, NOT_FOUND (the session),
  // UNIMPLEMENTED: no transfer engine.
  absl::Status AddSlab(uint64_t session, uint32_t number, std::shared_ptr<Slab> slab, const LinkRate& rate);
  void OnConnectionLost(uint64_t session);
  void OnProcessExit(uint64_t session);
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }
  void Tune(const StoreTuning& tuning);

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
  std::optional<Scrubber::Chunk> TakeScrub();
  // True: the extent went bad and is read again.
  bool FinishScrub(const Scrubber::Chunk& chunk, const absl::Status& verdict);
  int64_t NextScrub() const { return scrubber_.next_due(); }

  StoreStats Stats() const;
  uint64_t in_flight_bytes() const { return fetcher_.started_bytes(); }
  const ResidencyEntry* residency(uint32_t pack) const;
  absl::StatusOr<LocalSession> Local(uint64_t session) const;
  const DramTier& tier() const { return tier_; }
  // Messages since the last call.
  std::vector<std::pair<LogSeverity, std::string>> TakeLog() { return std::exchange(log_, {}); }

 private:
  struct PackRecord {
    std::unique_ptr<ExtentSource> source;
    SharedMemory residency;
  };

  // Puts all uses so far before whatever is decided next.
  void BeginDecision();
  absl::Status CheckParams(const SessionParams& params) const;
  absl::Status CheckReserve(const SessionParams& params, uint64_t minimum) const;
  uint64_t DenseBytes(const std::set<uint32_t>& packs) const;
  bool Serve(Session* session);
  void Handle(Session* session, const SubmissionEntry& entry, std::vector<uint32_t> neurons);
  void HandleFill(Session* session, const SubmissionEntry& entry);
  void HandleCancel(Session* session, const SubmissionEntry& entry);
  void OnTransferEvent(TransferEvent event);
  void OnSlabOffered(Session* session, SidePacket packet);
  absl::Status ReserveSlab(Session* session, uint32_t number) const;
  void AnswerSlab(Session* session, uint32_t number, absl::StatusCode code);
  void DropSlabs(Session* session);
  // What prefetches may still take: nothing of the dense weights' room or of any session's reserved minimum,
  // or a demand that was promised room would find none.
  uint64_t PrefetchRoom() const;
  void Answer(Session* session, const SubmissionEntry& entry, EntryVerdict verdict, uint64_t count);
  void OnComplete(uint64_t session, const CompletionEntry& entry, std::vector<Gid> held);
  void Deliver(uint64_t session, const CompletionEntry& entry, std::vector<Gid> held);

  void Send(Session* session, SideMessage message, std::shared_ptr<const SharedMemory> memory);
  void Flush(Session* session);
  void FlushDelayed(Session* session);
  void OnSideReadable(Session* session);
  void OnSegmentAdded(uint32_t segment, const std::shared_ptr<const SharedMemory>& memory);
  void OnSegmentRetired(uint32_t segment);
  void OnUnmapped(uint64_t session, uint32_t segment);
  // Looks which retired segments are waited for too long, and has the waiting fills tried again when that
  // changed.
  void NoteSlowSessions(int64_t now);
  // What each session may hold while others find no room: an equal part of what is no dense weights'.
  uint64_t FairShare() const;
  uint64_t HeldBy(const Session& session) const;
  // Ends sessions that have stopped while another starves.
  void EndStopped(int64_t now);
  absl::StatusOr<uint64_t> QuotaOf(const SessionParams& params, uint64_t reserved) const;
  SideMessage Message(SideType type, const Session& session) const;

  Session* Find(uint64_t session);
  // Ends after this round: the caller may be in the middle of the session's work.
  void Doom(uint64_t session, bool misbehaved, const std::string& why);
  void EndDoomed();
  void Lose(Session* session);
  void End(uint64_t session);
  void Log(LogSeverity severity, std::string message) { log_.emplace_back(severity, std::move(message)); }

  const Options options_;
  const Environment environment_;
  DramTier tier_;
  Fetcher fetcher_;
  Scrubber scrubber_;
  TransferRequests transfers_;
  std::vector<PackRecord> packs_;
  std::map<uint64_t, std::unique_ptr<Session>> sessions_;
  struct Retiring {
    std::set<uint64_t> sessions;  // that have not unmapped it
    uint64_t bytes = 0;
    int64_t since_nanos = 0;
  };
  std::map<uint32_t, Retiring> retiring_;  // by segment
  uint64_t slow_bytes_ = 0;                // of these, told to the tier
  uint64_t lost_bytes_ = 0;
  struct Doomed {
    uint64_t session;
    bool misbehaved;
  };
  std::vector<Doomed> doomed_;
  std::vector<std::pair<LogSeverity, std::string>> log_;
  uint64_t session_quota_;
  struct Starving {
    int64_t since = 0;  // when the first of its demands was accepted that found no room
    int64_t last = 0;   // when the last did
  };
  std::map<uint64_t, Starving> starving_;  // by session, until a fill succeeds
  uint64_t next_session_ = 1;
  uint64_t scrub_refills_ = 0;
  uint64_t sessions_lost_ = 0;
  uint64_t sessions_stopped_ = 0;
  bool draining_ = false;
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_STORE_CORE_H_
