// A WeightClient whose transfers of experts take the time of a modelled link (--clock virtual): bytes are
// copied into the slab at once, from leases of the wrapped client, but tiles land and requests complete at
// modelled times, on a clock that only waiting and computing advance. All other calls go to the wrapped
// client unchanged.
//
// Thread safety: as WeightClient's; belongs to the engine thread, except Wake(), Describe() and counters().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/protocol/link_model.h"
#include "common/protocol/shared_memory.h"
#include "inferd/model/weight_client.h"
#include "inferd/sim/virtual_clock.h"

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
  struct Transfer {
    FetchCompletion completion;  // the future completion
    RequestClass request_class = RequestClass::kDemand;
    uint64_t step = 0;
    uint32_t layer = 0;
    uint32_t expert = 0;
    PartSet parts = 0;
    TransferTarget target;  // without its list
    std::vector<uint32_t> neurons;
    uint64_t first_number = 0;  // number of its first tile on the link
    uint32_t tiles = 0;
    uint32_t landed = 0;
    uint32_t ended = 0;   // tiles that landed or were cancelled
    uint64_t leader = 0;  // earlier request for the same bytes: this one is coalesced with it
    bool followed = false;
    bool cancelled = false;
    bool complete = false;
    int64_t submitted = 0;
  };

  absl::Status CopyNow(const FetchRequest& request, FetchCompletion* completion);
  ExtentRange ExtentsOf(const FetchRequest& request) const;
  bool LeaseAll(const ExtentRange& range, std::vector<ExtentLease>* leases);
  absl::Status FillNow(const FetchRequest& request, FetchCompletion* completion);
  absl::Status CopyRows(const FetchRequest& request, const std::vector<ExtentLease>& leases);
  uint64_t RowBytesOf(const FetchRequest& request) const;
  void SendTiles(const FetchRequest& request, Transfer* transfer);
  Transfer* SameBytes(const FetchRequest& request);
  Transfer* Find(uint64_t id);
  const Transfer* Find(uint64_t id) const;
  void OnTile(uint64_t number, int64_t nanos, uint64_t bytes, bool cancelled);
  void CancelTiles(Transfer* transfer);
  int64_t Now() const { return clock_->NowNanos(); }

  const std::unique_ptr<WeightClient> behind_;
  VirtualClock* const clock_;
  std::unique_ptr<VirtualLink> link_;  // link of the last slab offered
  std::vector<Mapping> slabs_;
  std::deque<Transfer> transfers_;                // in order of submission
  std::unordered_map<uint64_t, uint64_t> owner_;  // request id by tile number
  std::vector<FetchCompletion> held_;             // the wrapped client's completions during a fill
  uint64_t next_number_ = 1;
  uint64_t fills_ = 0;
  absl::Duration fill_limit_ = absl::Seconds(20);
};

}  // namespace sluice::inferd
