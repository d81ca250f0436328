// An in-process weightd for tests of the engine: reads a pack's files itself, holds extents in segments under
// a budget with LRU, and misbehaves on request.
//
// Bytes that are not resident or were evicted read as 0xFF (NaN in every float): an engine that reads without
// a lease cannot go unnoticed. Protocol violations are counted in violations().
//
// Slabs: a target lent to a transfer reads as 0xFF until its tile has landed; tiles land one after another,
// all at once without `max_delay_polls`. Lending a range twice is a violation, except to a second request for
// the very same rows (which makes a prefetch a demand).
//
// Nothing allocates while requests come and go, so tests that count allocations may run on it (transfers
// once a slab was offered).
//
// Thread safety: the WeightClient part is thread-compatible as its interface says; Wake(), counters(), and
// the methods that inject faults may be called from any thread.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/file_io.h"
#include "common/base/mutex.h"
#include "common/protocol/shared_memory.h"
#include "inferd/model/weight_client.h"

namespace sluice {

struct FakeWeightOptions {
  uint64_t dram_budget = ~uint64_t{0};  // bytes of resident extents
  uint32_t segments = 3;
  uint32_t ring_entries = 64;
  uint64_t seed = 1;
  // A request completes after 0..max_delay_polls further polls.
  uint32_t max_delay_polls = 0;
  // Chance that a fill ends without room though there is some, and that a poll evicts one unpinned extent.
  double no_room_chance = 0;
  double evict_chance = 0;
  // Prefetches begin at once: CancelPrefetches() finds none that has not begun.
  bool prefetches_begin_at_once = false;
};

class FakeWeightClient final : public inferd::WeightClient {
 public:
  static absl::StatusOr<std::unique_ptr<FakeWeightClient>> Open(const std::string& pack_dir,
                                                                const FakeWeightOptions& options);
  ~FakeWeightClient() override;

  const Pack& pack() const override { return *pack_; }
  absl::Status SetSegmentObserver(inferd::SegmentObserver* observer) override;
  bool TryLease(uint32_t extent, inferd::ExtentLease* lease) override;
  void Release(uint32_t extent, uint64_t step) override;
  bool IsResident(uint32_t extent) const override;
  absl::Status Submit(const inferd::FetchRequest& request) override;
  absl::StatusOr<uint32_t> OfferSlab(const inferd::SlabOffer& offer) override;
  uint32_t LandedTiles(uint64_t id) const override;
  void Cancel(uint64_t id) override;
  void CancelPrefetches(uint64_t step, uint32_t layer) override;
  size_t Poll(absl::FunctionRef<void(const inferd::FetchCompletion&)> handle) override;
  absl::Status Wait(absl::Time deadline) override;
  void Wake() override;
  bool connected() const override;
  absl::Status Reconnect(absl::Time deadline) override;
  inferd::WeightClientCounters counters() const override;
  std::string Describe() const override { return "fake"; }

  // Kills weightd now: nothing completes any more, held leases stay readable, calls fail with `code`.
  void Disconnect(absl::StatusCode code = absl::StatusCode::kUnavailable);
  // Kills it after this many further polls.
  void DisconnectAfterPolls(uint64_t polls);
  // If `allow`, Reconnect() finds a new weightd; else it fails with `code`.
  void AllowReconnect(bool allow, absl::StatusCode code = absl::StatusCode::kUnavailable);
  // Accepts requests and never completes them.
  void Freeze(bool frozen);
  // The next `count` demands for experts end with `code`, unfilled.
  void EndDemands(absl::StatusCode code, int count);
  // Limits the memory for leases, others hold the rest (a stand-in for other sessions' pins).
  void SetBudget(uint64_t bytes);

  // The first protocol violation, "" if there was none.
  std::string violation() const;
  uint64_t resident_bytes() const;
  uint64_t waits() const;  // calls of Wait()

 private:
  struct Extent {
    uint32_t segment_index = 0;
    uint64_t offset = 0;
    uint32_t pins = 0;
    bool resident = false;
    uint64_t last_use = 0;
  };
  struct Pending {
    inferd::FetchRequest request;
    uint32_t polls_left = 0;
    bool cancelled = false;
    // Transfers: `target` with its list in lists_[list]; filled: the extents are resident and pinned.
    inferd::TransferTarget target;
    uint32_t list = 0;
    bool filled = false;
    uint32_t tiles_landed = 0;
    inferd::FetchCompletion completion;  // so far
  };
  struct Segment {
    uint32_t id = 0;
    std::vector<std::byte> bytes;
  };

  FakeWeightClient(std::unique_ptr<Pack> pack, const FakeWeightOptions& options);
  bool EndsInjected(const inferd::FetchRequest& request, inferd::FetchCompletion* completion);
  absl::Status MapSegments();
  void UnmapSegments();
  bool TakePoll() ABSL_LOCKS_EXCLUDED(mutex_);
  void Complete(Pending* pending, absl::FunctionRef<void(const inferd::FetchCompletion&)> handle);
  // True once the request is over.
  bool Advance(Pending* pending);
  void PinExtents(const inferd::FetchRequest& request, bool pin);

  absl::Status CheckTarget(const inferd::FetchRequest& request) const;
  bool IsDuplicateTransfer(const inferd::FetchRequest& request);
  void KeepTarget(const inferd::FetchRequest& request, bool poison, Pending* pending);
  uint32_t RowsOf(const Pending& pending) const;
  // Rows of a part of `rows` neurons: other ones of down by outputs, which is never listed.
  uint32_t RowsOf(const inferd::FetchRequest& request, Part part, uint32_t rows) const;
  uint32_t TilesOf(const Pending& pending) const;
  uint64_t RowBytesOf(const inferd::FetchRequest& request, Part part) const;
  std::byte* SlabRow(const Pending& pending, Part part, uint32_t row);
  void LandTile(Pending* pending);
  void Poison(const Pending& pending);
  bool Fill(const inferd::FetchRequest& request, inferd::FetchCompletion* completion);
  void FillExtent(uint32_t extent, inferd::FetchCompletion* completion);
  bool MakeRoom(uint64_t bytes);
  void Evict(uint32_t extent);
  void EvictAtRandom();
  ExtentRange ExtentsOf(const inferd::FetchRequest& request) const;
  void Breach(const std::string& what);

  const std::unique_ptr<Pack> pack_;
  const FakeWeightOptions options_;
  std::vector<File> files_;
  std::mt19937_64 random_;
  inferd::SegmentObserver* observer_ = nullptr;
  std::vector<Segment> segments_;
  uint32_t next_segment_id_ = 1;
  std::vector<Extent> extents_;
  std::vector<Pending> pending_;   // in order; never grows beyond ring_entries
  std::vector<Pending> finished_;  // by the running Poll()
  std::vector<Mapping> slabs_;
  std::vector<std::vector<uint32_t>> lists_;  // neurons of outstanding transfers
  std::vector<uint32_t> free_lists_;
  uint64_t resident_bytes_ = 0;
  uint64_t clock_ = 0;  // of last_use

  mutable Mutex mutex_;
  CondVar changed_;
  bool connected_ ABSL_GUARDED_BY(mutex_) = true;
  bool allow_reconnect_ ABSL_GUARDED_BY(mutex_) = true;
  absl::StatusCode refusal_ ABSL_GUARDED_BY(mutex_) = absl::StatusCode::kUnavailable;
  absl::StatusCode death_ ABSL_GUARDED_BY(mutex_) = absl::StatusCode::kUnavailable;
  bool frozen_ ABSL_GUARDED_BY(mutex_) = false;
  absl::StatusCode demands_end_ ABSL_GUARDED_BY(mutex_) = absl::StatusCode::kOk;
  int demands_to_end_ ABSL_GUARDED_BY(mutex_) = 0;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t budget_ ABSL_GUARDED_BY(mutex_);
  uint64_t polls_to_death_ ABSL_GUARDED_BY(mutex_) = ~uint64_t{0};
  inferd::WeightClientCounters counters_ ABSL_GUARDED_BY(mutex_);
  std::string violation_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice
