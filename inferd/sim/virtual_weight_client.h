// A WeightClient whose transfers of experts take the time of a modelled link (--clock virtual): bytes are
// copied into the slab at once, from leases of the wrapped client, but tiles land and requests complete at
// modelled times, on a clock that only waiting and computing advance. All other calls go to the wrapped
// client unchanged.
//
// Thread safety: as WeightClient's; belongs to the engine thread, except Wake(), Describe() and counters().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/shared_memory.h"
#include "common/protocol/shared_transfers.h"
#include "inferd/model/weight_client.h"
#include "inferd/sim/virtual_clock.h"
#include "inferd/sim/virtual_link.h"

namespace sluice::inferd {

class VirtualWeightClient final : public WeightClient {
 public:
  // `clock` outlives this object.
  VirtualWeightClient(std::unique_ptr<WeightClient> behind, VirtualClock* clock);

  const Pack& pack() const override { return behind_->pack(); }
  absl::Status SetSegmentObserver(SegmentObserver* observer) override {
    return behind_->SetSegmentObserver(observer);
  }
  bool TryLease(uint32_t extent, ExtentLease* lease) override { return behind_->TryLease(extent, lease); }
  void Release(uint32_t extent, uint64_t step) override { behind_->Release(extent, step); }
  void SetScan(bool scan) override { behind_->SetScan(scan); }
  bool IsResident(uint32_t extent) const override { return behind_->IsResident(extent); }
  absl::Status Submit(const FetchRequest& request) override;
  absl::StatusOr<uint32_t> OfferSlab(const SlabOffer& offer) override;
  uint32_t LandedTiles(uint64_t id) const override;
  void Cancel(uint64_t id) override;
  void CancelPrefetches(uint64_t step, uint32_t layer) override;
  size_t Poll(absl::FunctionRef<void(const FetchCompletion&)> handle) override;
  absl::Status Wait(absl::Time deadline) override;
  void Wake() override { behind_->Wake(); }
  bool connected() const override { return behind_->connected(); }
  absl::Status Reconnect(absl::Time deadline) override;
  WeightClientCounters counters() const override { return behind_->counters(); }
  std::string Describe() const override;

 private:
  using Shared = SharedTransfers<FetchCompletion, VirtualLink>;  // kept: the completion of its first request
  struct Over {
    FetchCompletion completion;
    uint32_t landed = 0;  // tiles
  };

  absl::Status CopyNow(const FetchRequest& request, FetchCompletion* completion);
  ExtentRange ExtentsOf(const FetchRequest& request) const;
  bool LeaseAll(const ExtentRange& range, std::vector<ExtentLease>* leases);
  absl::Status FillNow(const FetchRequest& request, FetchCompletion* completion);
  absl::Status CopyRows(const FetchRequest& request, const std::vector<ExtentLease>& leases);
  uint64_t RowBytesOf(const FetchRequest& request) const;
  void SendTiles(const FetchRequest& request, Shared::Transfer* transfer);
  // Moves what ended on the link from shared_ to over_.
  void TakeEnds();
  int64_t Now() const { return clock_->NowNanos(); }

  const std::unique_ptr<WeightClient> behind_;
  VirtualClock* const clock_;
  std::vector<Mapping> slabs_;
  std::unique_ptr<VirtualLink> link_;  // of the last slab offered
  std::optional<Shared> shared_;       // over link_
  std::map<uint64_t, Over> over_;      // to be handed out, by request id: in the order of submission
  std::vector<FetchCompletion> held_;  // the wrapped client's completions during a fill
  uint64_t fills_ = 0;
  absl::Duration fill_limit_ = absl::Seconds(20);
};

}  // namespace sluice::inferd
