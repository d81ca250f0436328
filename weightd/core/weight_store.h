// weightd without its control plane: packs, DRAM tier, sessions, and the pump thread that serves their rings.
//
// The gRPC service (weightd/control/weights_service.h) and the side socket's listener call this; everything
// after the HELLO on the side socket happens in here: WELCOME, segment messages, acknowledgements, the peer's
// death.
//
// Thread safety: thread-safe; every method may be called from any thread and none of them blocks on I/O of a
// pack's payload or on a client.
#ifndef SLUICE_WEIGHTD_WEIGHT_STORE_H_
#define SLUICE_WEIGHTD_WEIGHT_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/link/link_model.h"
#include "common/ring/rings.h"
#include "common/ring/session_abi.h"
#include "common/ring/unique_fd.h"
#include "weightd/dram/eviction.h"
#include "weightd/dram/store_metrics.h"
#include "weightd/fetch/fetcher_stats.h"
#include "weightd/io/block_reader.h"

namespace sluice {

class Pack;
class ExtentSource;

enum class LogSeverity { kInfo, kWarning, kError };
using LogFn = std::function<void(LogSeverity, const std::string&)>;

struct WeightStoreOptions {
  // Bytes of expert and dense extents kept in memory, at most. Exact: segments never exceed it. REQUIRED.
  uint64_t dram_budget = 0;
  // Reads past the page cache. False, or where the file system refuses O_DIRECT (logged): through it.
  bool direct = true;
  // Read by io_uring; false, or where the kernel refuses that (logged): by threads.
  bool uring = true;
  // Threads of the pread engine. Reads of 64 KiB need 64 to reach 90 % of the disk's rate beside the checking
  // (reader_bench); larger ones are bounded by the bytes in flight. They sleep otherwise.
  int reader_threads = 64;
  // A read that takes longer is tried a second time; requests for it end after four times as long.
  int read_deadline_ms = 1000;
  // Wait this long for memory to become available before refusing to start: a predecessor may still be
  // mapped.
  int budget_wait_ms = 10'000;
  // Sessions that have not been joined by their side socket after this long are dropped.
  int attach_timeout_ms = 10'000;
  // Which extent goes, and whether those used once go before those used again (eviction.h, admission.h).
  EvictionKind eviction = EvictionKind::kLru;
  bool admission = true;
  // Bytes that a session may fill at most; 0: no bound.
  uint64_t session_quota = 0;
  // Bytes a second of resident weights that are verified again, in the background; 0: none.
  uint64_t scrub_rate = 0;
  // Threads that copy into slabs. 0: one for every four CPUs, at most four.
  int copy_threads = 0;
  // Listed neurons travel in chunks of so many.
  uint32_t gather_neurons = 50;
  // Called from any thread, never with a lock held that a method of this class takes. May be empty.
  LogFn log;
};

// Of the options, what can change while the store runs.
struct StoreTuning {
  uint64_t scrub_rate = 0;
  int read_deadline_ms = 1000;
  uint64_t session_quota = 0;  // for sessions that open from then on
};

// What OpenSession's caller says about itself.
struct SessionParams {
  AbiSignature abi;
  std::vector<uint32_t> packs;  // weightd's pack numbers; their order is the session's pack index
  // Compute threads: the session's reserved minimum is 2 x the largest expert of its packs x this.
  uint32_t compute_threads = 1;
  // Bytes that the session may fill at most: beyond it its own coldest extents go first. 0: as many as the
  // store's session_quota allows. What another session filled costs nothing.
  uint64_t quota_bytes = 0;
  ControlLayout layout;  // sizes of rings, index arena and progress array
  // For logs and Stats only.
  std::string client_name;
};

struct SessionPack {
  uint32_t pack = 0;  // weightd's number
  uint32_t extent_count = 0;
};

// A session that was opened. Descriptors are the store's and stay open until the session ends; a client in
// another process gets copies by AttachSideSocket, one in this process may map them at once.
struct SessionHandle {
  uint64_t session = 0;
  uint64_t boot_epoch = 0;
  std::vector<SessionPack> packs;
  std::vector<int> fds;  // in the order of WelcomeFds
  uint64_t control_bytes = 0;
  uint64_t reserved_bytes = 0;  // the reserved minimum
};

// A session's regions as weightd itself has them mapped: for clients in this process (tests, benchmarks).
// Borrowed; dies with the session.
struct LocalSession {
  struct PackRegions {
    const ResidencyEntry* residency = nullptr;
    PinEntry* pins = nullptr;
    uint32_t extent_count = 0;
  };
  ControlView control;
  std::vector<PackRegions> packs;  // in the session's order
  int server_bell = -1;
  int client_bell = -1;
};

struct SessionStats {
  uint64_t session = 0;
  std::string client_name;
  std::string state;          // "opened", "active", "lost"
  uint64_t held_extents = 0;  // with a pin of this session above zero
  uint64_t held_bytes = 0;    // of these
  uint64_t outstanding = 0;   // requests without completion
  uint64_t requests = 0;
  uint64_t bytes_read = 0;
  uint64_t quota_bytes = 0;    // 0: none
  uint64_t charged_bytes = 0;  // of the quota
};

// Every number of it has its line in store_counters.h.
struct StoreStats : FetcherStats {
  uint64_t dram_budget = 0;
  uint64_t segment_bytes = 0;  // of all segments, retired but unacknowledged ones counted: <= dram_budget
  uint64_t retired_bytes = 0;  // of these
  uint64_t resident_bytes = 0;
  uint64_t resident_extents = 0;
  uint64_t bad_extents = 0;
  uint64_t segments = 0;
  uint64_t evictions = 0;
  uint64_t sessions_lost = 0;     // that weightd ended: they misbehaved or had stopped
  uint64_t sessions_stopped = 0;  // of these, the latter
  uint64_t in_flight_bytes = 0;
  uint64_t transfers = 0;  // into slabs, ended
  uint64_t transfers_cancelled = 0;
  uint64_t transfers_waiting = 0;
  uint64_t link_bytes = 0;       // copied into slabs
  uint64_t prefetch_useful = 0;  // extents that a prefetch brought and a session used
  uint64_t prefetch_wasted = 0;  // that left memory unused
  uint64_t trusted_extents = 0;  // that the admission keeps from scans, now
  uint64_t promotions = 0;       // how many came to be that
  uint64_t scrub_bytes = 0;      // verified again in memory
  uint64_t scrub_passes = 0;     // over all that was resident
  uint64_t scrub_failures = 0;   // extents whose bytes went bad in memory
  // By class, in the metrics' labelled families.
  uint64_t queued_demand = 0;  // requests that wait for their turn or for room
  uint64_t queued_prefetch = 0;
  std::string eviction;  // "lru", "lfru", "score"
  bool admission = false;
  std::string io_engine;  // "uring, O_DIRECT", "pread, buffered"
  std::vector<SessionStats> sessions;
};

// What a watchdog compares over time.
struct StoreProgress {
  uint64_t rounds = 0;           // of the pump
  uint64_t reads_reported = 0;   // by the reader
  uint64_t in_flight_bytes = 0;  // of reads that have not been reported, as of the last round
};

class WeightStore {
 public:
  // Checks the budget against MemAvailable and the cgroup's limit, RESOURCE_EXHAUSTED with the four numbers,
  // and starts the pump and the readers. `reader` null: the pread engine.
  static absl::StatusOr<std::unique_ptr<WeightStore>> Create(WeightStoreOptions options,
                                                             std::unique_ptr<BlockReader> reader = nullptr);
  ~WeightStore();

  // Opens the pack in `dir` and makes its residency table; the number of a pack that is already there (by
  // model_id) otherwise. Errors of Pack::Open; RESOURCE_EXHAUSTED when the budget cannot hold its dense
  // extents and one session's minimum with one thread.
  absl::StatusOr<uint32_t> AddPack(const std::string& dir);
  // The same for a source that is no folder; pack() of it is null.
  absl::StatusOr<uint32_t> AddSource(std::unique_ptr<ExtentSource> source);
  // Null when there is no such pack. Lives as long as the store.
  const Pack* pack(uint32_t number) const;
  uint32_t pack_count() const;

  // FAILED_PRECONDITION: another ABI (names the field); INVALID_ARGUMENT: layout or pack; RESOURCE_EXHAUSTED:
  // minima and dense extents of all sessions exceed the budget (with the numbers); UNAVAILABLE: draining.
  absl::StatusOr<SessionHandle> OpenSession(const SessionParams& params);

  // Joins the side socket (connected, its HELLO already read and its nonce checked) to the session, sends
  // WELCOME and the segments. From here on the socket's end loses the session, and the peer process's exit
  // (SO_PEERPIDFD or pidfd_open of SO_PEERCRED's pid) ends it. NOT_FOUND, FAILED_PRECONDITION (already
  // joined).
  absl::Status AttachSideSocket(uint64_t session, UniqueFd socket);

  // The client has done its last read: pins are ignored from now on. NOT_FOUND.
  absl::Status CloseSession(uint64_t session);

  // Lends the session's slab `number`: a memory file of `bytes` that cannot shrink and has all its pages. For
  // clients without a side socket; the others send SLAB_OFFERED. INVALID_ARGUMENT (the file), ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED, NOT_FOUND (the session).
  absl::Status OfferSlab(uint64_t session, uint32_t number, int fd, uint64_t bytes, const LinkRate& link);

  // What the side socket's end and the pidfd report; for clients without a side socket (tests, in-process).
  void OnConnectionLost(uint64_t session);
  void OnProcessExit(uint64_t session);

  // No new sessions; running ones go on.
  void Drain();
  bool draining() const;

  void Tune(const StoreTuning& tuning);

  uint64_t boot_epoch() const;
  StoreStats Stats() const;
  // Takes no lock, so it answers though the pump is stuck.
  StoreProgress Progress() const;
  // What is counted on the hot path; read without any lock. Lives as long as the store.
  const StoreMetrics& metrics() const;
  // Has the pump make a round though nothing happened.
  void Nudge();
  // The pack's residency table by extent, for a glance (IsResident of common/ring/lease.h) from any thread.
  // REQUIRES: pack < pack_count(). Lives as long as the store.
  const ResidencyEntry* residency(uint32_t pack) const;

  // For clients in this process. NOT_FOUND.
  absl::StatusOr<LocalSession> Local(uint64_t session) const;
  // The start of a segment, null if there is none. Stays mapped while an extent in it is leased.
  const std::byte* SegmentData(uint32_t segment) const;

  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

 private:
  WeightStore();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_WEIGHTD_WEIGHT_STORE_H_
