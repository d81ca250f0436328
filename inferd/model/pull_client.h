// PullClient: the transport `pull`. This process performs the transfers instead of weightd: sources are
// leased in weightd's DRAM, filled first if needed, and copied into the slab by own copy threads
// (common/protocol/transfer_engine.h) over the same modelled link. All other calls go to the underlying
// client unchanged, which implements `push`.
//
// weightd maps no slab in this mode, and neither process waits for a device through the other.
//
// Thread safety: as WeightClient's; the engine thread's but for Wake(), Describe() and counters().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/protocol/copier.h"
#include "common/protocol/shared_transfers.h"
#include "common/protocol/transfer_engine.h"
#include "inferd/model/weight_client.h"

namespace sluice::inferd {

class PullClient final : public WeightClient, private SegmentObserver {
 public:
  // `devices` copy into memory of their kinds, and are notified of weightd's segments, the sources of copies;
  // memory files are supported in any case.
  explicit PullClient(std::unique_ptr<WeightClient> behind,
                      std::vector<std::shared_ptr<Copier>> devices = {});
  ~PullClient() override;

  const Pack& pack() const override { return behind_->pack(); }
  absl::Status SetSegmentObserver(SegmentObserver* observer) override;
  bool TryLease(uint32_t extent, ExtentLease* lease) override { return behind_->TryLease(extent, lease); }
  void Release(uint32_t extent, uint64_t step) override { behind_->Release(extent, step); }
  void SetScan(bool scan) override { behind_->SetScan(scan); }
  bool IsResident(uint32_t extent) const override { return behind_->IsResident(extent); }
  absl::Status Submit(const FetchRequest& request) override;
  void BeginSubmitBatch() override { behind_->BeginSubmitBatch(); }
  void EndSubmitBatch() override { behind_->EndSubmitBatch(); }
  absl::StatusOr<uint32_t> OfferSlab(const SlabOffer& offer) override;
  absl::Status RevokeSlabs(absl::Time deadline) override;
  uint32_t LandedTiles(uint64_t id) const override;
  void Cancel(uint64_t id) override;
  void CancelPrefetches(uint64_t step, uint32_t layer) override;
  size_t Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) override;
  absl::Status Wait(absl::Time deadline) override;
  void Wake() override { behind_->Wake(); }
  bool connected() const override { return behind_->connected(); }
  absl::Status Reconnect(absl::Time deadline) override;
  WeightClientCounters counters() const override;
  std::string Describe() const override;

 private:
  struct OwnedSlab {
    std::shared_ptr<Slab> slab;
    uint32_t link = 0;
  };
  // Source extents of a transfer: one of each stream whose rows it uses, or a dense one.
  struct Sources {
    std::array<uint32_t, kPartCount> extents = {};
    std::array<ExtentLease, kPartCount> leases = {};
    uint32_t count = 0;
    uint64_t step = 0;  // of the leases
  };
  struct Work {
    uint32_t tile_neurons = 0;
    Sources sources;
    FetchCompletion completion;
  };
  using Transfer = SharedTransfers<Work>::Transfer;

  absl::Status OnSegmentMapped(uint32_t segment, const std::byte* base, uint64_t bytes) override;
  void OnSegmentUnmapped(uint32_t segment) override;
  Sources SourcesOf(const FetchRequest& request) const;
  bool PrefetchesHoldTooMuch() const;
  bool Lease(Sources* sources);
  void Unlease(const Sources& sources);
  absl::Status Begin(Transfer* transfer);
  absl::Status Fill(Transfer* transfer);
  void StartCopy(Transfer* transfer);
  TransferPlan PlanOf(const Transfer& transfer) const;
  absl::Status CheckTarget(const FetchRequest& request) const;
  void OnFilled(const FetchCompletion& filled);
  void OnCopied(const TransferEnd& end);
  // Completes all requests of the transfer.
  void End(Transfer* transfer, absl::StatusCode code);
  // Hands the request out with the next Poll().
  void Complete(uint64_t id, const FetchCompletion& completion, absl::StatusCode code);
  void TakeEnds();
  void StopCopies();
  void DropSlabs();

  const std::unique_ptr<WeightClient> behind_;
  const MonotonicClock clock_;
  const std::vector<std::shared_ptr<Copier>> devices_;
  const PlanOptions plan_;
  SegmentObserver* observer_ = nullptr;  // the caller's
  std::map<uint32_t, absl::Span<const std::byte>> segments_;
  std::vector<OwnedSlab> slabs_;
  uint32_t copies_ = 0;               // running ones
  std::vector<uint64_t> refills_;     // transfers that were filled, but evicted before they were leased
  std::deque<FetchCompletion> over_;  // to be handed out by Poll()
  std::atomic<uint64_t> bytes_link_{0};
  std::atomic<uint64_t> outstanding_{0};    // transfers without a completion
  std::unique_ptr<TransferEngine> engine_;  // reset first: its threads wake `behind_`
  SharedTransfers<Work> shared_;
};

}  // namespace sluice::inferd
