// Turns requests into fills: coalesces duplicates, lets demand overtake prefetch, cancels, repeats damaged
// reads, and reports the outcome of each request.
//
// A request waits in its class's queue, where sessions take turns by bytes, until it may start; then every
// extent it lacks gets a slot and a read, or it ends RESOURCE_EXHAUSTED. Extents that are resident for a
// request are pinned until its completion takes over the pins.
//
// Thread safety: thread-compatible; the core's lock guards it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/clock.h"
#include "weightd/store/block_reader.h"
#include "weightd/store/dram_tier.h"
#include "weightd/store/extent_source.h"
#include "weightd/store/fair_queue.h"
#include "weightd/store/prefetch_ledger.h"
#include "weightd/store/store_metrics.h"

namespace sluice::weightd {

// A fill request that passed validation.
struct FillRequest {
  uint64_t session = 0;
  uint64_t id = 0;  // the client's, or the transfer's number of this fill
  bool for_transfer = false;
  RequestClass request_class = RequestClass::kDemand;
  uint64_t step = 0;
  uint32_t layer = 0;
  uint32_t pack = 0;   // weightd's number
  ExtentList extents;  // of the pack; at least one
  uint32_t progress = kNoProgress;
  bool scan = false;  // the step scans (SubmissionEntry::flags)
};

class Fetcher {
 public:
  struct Options {
    // Maximum bytes of started fills: enough for the disk's best depth, few enough that slots for demands are
    // allocated late.
    uint64_t started_bytes = 32ull * 1024 * 1024;
    // Another prefetch starts once at most this many bytes are left of the previous ones: as much as the
    // reader keeps in flight of them, so that the next one's reads are queued when the last of these land.
    uint64_t prefetch_bytes = 2ull * 1024 * 1024;
    // Maximum time that a request waits for sessions to unmap retired segments.
    int64_t retire_timeout_nanos = 2'000'000'000;
    // A read that brings no bytes for longer is slow: it is hedged by another read into another slot. 0:
    // never.
    int64_t slow_read_nanos = 1'000'000'000;
    // Requests for an extent time out after this multiple of slow_read_nanos without bytes.
    int64_t timeout_multiple = 4;
    // Maximum number of hedged reads at a time. They count against no limit of the reader.
    uint32_t hedged_reads = 8;
  };
  struct Hooks {
    // A client's request, or a transfer's fill, ended. `held` extents carry one pin each, now owned by the
    // callee.
    std::function<void(uint64_t session, const CompletionEntry& entry, std::vector<ExtentId> held)> complete;
    std::function<void(const CompletionEntry& entry, std::vector<ExtentId> held)> filled;
    std::function<void(uint64_t session, uint32_t word, uint64_t value)> progress;
    std::function<void(const std::string& message)> log_error;
    // Bytes that prefetches may still use, without those in flight. May be empty: no bound.
    std::function<uint64_t()> prefetch_headroom;
    // A demand, accepted at that time, ended for lack of room. May be empty.
    std::function<void(uint64_t session, int64_t accepted_nanos)> starved;
    // Prepares the memory of a read, on the reader's thread. May be empty.
    PrepareMemory prepare;
    // Hot-path counters. May be null.
    StoreMetrics* metrics = nullptr;
  };

  Fetcher(const Options& options, DramTier* tier, BlockReader* reader, const Clock* clock, Hooks hooks);

  // Adds the pack with the tier's number `pack`; files[i] is the reader's number of its file i.
  void AddPack(uint32_t pack, const ExtentSource* source, std::vector<int> files);

  // True for a client's request.
  bool IsOutstanding(uint64_t session, uint64_t id) const { return requests_.contains({session, id, false}); }
  // REQUIRES: not IsOutstanding(request).
  void Accept(const FillRequest& request);
  // Ends one request CANCELLED; false if there is none.
  bool Cancel(uint64_t session, uint64_t id, bool for_transfer = false);
  // Ends the session's prefetches of `pack` that have not started and are not after (step, layer); returns
  // their number.
  uint64_t CancelPrefetches(uint64_t session, uint32_t pack, uint64_t step, uint32_t layer);
  // Drops the session's requests without completing them.
  void DropSession(uint64_t session);

  void OnRead(const ReadResult& result);
  // Notes a dropped retired segment: requests that wait for its room are retried at the next Pump().
  void OnRetired();
  // Sets Options::slow_read_nanos for reads that start from now on.
  void SetSlowRead(int64_t nanos) { slow_read_nanos_ = nanos; }
  // Starts every request that may start.
  void Pump();
  // Time of the next Pump() that is needed without an event; 0: never.
  int64_t next_deadline() const;

  const FetcherStats& stats() const { return stats_; }
  const PrefetchLedger& prefetches() const { return ledger_; }
  // Checks whether up to `most` prefetched extents were used.
  void SettlePrefetches(size_t most);
  // A session's end removes its uses: call SettlePrefetches before it, and this after.
  void RebasePrefetches();
  // Number of requests that wait for their turn or for room.
  size_t queued(RequestClass request_class) const {
    return request_class == RequestClass::kDemand ? demand_.size() + waiting_for_retirement_.size()
                                                  : prefetch_.size();
  }
  uint64_t started_bytes() const { return started_bytes_; }
  // Notes that only one session is open: its prefetches are nearly all wanted, and delay no other demand.
  void SetSole(bool sole) { sole_ = sole; }
  uint64_t started_prefetch_bytes() const { return started_prefetch_bytes_; }

 private:
  struct Request {
    FillRequest fill;
    std::array<ExtentId, kPartCount> extent_ids = {};
    std::array<bool, kPartCount> pinned = {};
    uint32_t missing = 0;  // extents still being read for it
    uint64_t bytes = 0;
    FetchTier tier = FetchTier::kResident;  // the slowest so far
    int64_t accepted_nanos = 0;
    int64_t started_nanos = 0;
    int64_t retire_deadline = 0;
  };
  // A hedged read of an extent whose first read is slow. The slot belongs to it until it has ended.
  struct HedgedRead {
    uint64_t tag = 0;
    Slot slot;
  };
  using Deadlines = std::multimap<int64_t, ExtentId>;
  // One extent that is being read.
  struct Fill {
    std::vector<Request*> waiters;  // the first remaining one pays for the bytes
    std::byte* dest = nullptr;
    uint64_t tag = 0;  // tag of the first read
    std::optional<HedgedRead> second;
    bool first_over = false;  // the first failed while the second runs
    bool counted = true;      // in started_bytes_
    bool slow = false;
    std::optional<Deadlines::iterator> deadline;
    RequestClass started_as = RequestClass::kDemand;
    bool reread = false;
    bool cancelled = false;
  };
  using Queue = FairQueue<Request*>;

  uint32_t count(const Request& request) const { return request.fill.extents.count; }
  Queue& queue(RequestClass request_class) {
    return request_class == RequestClass::kDemand ? demand_ : prefetch_;
  }
  // Starts the first request of `queue` in fair order if it may start; false otherwise.
  bool StartNext(Queue* queue);
  bool MayStart(const Request& request) const;
  uint64_t MissingBytes(const Request& request) const;
  void FailWithoutRoom(Request* request);
  void Start(Request* request);
  // Pins resident extents and coalesces with running reads; false: an extent is bad, the request is over.
  bool PinAndCoalesce(Request* request);
  // Allocates slots for the rest and submits their reads.
  DramTier::AllocResult AllocateMissing(Request* request);
  // The position of a scanning step at this request; none: the step does not scan.
  std::optional<ScanPlace> PlaceInScan(const FillRequest& fill) const;
  void Join(Request* request, ExtentId extent_id);
  // Reads the extent to fill.dest. A tag's low 32 bits are the extent id, the others distinguish its reads.
  void SubmitRead(ExtentId extent_id, Fill* fill);
  ReadJob JobFor(ExtentId extent_id, uint64_t tag, std::byte* dest, RequestClass request_class) const;
  // Handles a report of an extent that has or had two reads: true if nothing more is to do.
  bool OnHedgedResult(ExtentId extent_id, Fill* fill, const ReadResult& result);
  // Abandons the losing read: its slot is free once it has ended.
  void AbandonRead(uint64_t tag, const Slot& slot);
  void SetDeadline(ExtentId extent_id, Fill* fill, int64_t nanos);
  void ClearDeadline(Fill* fill);
  void PassDeadlines(int64_t now);
  // When bytes for the extent last arrived, by any of its reads.
  int64_t ProgressOf(const Fill& fill) const;
  void OnSlow(ExtentId extent_id, Fill* fill);
  void GiveUp(ExtentId extent_id, Fill* fill);
  // Starts a hedged read if there is room for it, and starts nothing more of the first.
  void StartHedgedRead(ExtentId extent_id, Fill* fill);
  std::string NameOf(ExtentId extent_id) const;
  void Leave(Request* request);
  void Finish(Request* request, absl::StatusCode code, uint32_t bad_extent);
  void Erase(Request* request);
  void OnFilled(ExtentId extent_id, const Fill& fill);
  void OnFailed(ExtentId extent_id, const Fill& fill, const ReadResult& result);
  void EndFill(ExtentId extent_id, Fill* fill);

  const Options options_;
  DramTier* const tier_;
  BlockReader* const reader_;
  const Clock* const clock_;
  const Hooks hooks_;
  int64_t slow_read_nanos_;
  struct PackRecord {
    const ExtentSource* source = nullptr;
    std::vector<int> files;
  };
  std::vector<PackRecord> packs_;
  using RequestKey = std::tuple<uint64_t, uint64_t, bool>;  // session, id, for_transfer
  absl::flat_hash_map<RequestKey, std::unique_ptr<Request>> requests_;
  Queue demand_;
  Queue prefetch_;
  std::deque<Request*> waiting_for_retirement_;  // wait for retired segments, in the order of their deadlines
  absl::flat_hash_map<ExtentId, Fill> fills_;
  Deadlines deadlines_;
  absl::flat_hash_map<uint64_t, Slot> abandoned_;  // by tag: abandoned reads, and their slots
  uint64_t read_serial_ = 0;
  uint32_t hedged_reads_ = 0;  // running ones
  uint64_t started_bytes_ = 0;
  uint64_t started_prefetch_bytes_ = 0;
  bool sole_ = false;
  FetcherStats stats_;
  const std::unique_ptr<StoreMetrics> own_metrics_;  // used if the hooks have none
  StoreMetrics* const metrics_;
  PrefetchLedger ledger_;
};

}  // namespace sluice::weightd
